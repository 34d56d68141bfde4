"""Ask with the last tokens written (RETRO's and in-context RALM's query, and one of DRAGIN's ablations)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Needs, Question

from ..triggers.base import State
from .base import QUERY_TOKENS, at_least_one, one_line


@dataclass(frozen=True)
class LastTokensQuery:
    """The last ``n`` of the model's tokens of the answer so far; the question as long as nothing is accepted.

    A token may be a part of a word, so that the query may begin with one.

    Attributes:
        n: tokens of the model.
        max_tokens: the query's last so many words for the retriever are kept.
    """

    n: int = 25
    max_tokens: int = QUERY_TOKENS

    needs = Needs()

    def __post_init__(self) -> None:
        at_least_one(self, "n", "max_tokens")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        shift = len(generation.prompt)
        begin = shift - len(state.partial)
        text = generation.prompt + generation.text
        end = len(text) if decision.position is None else shift + decision.position
        offsets = [*generation.prompt_offsets, *((a + shift, b + shift) for a, b in generation.offsets)]
        # Of a token that the cut goes through, what is within counts.
        starts = [max(a, begin) for a, b in offsets if max(a, begin) < min(b, end)]
        if not starts:
            return question.question
        return one_line(text[starts[-self.n :][0] : end], self.max_tokens) or question.question
