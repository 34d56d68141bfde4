"""Ask with the question itself."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Needs, Question

from ..triggers.base import State


@dataclass(frozen=True)
class QuestionQuery:
    """The question as it stands, in every round."""

    needs = Needs()

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return question.question
