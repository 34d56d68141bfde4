"""The verb ``fit``: a calibrated, evaluated prober of feature stores, without a command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from probers.cli.components import Component
from probers.cli.settings import default_values, plain, read
from probers.options import refuse_unknown
from probers.prober.prober import Prober
from probers.store.store import FeatureStore
from probers.types import UserError

from .heads import head_of
from .methods import method_of
from .run import Plan, listed, run_on, train
from .settings import Train

#: Keys of the command that are arguments here, or that divide a training among processes.
_ELSEWHERE = {"data", "layer", "head", "out", "part", "launch", "suffix"}
#: The other options of :func:`fit`.
OPTIONS = [f.name for f in fields(Train) if not f.name.startswith("_") and f.name not in _ELSEWHERE]
#: Keys that only write files.
_FILES = ("sizes", "layer_sets", "matrix", "test", "logger")

#: A store, or the folder of one.
Store = FeatureStore | str | Path


def fit(
    stores: Store | Sequence[Store], *, head: str | type | Component | Callable[..., Any] = "probing_rag",
    layers: Any = "all", out: str | Path | None = None, **options: Any,
) -> Prober:  # fmt: skip
    """Train, calibrate and evaluate a prober on the labelled states of stores, as ``probers-train``.

    ::

        prober = fit("runs/datagen/cot", head="linear", layers=[8, 10], lr=1e-2)
        print(prober.metrics["ensemble"]["auroc"])

    Args:
        stores: finished stores or their folders; several are read as one.
        head: name of a head with options as typed (``"radio hidden=64"``), a class of heads, or a partial.
        layers: "all", a number, a range as "1-20", or a list.
        out: folder of the prober, written as the command writes it; a killed training resumes, and a finished
            one is loaded. Without it nothing is written.
        options: further keys of the command, with its defaults: ``epochs``, ``lr``, ``calibration``,
            ``threshold``, ``split``, ``pool``, ``resamples``, ``learning_curve``, ..

    Returns:
        The prober, with figures of the test texts as ``metrics`` and its model card as ``card``.

    UserError for an unknown option, a value that is not allowed, and what cannot be trained on the stores.
    """
    component = head_of(head)
    settings = settings_of(component, layers, options)
    if method_of(component) == "questions":
        message = f"head={head} classifies questions, and fit makes probers of states"
        raise UserError(f"{message}: use probers-train", "unsupported")
    if out is None:
        _refuse_files(settings, method_of(component))
    read = partial(FeatureStore.open, checksums=settings.checksums)
    opened = [store if isinstance(store, FeatureStore) else read(store) for store in listed(stores)]
    if not opened:
        raise UserError("stores=[] names no store: give one, or several", "missing-value")
    paths = [str(store.path) for store in opened]
    settings = replace(settings, data=paths, out=None if out is None else str(out))
    record = {key: value for key, value in plain(settings).items() if key != "launch"}  # as typed
    settings = replace(settings, _record=record)
    if out is None:
        return train(Plan.of(settings, opened), None).bank
    return Prober.from_pretrained(run_on(settings, opened))


def settings_of(head: Component, layers: Any, options: Mapping[str, Any]) -> Train:
    """Make the settings of the command; UserError names an unknown option, and the nearest known one."""
    refuse_unknown("fit", options, ["layers", "head", *OPTIONS])
    texts = options.get("texts")
    if isinstance(texts, (str, Path)):
        options = {**options, "texts": default_values(Train)["texts"] | {"path": str(texts)}}
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    layer = list(layers) if isinstance(layers, (tuple, range)) else layers
    return replace(read(Train, {**values, "layer": layer}), head=head)


def _refuse_files(settings: Train, method: str) -> None:
    """Refuse what only writes files; UserError names it."""
    options = [name for name in _FILES if getattr(settings, name) not in ([], False, None, "none")]
    if options or method == "adapters":
        what = f"{options[0]}={getattr(settings, options[0])}" if options else "head=lora"
        raise UserError(f"{what} writes files: give out=FOLDER", "missing-value")
