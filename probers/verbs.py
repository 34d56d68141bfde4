"""Verbs that join rooms: a prober from rows, by labelled states."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from .data.rows import FIELDS
from .datagen.labelling import label
from .datagen.labels.texts import Texts
from .datagen.settings import Options
from .model.causal_lm import CausalLM
from .prober.prober import Prober
from .train.fitting import fit as fit_stores
from .types import UserError

log = logging.getLogger(__name__)

#: Options of reading and of labelling rows; the others are those of training.
_READING = {field.name for field in fields(Texts) if field.init} - {"texts", "columns"}
_LABELLING = {field.name for field in fields(Options) if field.init} - {"layers"}


def fit(
    data: Any, rows: Any = None, *, head: Any = "probing_rag", layers: Any = "all",
    out: str | Path | None = None, **options: Any,
) -> Prober:  # fmt: skip
    """Train a calibrated prober, and measure it on held-out texts beside controls.

    ::

        prober = probers.fit(lm, frame, prompt="question", answer="output", wrong="is_wrong")
        prober = probers.fit(store, head="linear", layers=[10])

    Args:
        data: a model, which reads ``rows``; or a store of labelled states, its folder, or several of these.
        rows: labelled texts: a DataFrame, a list of dictionaries, a ``datasets.Dataset`` or a file.
        head: name of a head, with its options as typed ("radio hidden=64"), or a class of your own.
        layers: "all", a number, or a list of numbers from 1.
        out: folder that keeps the prober, and ``<out>.states`` that keeps its states; both resume. None keeps
            nothing.
        options: names of columns (``answer="output"``), and options of ``Texts``, :func:`probers.label` and
            probers-train under the names of the commands' keys.

    Raises:
        UserError: rows that cannot be used, one class only, an unknown option, layers that are not there.
    """
    if not isinstance(data, CausalLM):
        if rows is not None:
            message = f"fit takes a model and rows, or stores alone, found {type(data).__name__} and rows"
            fix = "CausalLM.from_pretrained(name), or CausalLM(model, tokenizer) of what you hold"
            raise UserError(f"{message}: {fix}")
        return fit_stores(data, head=head, layers=layers, out=out, **options)
    if rows is None:
        raise UserError("fit(lm, rows) needs rows: texts with answer and wrong", "missing-value")
    # A field may share its name with an option, as split does, which is no string.
    columns = {name: options.pop(name) for name in FIELDS if isinstance(options.get(name), str)}
    source = Texts(rows, columns=columns or None, **_taken(options, _READING))
    labelling = {"limit": None, **_taken(options, _LABELLING)}
    shared = {name: labelling[name] for name in ("seed",) if name in labelling}
    states = None if out is None else f"{out}.states"
    store = label(data, source, layers=layers, out=states, **labelling)
    for line in source.source.lines():
        log.warning(line)
    return fit_stores(store, head=head, layers=layers, out=out, **shared, **options)


def _taken(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Take some options out of others."""
    return {name: options.pop(name) for name in names & options.keys()}
