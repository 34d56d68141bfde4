"""Several triggers asked about the same generations, in one pass of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probers.types import Decision, Generation, Needs

from .triggers.base import State, Trigger, decide


@dataclass
class Panel:
    """A trigger that asks others and decides by itself; subclasses define :meth:`decide`.

    Attributes:
        triggers: by name; one pass must be able to record what they need.
    """

    triggers: Mapping[str, Trigger]

    @property
    def needs(self) -> Needs:
        needs = Needs()
        for trigger in self.triggers.values():
            needs = needs.union(trigger.needs)
        return needs

    def __call__(self, generation: Generation, state: State) -> Decision:
        return self.decide([generation], [state])[0]

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """What the panel decides on every generation."""
        raise NotImplementedError

    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> dict[str, list[float]]:
        """Every trigger's score of every generation, by name."""
        return {
            name: [d.score for d in decide(trigger, generations, states)]
            for name, trigger in self.triggers.items()
        }
