"""The learning curve: the same prober from fewer training groups (Probing-RAG, table 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from probers.heads import ProbeHead

from .data import Examples, training_share
from .fit import FitSettings, Task, fit
from .prober import AssemblySettings, CurvePoint, Trained, curve_point, full_point
from .states import Column, States

#: Points of the curve: so many texts, and these shares of the groups.
_TEXTS, _SHARES = 1000, (0.25, 0.5)


def learning_curve(
    make_head: Callable[[Sequence[str], int], ProbeHead], trained: Trained, states: States,
    columns: Sequence[Column], examples: Examples, settings: FitSettings, assembly: AssemblySettings,
    seed: int, out: Path,
) -> Iterator[CurvePoint | str]:  # fmt: skip
    """Probers of nested parts of the training groups, the smallest first, and the prober itself last.

    Only what is trained on differs: the layers are the prober's, validation and test are the
    same, and so is the number of passes, so that fewer texts are fewer steps.

    Yields:
        Points, and a note for each that could not be made.
    """
    tasks = [Task(k, seed=seed, site=trained.best.site) for k in trained.bank.layers]
    texts = len(examples.rows["train"])
    shares = sorted({*_SHARES, _TEXTS / texts} if texts > _TEXTS else {*_SHARES})
    for share in shares:
        part = training_share(examples, share, seed)
        rows = part.rows["train"]
        labels = part.wrong[rows]
        name = f"{len(rows)} training texts"
        if not 0 < labels.sum() < len(labels):
            yield f"{name} are not on the learning curve: all of them have the same label"
            continue
        fitted = fit(
            make_head, tasks, states, columns, part, replace(settings, logger="none"),
            out=out, what=f"{len(rows)}-texts",
        )  # fmt: skip
        yield curve_point(fitted, states, columns, part, share, assembly)
    yield full_point(trained, examples)
