"""The learning curve: the same prober from fewer training groups (Probing-RAG, table 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from probers.heads import ProbeHead

from .assemble import AssemblySettings, Trained, alone, combined, margins_of
from .controls import ENSEMBLE, Detector
from .data import Examples, training_share
from .fit import FitSettings, Fitted, Task, fit
from .states import Column, States

#: Points of the curve: so many texts, and these shares of the groups.
_TEXTS, _SHARES = 1000, (0.25, 0.5)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A prober that was trained on part of the training groups.

    Attributes:
        share: of the groups.
        n, groups: texts and groups trained on.
        layer: the head of the layer that is best on validation.
        ensemble: all layers.
    """

    share: float
    n: int
    groups: int
    layer: Detector
    ensemble: Detector


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
        yield _point(fitted, states, columns, part, share, assembly)
    yield _whole(trained, examples)


def _point(
    fitted: Fitted, states: States, columns: Sequence[Column], part: Examples, share: float,
    settings: AssemblySettings,
) -> CurvePoint:  # fmt: skip
    """The scores of heads that were trained on part of the groups, made as the prober's are."""
    margins = margins_of(fitted, states, columns, part, settings)
    _, score = combined(settings.combine, margins, list(range(len(fitted.tasks))), part, settings)
    best = int(np.argmax(fitted.auroc))
    return CurvePoint(
        share, len(part.rows["train"]), len(part.groups("train")),
        alone("best layer", margins, best, part),
        Detector(ENSEMBLE, score, f"{settings.combine} of {len(fitted.tasks)} layers"),
    )  # fmt: skip


def _whole(trained: Trained, examples: Examples) -> CurvePoint:
    """The prober itself as the last point of its learning curve."""
    saved = trained.ensembles[trained.bank.combine]
    groups = len(examples.groups("train"))
    return CurvePoint(1.0, len(examples.rows["train"]), groups, trained.layers[trained.best], saved)
