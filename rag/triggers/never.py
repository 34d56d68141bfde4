"""Never retrieve: the model answers from what it has learnt (wo-RAG)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation

from .base import State, Trigger


@dataclass(frozen=True)
class Never(Trigger):
    """Closed-book answers; the lower reference of every comparison."""

    after = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return Decision(fire=False, score=0.0, threshold=0.5)
