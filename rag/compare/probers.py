"""Several probers in one comparison: which folders are meant, what each is called, how each came out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.bank.io import CONFIG
from probers.types import UserError

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank

    from .methods import MethodRun

#: Figures of a prober on the test texts of its training.
_FIGURES = ("accuracy", "accuracy_ci", "auroc", "auroc_ci")


def named(given: Sequence[str]) -> dict[str, str]:
    """Name -> folder or hub id of each prober.

    A folder that is no prober but holds some stands for these, in the order of the numbers in their
    names. A prober is called as its folder is; where two are called the same, with those above them.

    Raises:
        UserError: the same prober twice.
    """
    paths = [found for path in given for found in _below(path)]
    places = [Path(path).resolve() for path in paths]
    for number, place in enumerate(places):
        if (first := places.index(place)) < number:
            raise UserError(f"probers names {paths[first]} and again {paths[number]}: once is enough")
    names = [place.name for place in places]
    for length in range(2, max((len(place.parts) for place in places), default=0)):
        if len(set(names)) == len(names):
            break
        names = ["-".join(place.parts[-length:]) for place in places]
    return dict(zip(names, paths, strict=True))


def _below(path: str) -> list[str]:
    folder = Path(path)
    found = [] if (folder / CONFIG).is_file() else [file.parent for file in folder.glob(f"*/{CONFIG}")]
    return sorted(map(str, found), key=_numbers) or [path]


def _numbers(path: str) -> tuple[list[int], str]:
    name = Path(path).name
    return list(map(int, re.findall(r"\d+", name))), name


def check_one_model(banks: Mapping[str, ProbeBank]) -> None:
    """Refuse probers of different models; names two of them (UserError)."""
    for path, bank in banks.items():
        first, other = next(iter(banks.items()))
        if not bank.spec.model.same_as(other.spec.model):
            raise UserError(
                f"probers: {first} reads the model {other.spec.model} and {path} reads {bank.spec.model}: a "
                "comparison has one model"
            )


def figures(runs: Iterable[MethodRun], banks: Mapping[str, ProbeBank]) -> dict[str, dict[str, Any]]:
    """Of each method with a prober: which, what it was trained on, its layers and its own test figures."""
    found = {}
    for run in runs:
        options = run.method.trigger.options
        path = next((path for path, bank in banks.items() if bank is options.get("bank")), None)
        if path is None:
            continue
        bank = banks[path]
        training = bank.metrics.get("splits", {}).get("train", {})
        measured = bank.metrics.get("with_entropy" if options.get("with_entropy") else "ensemble") or {}
        found[run.name] = {
            "prober": path, "site": bank.spec.site, "layers": list(bank.layers),
            "texts": training.get("n"), "groups": training.get("groups"),
            **{name: measured.get(name) for name in _FIGURES},
        }  # fmt: skip
    return found
