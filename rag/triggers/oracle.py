"""Retrieve exactly when the answer is wrong: the best any trigger of whole answers could do."""

from __future__ import annotations

from dataclasses import dataclass

from probers.equivalence import EntityMatcher
from probers.evaluation.answers import RULES, right_by
from probers.types import Decision, Generation, RunError, UserError

from .base import State, Trigger, verdict


@dataclass(frozen=True)
class Oracle(Trigger):
    """Compares the answer with the gold answers.

    With ``again`` no trigger that judges whole answers and asks with the same query has
    more questions right: it stops at the first right answer on the way that they all go.

    Attributes:
        again: also when the answer after a retrieval is wrong, up to the limit of the
            loop; otherwise at most once, for the closed-book answer.
        wrong: by which figure an answer is (:func:`probers.evaluation.answers.right_by`).
        matcher: of wrong=match; None is one with its defaults.

    Raises:
        UserError: no such figure.
    """

    again: bool = False
    wrong: str = "em"
    matcher: EntityMatcher | None = None

    judges_answer = True

    def __post_init__(self) -> None:
        if right_by(self.wrong) is None:
            raise UserError(f"trigger.wrong={self.wrong} is no figure: choose {RULES}")

    def __call__(self, generation: Generation, state: State) -> Decision:
        if state.answer is None or not state.question.answers:
            raise RunError("trigger=oracle was asked without an answer to judge, or without gold answers")
        judged = self.again or state.retrievals == 0
        right = right_by(self.wrong, self.matcher)
        assert right is not None
        wrong = judged and not right(state.completed(generation), state.answer, state.question.answers)
        return verdict(float(wrong), 0.5)
