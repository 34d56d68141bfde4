"""Retrieve where the model was unsure of the sentence it wrote (FLARE, Jiang et al. 2023)."""

from __future__ import annotations

from dataclasses import InitVar, dataclass
from typing import Literal

import numpy as np

from probers.types import Decision, Generation

from .base import Share, State, Trigger, first_above, one_of


@dataclass(frozen=True)
class Flare(Trigger):
    """Fires at the first sentence with improbable tokens, which is then written anew with passages.

    With p the probabilities of a sentence's tokens, "paper" fires where some p is below theta,
    which is max(1 - p) > 1 - theta. The sentence that is written anew is taken as it is, and
    what follows is written, and judged, without passages. "dragin" is FLARE as DRAGIN's
    repository has it: it fires where mean(1 - p) > threshold, and takes all that is written
    with the passages as it is.

    All sentences are looked at in one pass instead of one pass each, which writes the same.

    Attributes:
        threshold: of 1 - p.
        variant: "paper" or "dragin", which formula and which loop.
        theta: the paper's form of the threshold, 1 minus it; given, it takes its place.
    """

    threshold: float = 0.2
    variant: Literal["paper", "dragin"] = "paper"
    theta: InitVar[float | None] = None

    def __post_init__(self, theta: float | None) -> None:
        one_of("trigger.variant", self.variant, "paper", "dragin")
        if theta is not None:
            # 0.2 and not 0.19999999999999996 of 0.8, for whoever reads it.
            object.__setattr__(self, "threshold", round(1.0 - theta, 12))

    @property
    def takes(self) -> Share:
        return "sentence" if self.variant == "paper" else "all"

    def __call__(self, generation: Generation, state: State) -> Decision:
        unsure = -np.expm1(generation.logprobs.astype(np.float64))
        reduce = np.max if self.variant == "paper" else np.mean
        return first_above(generation, state, unsure, reduce, self.threshold)
