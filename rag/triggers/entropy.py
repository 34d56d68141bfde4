"""Retrieve when the model hesitated: entropy of the next-token distributions of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from probers.types import Decision, Generation, Needs, UserError

from .base import State, unanswered, verdict


@dataclass(frozen=True)
class Entropy:
    """Fires on the whole answer when the entropy of its tokens is above a threshold.

    Attributes:
        threshold: nats.
        reduction: "mean" over the tokens of rationale and answer, or their "max".
    """

    threshold: float = 0.5
    reduction: Literal["mean", "max"] = "mean"

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "max"):
            raise UserError(f"trigger.reduction={self.reduction!r} is unknown: choose mean or max")

    @property
    def needs(self) -> Needs:
        return Needs()

    def __call__(self, generation: Generation, state: State) -> Decision:
        entropies = generation.entropies
        if len(entropies) == 0:
            return unanswered(self.threshold)
        score = float(entropies.mean() if self.reduction == "mean" else entropies.max())
        return verdict(score, self.threshold, token_scores=tuple(map(float, entropies)))
