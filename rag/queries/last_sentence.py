"""Ask with the last sentence written (IRCoT's query, and one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.text import split_sentences
from probers.types import Decision, Generation, Question

from ..triggers.base import State
from .base import LimitedQuery, text_so_far


@dataclass(frozen=True)
class LastSentenceQuery(LimitedQuery):
    """The last sentence of the answer so far; the question as long as nothing is accepted."""

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        text = text_so_far(generation, decision, state)
        sentences = split_sentences(text)
        return text[slice(*sentences[-1])] if sentences else ""
