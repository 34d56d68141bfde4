"""Some rows of a feature store, drawn by seed: the same ones however the rows lie in shards.

A row is drawn by a hash of its span, so that the draw needs one pass, holds no more
than what it keeps, and does not change when rows are added elsewhere. Where every
token of a span has a row (pool=tokens), the span counts once, with its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from probers.drawing import draw_key
from probers.manifest import damaged
from probers.store import FeatureStore


def stored_columns(store: FeatureStore) -> list[str]:
    """Names of the columns of the store's rows.

    Raises:
        UserError: a shard that cannot be read, or a store without rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = min(store.path.glob("shards/*.parquet"), default=None)
    if file is None:
        raise damaged(store.path, "shards", "has no rows")
    try:
        return list(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise damaged(store.path, f"shards/{file.name}", f"cannot be read ({error})") from error


def one_per_span(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The last token's row of each span, with the span's place in the seeded order in a column ``key``.

    Rows without a column ``span`` are spans of their own. The index tells where each row stood.
    """
    names = rows["id"] if "span" not in rows else rows["group"] + "\x1f" + rows["span"].astype(str)
    keyed = rows.assign(
        key=np.fromiter((draw_key("audit", seed, name) for name in names), np.uint64, len(rows))
    )
    if "token" in rows:
        keyed = keyed.sort_values("token", kind="stable")
    return keyed.drop_duplicates("key", keep="last").sort_index()


@dataclass(slots=True)
class Tally:
    """How often each value of a column occurs over all spans, and how many of those are wrong."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, values: pd.Series, wrong: pd.Series) -> None:
        """Count the spans of one shard; ``wrong`` is 1 where the text is."""
        for value, part in wrong.groupby(values.astype(str)):
            n, events = self.counts.get(str(value), (0, 0))
            self.counts[str(value)] = (n + len(part), events + int(part.sum()))

    @property
    def wrong(self) -> int:
        """The number of wrong ones."""
        return sum(events for _, events in self.counts.values())

    def figures(self) -> dict[str, Any]:
        """Number and share of wrong ones by value."""
        return {
            value: {"n": n, "wrong": round(events / n, 4)}
            for value, (n, events) in sorted(self.counts.items())
        }


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one pass over the small columns of a store found.

    Attributes:
        rows: row numbers in the store of the spans drawn, ascending.
        stored: number of rows of the store.
        spans: number of spans among them.
        tallies: label counts over all spans by each column asked for that is there.
        columns: names of the store's columns.
    """

    rows: np.ndarray
    stored: int
    spans: int
    tallies: dict[str, Tally]
    columns: tuple[str, ...]


def draw_rows(store: FeatureStore, *, seed: int, most: int, tally: Sequence[str] = ()) -> Drawn:
    """At most ``most`` spans of the store, and the label counts of all of them by some columns.

    Args:
        store: with all its shards, finished or not.
        seed: of the draw.
        most: how many spans to draw.
        tally: names of columns.

    Raises:
        UserError: a shard that cannot be read.
    """
    there = stored_columns(store)
    tallies = {name: Tally() for name in tally if name in there}
    wanted = [c for c in ("id", "group", "span", "token", "correct", *tallies) if c in there]
    keys, rows = np.empty(0, np.uint64), np.empty(0, np.int64)
    stored = spans = 0
    for table in store.tables(list(dict.fromkeys(wanted))):
        found = one_per_span(table, seed)
        for name, counts in tallies.items():
            counts.add(found[name], 1 - found["correct"])
        keys = np.r_[keys, found["key"].to_numpy()]
        rows = np.r_[rows, stored + found.index.to_numpy(dtype=np.int64)]
        if len(keys) > 2 * most:
            keys, rows = _first(keys, rows, most)
        stored, spans = stored + len(table), spans + len(found)
    rows = np.sort(_first(keys, rows, most)[1])
    return Drawn(rows, stored, spans, tallies, tuple(there))


def _first(keys: np.ndarray, rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(keys, kind="stable")[:most]
    return keys[order], rows[order]


def read_drawn(
    store: FeatureStore, drawn: Drawn, columns: Sequence[str], cuts: dict[str, slice]
) -> pd.DataFrame:
    """Columns of the drawn rows, in the order of ``drawn.rows``; only one shard is in memory at a time.

    Args:
        store: the store that was drawn from.
        drawn: as :func:`draw_rows` gave it.
        columns: those of them that the store has are read.
        cuts: which characters of a text column to keep.
    """
    parts, start = [], 0
    for table in store.tables([c for c in columns if c in drawn.columns]):
        first, last = np.searchsorted(drawn.rows, (start, start + len(table)))
        part = table.iloc[drawn.rows[first:last] - start].copy()
        for name, cut in cuts.items():
            if name in part:
                part[name] = [text[cut] for text in part[name]]
        parts.append(part)
        start += len(table)
    return pd.concat(parts, ignore_index=True)
