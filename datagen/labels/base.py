"""What a source of labelled examples provides, and how its examples reach the store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from probers.store.store import FeatureStore
from probers.types import Generation
from probers.uncertainty import rind_scores, signals


@dataclass(slots=True)
class Examples:
    """Rows for the store with their states, one (layers, d) array per row, and what gave none."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any], states: np.ndarray) -> None:
        self.rows.append(row)
        self.states.append(states)

    def leave_out(self, id: str, reason: str, **evidence: str) -> None:
        """Note a piece of work that gave no row; reasons are counted by their words up to a colon."""
        self.left_out.append({"id": id, "reason": reason, **evidence})


#: Why a prompt that the model was told to skip gave no row.
TOO_LONG = "too long: the prompt exceeds the model's context"
#: Why a question with passages that were found, but are too long for any to be shown, gave no row.
NO_ROOM = "no passage fits: the context is too short for any that was found"


def span_of(row: Mapping[str, Any]) -> str:
    """What a row is counted as: its span, which the rows of pool "tokens" share, or itself."""
    return str(row.get("span", row["id"]))


class LabelBuilder(Protocol):
    """A source of labelled examples.

    Attributes:
        item_name: what a progress bar counts: "question", "article".
        unit_name: what a piece of work is called: "question", "cut".
        items: how many of them were read so far.
        total: how many there are at most, None when nobody knows.
        wrong_name: what a label of 0 is called.
        prompt_id: fingerprint of the prompt form, for the FeatureSpec.
        position: which tokens are read, for the FeatureSpec.
        balance_by: columns for each of whose values labels are balanced when that is asked for.
    """

    @property
    def item_name(self) -> str: ...

    @property
    def unit_name(self) -> str: ...

    @property
    def items(self) -> int: ...

    @property
    def total(self) -> int | None: ...

    @property
    def wrong_name(self) -> str: ...

    @property
    def prompt_id(self) -> str: ...

    @property
    def position(self) -> str: ...

    @property
    def balance_by(self) -> tuple[str, ...]: ...

    def units(self) -> Iterator[Any]:
        """The pieces of work, in an order that depends on the configuration alone; iterated once."""
        ...

    def unit_id(self, unit: Any) -> str:
        """The id of a piece of work, by which a resumed run knows that it is done."""
        ...

    def build(self, units: Sequence[Any]) -> Examples:
        """Generate for some units and label the result."""
        ...

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Figures for the manifest and lines to print, from all rows and what was left out."""
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
