"""Rows of a feature store drawn by seed in one pass, independent of how the rows lie in shards.

A row is drawn by a hash of its span, so the draw does not change when rows are added elsewhere. If every
token of a span has a row (pool=tokens), the span counts once, with its last token. If the tokens have labels
of their own (unit=token), the marks and the text between them are the spans.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from probers.checksums import draw_key
from probers.store.files import damaged
from probers.store.store import FeatureStore


def stored_columns(store: FeatureStore) -> list[str]:
    """List the columns of the store's rows; UserError for a shard that cannot be read, or no row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = min(store.path.glob("shards/*.parquet"), default=None)
    if file is None:
        raise damaged(store.path, "shards", "has no rows")
    try:
        return list(pq.read_schema(file).names)
    except (pa.ArrowException, OSError) as error:
        raise damaged(store.path, f"shards/{file.name}", f"cannot be read ({error})") from error


#: Columns that assign labelled tokens to spans.
_MARKED = ("span", "mark", "token_wrong", "inside")


def by_mark(rows: pd.DataFrame) -> pd.DataFrame:
    """Assign judged tokens to their mark, or to the stretch between marks; leave other rows as given."""
    if not {*_MARKED} <= {*map(str, rows)}:
        return rows
    judged = rows[(rows["token_wrong"] >= 0) & (rows["inside"] >= 0)]
    spans = judged["span"] + "#" + judged["mark"].astype(str)
    return judged.assign(span=spans, correct=1 - judged["token_wrong"])


def one_per_span(rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Keep the last token's row of each span, with the span's place in the seeded order as column ``key``.

    Rows without a column ``span`` are their own spans. The index tells where each row stood.
    """
    rows = by_mark(rows)
    names = rows["id"] if "span" not in rows else rows["group"] + "\x1f" + rows["span"].astype(str)
    keyed = rows.assign(key=np.array([draw_key("audit", seed, name) for name in names], np.uint64))
    if "token" in rows:
        keyed = keyed.sort_values("token", kind="stable")
    return keyed.drop_duplicates("key", keep="last").sort_index()


#: Values of a column, each with its number of spans and of the wrong ones among them.
Tally = dict[str, tuple[int, int]]


def count_spans(tally: Tally, values: pd.Series, wrong: pd.Series) -> None:
    """Add the spans of one shard to a tally; ``wrong`` is 1 for a wrong text."""
    for value, part in wrong.groupby(values.astype(str)):
        n, events = tally.get(str(value), (0, 0))
        tally[str(value)] = (n + len(part), events + int(part.sum()))


@dataclass(frozen=True, slots=True)
class Drawn:
    """Row numbers of drawn spans, ascending, with the numbers of rows ``stored`` and of ``spans``.

    ``tallies`` count the labels of all spans by column; ``columns`` are those of the store.
    """

    rows: np.ndarray
    stored: int
    spans: int
    tallies: dict[str, Tally]
    columns: tuple[str, ...]


def draw_rows(store: FeatureStore, *, seed: int, most: int, tally: Sequence[str] = ()) -> Drawn:
    """Draw at most ``most`` spans of a store, and count the labels of all by the columns ``tally``."""
    there = stored_columns(store)
    tallies: dict[str, Tally] = {name: {} for name in tally if name in there}
    wanted = [c for c in ("id", "group", "token", "correct", *_MARKED, *tallies) if c in there]
    keys, rows = np.empty(0, np.uint64), np.empty(0, np.int64)
    stored = spans = 0
    for table in store.tables(list(dict.fromkeys(wanted))):
        chosen = one_per_span(table, seed)
        for name, counts in tallies.items():
            count_spans(counts, chosen[name], 1 - chosen["correct"])
        rows = np.r_[rows, stored + chosen.index.to_numpy(dtype=np.int64)]
        keys = np.r_[keys, chosen["key"].to_numpy()]
        smallest = np.argsort(keys, kind="stable")[:most]
        keys, rows = keys[smallest], rows[smallest]
        stored, spans = stored + len(table), spans + len(chosen)
    return Drawn(np.sort(rows), stored, spans, tallies, tuple(there))


def read_drawn(
    store: FeatureStore, drawn: Drawn, columns: Sequence[str], cuts: dict[str, slice]
) -> pd.DataFrame:
    """Read the existing ones of some columns in the order of ``drawn.rows``, one shard at a time.

    ``cuts`` tells which characters of a text column to keep.
    """
    parts, start = [], 0
    for table in store.tables([c for c in dict.fromkeys([*columns, *_MARKED]) if c in drawn.columns]):
        first, last = np.searchsorted(drawn.rows, (start, start + len(table)))
        part = by_mark(table.iloc[drawn.rows[first:last] - start]).copy()
        for name, cut in cuts.items():
            if name in part:
                part[name] = [text[cut] for text in part[name]]
        parts.append(part)
        start += len(table)
    return pd.concat(parts, ignore_index=True)


#: Reason of a case whose two entities were compared without a verdict.
UNDECIDED = "undecided"


def draw(
    tables: FeatureStore | Iterable[pd.DataFrame], count: int = 50, seed: int = 0
) -> list[dict[str, Any]]:
    """Draw rows so that both labels and every match stage appear, in a seeded order.

    Each label gets half of the rows, as far as there are any. Within a label every match stage gets one, and
    the others are dealt by the frequency of the stages; the rarest stages are missing if ``count`` is too
    small. The rows may come in parts, with the columns of :data:`probers.store.files.COLUMNS`.
    """
    strata: dict[tuple[int, str], pd.DataFrame] = {}
    sizes: Counter[tuple[int, str]] = Counter()
    for table in tables.tables() if isinstance(tables, FeatureStore) else tables:
        spans = one_per_span(table, seed)
        stages = spans["match_stage"] if "match_stage" in spans else pd.Series("", spans.index)
        for (label, stage), part in spans.groupby([spans["correct"], stages]):
            key = (int(str(label)), str(stage))
            sizes[key] += len(part)
            parts = [strata[key], part] if key in strata else [part]
            strata[key] = pd.concat(parts).sort_values("key", kind="stable").head(count)
    if not strata:
        return []
    shares = _shares(sizes, count)
    chosen = [part.head(shares[key]) for key, part in strata.items()]
    rows = pd.concat(chosen).sort_values("key", kind="stable").drop(columns="key")
    return [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]


def draw_undecided(
    cases: Iterable[Mapping[str, Any]], count: int = 15, seed: int = 0
) -> list[Mapping[str, Any]]:
    """Draw at most ``count`` undecided cases of :meth:`FeatureStore.left_out`."""
    undecided = (case for case in cases if case["reason"] == UNDECIDED)
    return heapq.nsmallest(count, undecided, key=lambda case: draw_key("sample", seed, str(case["id"])))


def _shares(sizes: Mapping[tuple[int, str], int], count: int) -> dict[tuple[int, str], int]:
    """Allot rows to each (label, stage): halves by label, then at least one each and by size."""
    stages: dict[int, dict[tuple[int, str], int]] = {}
    for key, size in sizes.items():
        stages.setdefault(key[0], {})[key] = size
    totals = {label: sum(each.values()) for label, each in stages.items()}
    halves = _deal(totals, count, dict.fromkeys(totals, 1))
    return {key: n for label, each in stages.items() for key, n in _deal(each, halves[label], each).items()}


def _deal(sizes: Mapping[Any, int], count: int, weights: Mapping[Any, int]) -> dict[Any, int]:
    """Deal seats by weight (Webster's method): no part above its size, and one for each while they last."""
    dealt = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        open_ = [key for key in sizes if dealt[key] < sizes[key]]
        # Parts without a seat come before parts with one; among them the largest comes first.
        best = max(open_, key=lambda key: (dealt[key] == 0, weights[key] / (2 * dealt[key] + 1), str(key)))
        dealt[best] += 1
    return dealt
