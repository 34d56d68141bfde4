"""Ask with the last sentence written (IRCoT's query, and one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.text import split_sentences
from probers.types import Decision, Generation, Needs, Question

from ..triggers.base import State
from .base import QUERY_TOKENS, at_least_one, one_line, text_so_far


@dataclass(frozen=True)
class LastSentenceQuery:
    """The last sentence of the answer so far; the question as long as nothing is accepted.

    Attributes:
        max_tokens: the query's last so many words for the retriever are kept.
    """

    max_tokens: int = QUERY_TOKENS

    needs = Needs()

    def __post_init__(self) -> None:
        at_least_one(self, "max_tokens")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        text = text_so_far(generation, decision, state)
        sentences = split_sentences(text)
        last = text[slice(*sentences[-1])] if sentences else ""
        return one_line(last, self.max_tokens) or question.question
