"""Retrieve where the model was unsure of the sentence it wrote (FLARE, Jiang et al. 2023)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Literal

import numpy as np

from probers.types import Decision, Generation

from .base import State, Trigger, first_above, one_of


@dataclass(frozen=True)
class Flare(Trigger):
    """Fires at the first sentence with improbable tokens, which is then written anew with passages.

    With p the probabilities of a sentence's tokens, ``variant`` "min" is the paper's: some p
    is below theta, which is max(1 - p) > 1 - theta. "mean" is that of DRAGIN's released
    code: mean(1 - p) > threshold. What was written from passages that were just fetched for
    it is taken as it is, and the text goes on behind it.

    All sentences are looked at in one pass instead of one pass each, which writes the same.

    Attributes:
        threshold: of 1 - p.
        variant: "min" or "mean" over a sentence's tokens.
        theta: the paper's form of the threshold, 1 minus it; given, it takes its place.
    """

    threshold: float = 0.2
    variant: Literal["min", "mean"] = "min"
    theta: InitVar[float | None] = None

    def __post_init__(self, theta: float | None) -> None:
        one_of("trigger.variant", self.variant, "min", "mean")
        if theta is not None:
            # 0.2 and not 0.19999999999999996 of 0.8, for whoever reads it.
            object.__setattr__(self, "threshold", round(1.0 - theta, 12))

    def __call__(self, generation: Generation, state: State) -> Decision:
        unsure = -np.expm1(generation.logprobs.astype(np.float64))
        reduce = np.max if self.variant == "min" else np.mean
        return first_above(generation, state, unsure, reduce, self.threshold)
