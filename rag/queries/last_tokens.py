"""Ask with the last tokens written (RETRO's and in-context RALM's query, and one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Question

from ..triggers.base import State, at_least_one
from .base import LimitedQuery, whole_text


@dataclass(frozen=True)
class LastTokensQuery(LimitedQuery):
    """The last ``n`` of the model's tokens of the answer so far; the question as long as nothing is accepted.

    A token may be a part of a word, so that the query may begin with one.

    Attributes:
        n: tokens of the model.
    """

    n: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("query.n", self.n)

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        shift = len(generation.prompt)
        begin = shift - len(state.partial)
        text, offsets = whole_text(generation)
        end = len(text) if decision.position is None else shift + decision.position
        # Of a token that the cut goes through, what is within counts.
        starts = [max(a, begin) for a, b in offsets if max(a, begin) < min(b, end)]
        return text[starts[-self.n :][0] : end] if starts else ""
