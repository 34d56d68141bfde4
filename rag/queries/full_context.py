"""Ask with everything: the question and the answer so far (one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Needs, Question

from ..triggers.base import State
from .base import QUERY_TOKENS, at_least_one, one_line, text_so_far


@dataclass(frozen=True)
class FullContextQuery:
    """The question and the answer so far, as they stand.

    Attributes:
        max_tokens: the query's last so many words for the retriever are kept; of a long
            answer the question is what is cut off.
    """

    max_tokens: int = QUERY_TOKENS

    needs = Needs()

    def __post_init__(self) -> None:
        at_least_one(self, "max_tokens")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        whole = f"{question.question} {text_so_far(generation, decision, state)}"
        return one_line(whole, self.max_tokens) or question.question
