"""What a source of labelled examples provides, and how both labels are made equally frequent in a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from probers.engine.model import CausalLM
from probers.prompts import PromptTemplate
from probers.seeding import draw_key
from probers.store.store import FeatureStore
from probers.types import Generation
from probers.uncertainty import rind_scores, signals

from ..audit.drawn import stored_columns


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


class LabelBuilder(ABC):
    """A source of labelled examples.

    Attributes:
        item_name: what a progress bar counts: "question", "article".
        unit_name: what a piece of work is called: "question", "cut".
        wrong_name: what a label of 0 is called.
        position: which tokens are read, for the FeatureSpec.
        balance_by: columns for each of whose values labels are balanced when that is asked for.
        lm: what generates.
        prompt: the form of its prompts; a chat prompt is bound to the model's own template.
    """

    item_name: ClassVar[str]
    unit_name: ClassVar[str]
    wrong_name: ClassVar[str]
    position: ClassVar[str]
    balance_by: ClassVar[tuple[str, ...]]
    lm: CausalLM
    prompt: PromptTemplate

    def __post_init__(self) -> None:
        if self.prompt.chat:
            self.prompt = self.prompt.bind(self.lm.tokenizer)

    @property
    @abstractmethod
    def items(self) -> int:
        """How many items were read so far."""

    @property
    @abstractmethod
    def total(self) -> int | None:
        """How many items there are at most, None when nobody knows."""

    @abstractmethod
    def units(self) -> Iterator[Any]:
        """The pieces of work, each with an ``id`` by which a resumed run knows that it is done.

        Their order depends on the configuration alone; iterated once.
        """

    @abstractmethod
    def build(self, units: Sequence[Any]) -> Examples:
        """Generate for some units and label the result."""

    @abstractmethod
    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Figures for the manifest and lines to print, from all rows and what was left out."""


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


_REASON = "balance: more of its label than of the other"

#: What a span is counted with: the values of the columns it is balanced by, and its label.
_Kind = tuple[tuple[str, ...], int]


def balance(store: FeatureStore, *, by: Sequence[str], seed: int) -> list[str]:
    """Drop examples drawn by ``seed`` until both labels are equally frequent.

    Rows of one span (pool "tokens") stay or go together. What goes joins what the shards left
    out. A shard is written anew whole or not at all, and doing it all again changes nothing,
    since of the more frequent label those with the smallest hashes stay: a run that was
    killed in between ends as one that was not.

    Args:
        by: columns; the labels are balanced for each of their values, "split" at least.

    Returns:
        Notes on what could not be balanced, for there was one label only.
    """
    drawn: dict[tuple[str, ...], dict[int, array[int]]] = defaultdict(lambda: {0: array("Q"), 1: array("Q")})
    name = "span" if "span" in stored_columns(store) else "id"
    for table in store.tables([name, "correct", *by]):
        spans = table.drop_duplicates(name)[[name, "correct", *by]]
        for span, correct, *values in spans.itertuples(index=False):
            drawn[tuple(values)][correct].append(draw_key("balance", seed, span))
    limits: dict[_Kind, int] = {}
    notes = []
    for values, keys in sorted(drawn.items()):
        least = min(map(len, keys.values()))
        if not least:
            kind = "right" if keys[1] else "wrong"
            notes.append(f"balance: all labels of {' '.join(values)} are {kind}, so they stay as they are")
            continue
        for correct, found in keys.items():
            if len(found) > least:
                limits[values, correct] = int(np.sort(np.frombuffer(found, np.uint64))[least])
    if limits:
        for index in range(store.next_shard):
            _thin(store, index, by, limits, seed)
    return notes


def _thin(store: FeatureStore, index: int, by: Sequence[str], limits: Mapping[_Kind, int], seed: int) -> None:
    """Write one shard without the spans whose hash reaches the limit of their kind."""
    rows, states, units, left_out = store.read_shard(index)
    keep, gone = [], {}
    for number, row in enumerate(rows):
        span = span_of(row)
        limit = limits.get((tuple(row[column] for column in by), row["correct"]))
        if limit is None or draw_key("balance", seed, span) < limit:
            keep.append(number)
        else:
            gone[span] = {"id": span, "reason": _REASON}
    if gone:
        kept = [rows[i] for i in keep]
        store.write_shard(index, kept, states[keep], units=units, left_out=[*left_out, *gone.values()])
