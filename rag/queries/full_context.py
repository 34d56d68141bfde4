"""Ask with everything: the question and the answer so far (one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Question

from ..triggers.base import State
from .base import LimitedQuery, text_so_far


@dataclass(frozen=True)
class FullContextQuery(LimitedQuery):
    """The question and the answer so far, as they stand; of a long answer the question is what is cut off."""

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return f"{question.question} {text_so_far(generation, decision, state)}"
