"""What a query formulation is: text for the retriever out of what was generated."""

from __future__ import annotations

from typing import Protocol

from probers.types import Decision, Generation, Needs, Question

from ..triggers.base import State


class QueryFormulator(Protocol):
    """Formulates one query; ``needs`` is all that is recorded for it."""

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self, question: Question, generation: Generation, decision: Decision, state: State
    ) -> str: ...
