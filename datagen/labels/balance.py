"""Undersampling of the more frequent label, for every split (and condition) by itself."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from probers.seeding import draw_key
from probers.store.store import FeatureStore

from ..audit.drawn import stored_columns
from .base import span_of

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
