"""Retrieve at random: what a budget of retrievals is worth when nobody looks at the answer."""

from __future__ import annotations

import random
from dataclasses import dataclass

from probers.types import Decision, Generation, UserError

from .base import State, Trigger, verdict


@dataclass(frozen=True)
class Random(Trigger):
    """Fires so that questions get ``rate`` retrievals on average.

    Every question draws one number u in [0, 1) from its id and the seed, whatever
    batch or order it is in, and is granted as many retrievals as there are whole
    numbers j >= 0 with j + u < rate.

    Attributes:
        rate: mean retrievals per question: 0.4 grants one to 40% of them, 1.5 one
            to half and two to the other half.
        seed: another seed picks other questions.
    """

    rate: float = 0.5
    seed: int = 0

    decides_by = "chance"

    def __post_init__(self) -> None:
        if not self.rate >= 0:
            raise UserError(f"trigger.rate={self.rate} must be 0 or more (mean retrievals per question)")

    def __call__(self, generation: Generation, state: State) -> Decision:
        drawn = random.Random(f"random:{self.seed}:{state.question.id}").random()
        return verdict(1.0 - drawn, 1.0 - self.rate + state.retrievals)
