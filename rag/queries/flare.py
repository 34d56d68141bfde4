"""Ask with the sentence the model is about to write, without what it is unsure of (FLARE)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probers.text import split_sentences
from probers.types import Decision, Generation, Question, UserError

from ..triggers.base import State
from .base import LimitedQuery


@dataclass(frozen=True)
class FlareQuery(LimitedQuery):
    """The sentence that fired without the tokens of probability below ``beta`` (Jiang et al. 2023).

    This is the paper's implicit query. The sentence is the one of the first token that
    fired; of a trigger that names no token, the one at its position; of a verdict on the
    whole answer, all of it. What was accepted of the sentence earlier stays whatever its
    probability. The spaces before tokens that are left out stay, so that no two words
    become one. When nothing is left the question is asked.

    Attributes:
        beta: tokens of smaller probability are left out; 0 leaves none out.
    """

    beta: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta <= 1:
            raise UserError(f"query.beta={self.beta} is no probability: give one from 0 to 1")

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        text = state.partial + generation.text
        start, end = _sentence(text, generation, decision, len(state.partial))
        kept = list(text)
        for (a, b), logprob in zip(generation.offsets, generation.logprobs, strict=True):
            if math.exp(float(logprob)) < self.beta:
                for place in range(a + len(state.partial), b + len(state.partial)):
                    kept[place] = kept[place] if kept[place].isspace() else ""
        return "".join(kept[start:end])


def _sentence(text: str, generation: Generation, decision: Decision, shift: int) -> tuple[int, int]:
    """[start, end) in the answer of the sentence that fired."""
    sentences = split_sentences(text)
    if decision.tokens:
        # The token's last character: its first may be the space before the sentence.
        place = shift + max(generation.offsets[decision.tokens[0]][1] - 1, 0)
    elif decision.position is not None:
        place = shift + decision.position
    else:
        return 0, len(text)
    return next((s for s in sentences if s[1] > place), sentences[-1] if sentences else (0, 0))
