"""Retrieve exactly when the closed-book answer is wrong: the best any trigger could do."""

from __future__ import annotations

from dataclasses import dataclass

from probers.metrics import exact_match
from probers.types import Decision, Generation, Needs, RunError

from .base import State, verdict


@dataclass(frozen=True)
class Oracle:
    """Compares the closed-book answer with the gold answers by exact match; fires at most once."""

    judges_answer = True

    @property
    def needs(self) -> Needs:
        return Needs()

    def __call__(self, generation: Generation, state: State) -> Decision:
        if state.answer is None or not state.question.answers:
            raise RunError("trigger=oracle was asked without an answer to judge, or without gold answers")
        wrong = state.retrievals == 0 and not exact_match(state.answer, state.question.answers)
        return verdict(float(wrong), 0.5)
