"""Retrieve in the middle of a sentence, where uncertain words carry the text on (DRAGIN's RIND)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probers.types import Decision, Generation
from probers.uncertainty import RindScores, Variant, rind_scores, words

from .base import PaperOrReleased, Share, State, Trigger, one_of, verdict


@dataclass(frozen=True)
class Rind(PaperOrReleased, Trigger):
    """Fires at the first place whose RIND score is above the threshold.

    The text before that place is kept and the model goes on from there with the
    passages it fetched.

    Attributes:
        threshold: of the score; the two variants have scales of their own, and the
            published 0.6 to 1.5 belong to the released one.
        variant: which formula (:func:`probers.uncertainty.rind_scores`) and which loop.
            "paper": the text ends before the word that fired; what is written from there with
            the passages is judged as all else, but for that one word, which could fire for ever.
            "released": it ends before the sentence of that word; one sentence is written with
            the passages and taken as it is, and what follows is written, and judged, without any.
    """

    threshold: float = 1.0
    variant: Variant = "released"

    def __post_init__(self) -> None:
        one_of("trigger.variant", self.variant, "paper", "released")

    @property
    def takes(self) -> Share:
        return "sentence" if self.variant == "released" else "nothing"

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """The decision on every generation; the released variant's pass runs once for all."""
        if not generations:
            return []
        if self.variant == "paper":
            scores = [rind_scores(g, "paper") for g in generations]
        else:
            alone = states[0].lm.attention_alone(generations)
            scores = [
                rind_scores(g, "released", attention_alone=a) for g, a in zip(generations, alone, strict=True)
            ]
        return [self._decide(*each) for each in zip(scores, generations, states, strict=True)]

    def _decide(self, rind: RindScores, generation: Generation, state: State) -> Decision:
        shown = tuple(map(float, rind.per_token(len(generation.token_ids))))
        taken = _of_the_first_word(rind, generation) if state.fresh and self.variant == "paper" else 0
        score, hits = rind.max(taken), rind.hits(self.threshold, taken)
        if not hits:
            return verdict(score, self.threshold, token_scores=shown)
        if self.variant == "paper":
            start, end = rind.spans[hits[0]]
            found = words(generation.text, generation.offsets)
            position = next((w.start for w in found if w.end > start and w.start < end), start)
            tokens = set(rind.tokens[hits[0]])
        else:
            position = rind.sentences[rind.sentence(hits[0])][0]
            tokens = {t for i in hits for t in rind.tokens[i]}
        return verdict(
            score, self.threshold, position=position, tokens=tuple(sorted(tokens)), token_scores=shown
        )


def _of_the_first_word(rind: RindScores, generation: Generation) -> int:
    """Number of leading units that belong to the text's first word."""
    first = words(generation.text, generation.offsets)[:1]
    end = first[0].end if first else 0
    return sum(start < end for start, _ in rind.spans)
