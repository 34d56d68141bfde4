"""Always retrieve, once, with the question, before anything is generated (SR-RAG)."""

from __future__ import annotations

from dataclasses import dataclass

from probers.types import Decision, Generation

from .base import State, Trigger


@dataclass(frozen=True)
class Always(Trigger):
    """Single-round retrieval for every question, whatever query formulation is configured."""

    before = True
    after = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return Decision(fire=False, score=0.0, threshold=0.5)
