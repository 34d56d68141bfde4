"""Retrieve after every sentence, whatever it says (FS-RAG, in the manner of IRCoT)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation, Question

from .base import LookAhead, State, Trigger, ruled, sentences


@dataclass(frozen=True)
class FixedSentence(Trigger):
    """Retrieves with the question first, and then after every sentence that was written.

    What was written stays, and the text goes on from there with the new passages. The
    text's end is no place to retrieve.
    """

    before = True
    decides_by = "rule"

    def look_ahead(self, question: Question) -> LookAhead:
        """One sentence."""
        return LookAhead(sentences=1)

    def __call__(self, generation: Generation, state: State) -> Decision:
        return after_a_sentence(generation)


def after_a_sentence(generation: Generation, score: float = 1.0) -> Decision:
    """The decision to retrieve behind the first sentence, if another one follows."""
    found = sentences(generation)
    if len(found) < 2:
        return ruled(False, score)
    return ruled(True, score, position=found[0].end, tokens=found[0].tokens[-1:])
