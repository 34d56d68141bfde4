"""Thresholds and calibration for triggers that bring none: one rule for all, on validation questions.

The rule is the one by which a prober's threshold is chosen when it is trained, the highest
balanced accuracy, here against "the closed-book answer is wrong".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from probers.bank.calibration import Platt, fit_platt
from probers.bank.fitting import ThresholdRule
from probers.checksums import made_once
from probers.evaluation.answers import Rule, right_by_em
from probers.types import Question

from ..loop import RAG
from ..protocol import UNANSWERED, Trigger
from .trajectories import record, together


@dataclass(frozen=True, slots=True)
class Tuned(Platt):
    """What validation questions gave for one trigger: the calibration of its scores, and its threshold."""

    threshold: float


def tune_once(
    file: Path, rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], right: Rule
) -> dict[str, Tuned]:
    """What :func:`tune` gives, kept in ``file`` so that a resumed run goes on with the same thresholds."""

    def tuned() -> dict[str, dict[str, float]]:
        return {name: asdict(entry) for name, entry in tune(rag, triggers, questions, right).items()}

    return {name: Tuned(**entry) for name, entry in made_once(file, tuned).items()}


def tune(
    rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], right: Rule = right_by_em
) -> dict[str, Tuned]:
    """Threshold and calibration of every trigger, from the closed-book answers to the questions.

    Args:
        rag: a loop whose model, prompt and limits are used; its trigger is not.
        triggers: by name of the method.
        questions: validation questions; those without gold answers are left out.
        right: whether an answer to one is.

    Returns:
        By name; empty when the questions do not have both right and wrong answers.
    """
    answered = [q for q in questions if q.answers]
    closed_book = replace(rag, max_retrievals=0)
    tuned: dict[str, Tuned] = {}
    for group in together(triggers):
        found = record(closed_book, group, answered, progress="thresholds")
        first = [steps[0] for steps in found.steps]
        judged = [right(s.text, s.answer, q.answers) for s, q in zip(first, answered, strict=True)]
        wrong = 1.0 - np.array(judged, dtype=float)
        if len(set(wrong)) < 2:
            return {}
        tuned |= {name: _tuned(wrong, found.scores(name)[:, 0]) for name in group}
    return tuned


def _tuned(wrong: np.ndarray, scores: np.ndarray) -> Tuned:
    """Threshold and calibration of scores (n,)."""
    # The score of an answer without a token is on no scale, and would bend the calibration's.
    written = scores < UNANSWERED
    if len(set(wrong[written])) < 2:
        written[:] = True
    platt = fit_platt(wrong[written], scores[written])
    return Tuned(platt.slope, platt.intercept, ThresholdRule()(wrong, scores))
