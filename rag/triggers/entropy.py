"""Retrieve when the model hesitated: entropy of the next-token distributions of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from probers.types import Decision, Generation

from .base import UNANSWERED, State, Trigger, first_above, one_of, verdict


@dataclass(frozen=True)
class Entropy(Trigger):
    """Fires when the entropy of the tokens of an answer, or of a sentence, is above a threshold.

    Attributes:
        threshold: nats.
        reduction: "mean" over the tokens of rationale and answer, or their "max".
        scope: over the tokens of the whole "answer", which is then written anew; or of each
            "sentence", and the text before the first that is above the threshold is kept.
    """

    threshold: float = 0.5
    reduction: Literal["mean", "max"] = "mean"
    scope: Literal["answer", "sentence"] = "answer"

    def __post_init__(self) -> None:
        one_of("trigger.reduction", self.reduction, "mean", "max")
        one_of("trigger.scope", self.scope, "answer", "sentence")

    def __call__(self, generation: Generation, state: State) -> Decision:
        entropies = generation.entropies
        reduce = np.mean if self.reduction == "mean" else np.max
        if self.scope == "sentence":
            return first_above(generation, state, entropies, reduce, self.threshold)
        if len(entropies) == 0:
            return verdict(UNANSWERED, self.threshold)
        return verdict(float(reduce(entropies)), self.threshold, token_scores=tuple(map(float, entropies)))
