"""Retrieve exactly when the closed-book answer is wrong: the best any trigger could do."""

from __future__ import annotations

from dataclasses import dataclass

from probers.metrics import exact_match
from probers.types import Decision, Generation, Needs, RunError, UserError

from .base import State, verdict


@dataclass(frozen=True)
class Oracle:
    """Compares the closed-book answer with the gold answers by exact match; fires at most once."""

    judges_answer = True

    @property
    def needs(self) -> Needs:
        return Needs()

    def __call__(self, generation: Generation, state: State) -> Decision:
        gold = state.question.answers
        if not gold:
            raise UserError(
                f"trigger=oracle needs gold answers and question {state.question.id!r} has none: "
                'give it "answers" or choose another trigger'
            )
        if state.answer is None:
            raise RunError("trigger=oracle was asked before the answer was complete")
        wrong = state.retrievals == 0 and not exact_match(state.answer, gold)
        return verdict(float(wrong), 0.5)
