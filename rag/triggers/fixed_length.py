"""Retrieve every n tokens, whatever they say (FL-RAG, in the manner of RETRO and IC-RALM)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Question, UserError

from .base import LookAhead, State, Trigger, ruled


@dataclass(frozen=True)
class FixedLength(Trigger):
    """Retrieves with the question first, and then after every ``n`` tokens that were written.

    What was written stays, and the text goes on from there with the new passages. The
    text's end is no place to retrieve.

    Attributes:
        n: tokens between two retrievals.
    """

    n: int = 16

    before = True
    decides_by = "rule"
    sweep_option = "n"

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"trigger.n={self.n} must be 1 or more (tokens between two retrievals)")

    def look_ahead(self, question: Question) -> LookAhead:
        """One stretch of ``n`` tokens."""
        return LookAhead(tokens=self.n)

    def __call__(self, generation: Generation, state: State) -> Decision:
        if len(generation.token_ids) <= self.n:
            return ruled(False)
        return ruled(True, position=generation.offsets[self.n - 1][1], tokens=(self.n - 1,))
