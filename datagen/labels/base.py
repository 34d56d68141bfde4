"""What a source of labelled examples provides, and how its examples reach the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from probers.rind import rind_scores
from probers.signals import signals
from probers.types import Generation


@dataclass(slots=True)
class Examples:
    """Rows for the store with their states, one (layers, d) array per row."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)

    def add(self, row: dict[str, Any], states: np.ndarray) -> None:
        self.rows.append(row)
        self.states.append(states)


class LabelBuilder(Protocol):
    """A source of labelled examples, planned before any model runs.

    Attributes:
        units: the planned pieces of work; their number and order depend on the
            configuration alone, so that a resumed run cuts the same shards.
        unit_name: what a unit is called in progress bars.
        prompt_id: fingerprint of the prompt form, for the FeatureSpec.
    """

    @property
    def units(self) -> Sequence[Any]: ...

    @property
    def unit_name(self) -> str: ...

    @property
    def prompt_id(self) -> str: ...

    def build(self, units: Sequence[Any]) -> Examples:
        """Generate for some units and label the result."""
        ...

    def summarise(self, rows: Any) -> tuple[dict[str, Any], list[str]]:
        """Figures for the manifest and lines to print, from the table of all rows."""
        ...


def recorded(generation: Generation, tokens: Sequence[int] | None = None) -> dict[str, Any]:
    """The columns that describe a generation itself: its text, length and token signals.

    Args:
        tokens: positions of a contiguous span that the signals are taken over; all by default.
    """
    scores = rind_scores(generation, variant="paper").scores
    span = generation
    if tokens is not None:
        first, last = tokens[0], tokens[-1] + 1
        scores = scores[first:last]
        span = replace(
            generation,
            token_ids=generation.token_ids[first:last],
            offsets=generation.offsets[first:last],
            logprobs=generation.logprobs[first:last],
            entropies=generation.entropies[first:last],
        )
    return {
        "text": generation.text,
        "n_tokens": len(span.token_ids),
        **signals(span),
        "rind_max": float(max(scores)),
    }
