"""A few labelled rows drawn by seed so that both labels and every match stage appear among them."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from probers.drawing import draw_key
from probers.store import FeatureStore

from .drawn import one_per_span

#: The reason of a case whose two entities were compared without a verdict.
UNDECIDED = "undecided"


def draw(
    tables: FeatureStore | Iterable[pd.DataFrame], count: int = 50, seed: int = 0
) -> list[dict[str, Any]]:
    """Rows drawn by seed so that both labels and every match stage appear, in a seeded order.

    Each label has half of them, as far as there are any; within a label every match stage has
    one, and the others are dealt by how often the stages occur. One pass; no more rows are kept
    than ``count`` for each label and stage. A span with a row per token counts once.

    Args:
        tables: a store, or its rows in parts, with the columns of :data:`probers.store.COLUMNS`.
        count: how many; with fewer than there are labels and stages the rarest stages are missing.
        seed: of the draw.

    Raises:
        UserError: a shard that cannot be read.
    """
    strata: dict[tuple[int, str], pd.DataFrame] = {}
    sizes: Counter[tuple[int, str]] = Counter()
    for table in tables.tables() if isinstance(tables, FeatureStore) else tables:
        found = one_per_span(table, seed)
        stages = found["match_stage"] if "match_stage" in found else pd.Series("", found.index)
        for (label, stage), part in found.groupby([found["correct"], stages]):
            key = (int(str(label)), str(stage))
            sizes[key] += len(part)
            kept = [strata[key], part] if key in strata else [part]
            strata[key] = pd.concat(kept).sort_values("key", kind="stable").head(count)
    shares = _shares(sizes, count)
    chosen = [part.head(shares[key]) for key, part in strata.items()]
    if not chosen:
        return []
    rows = pd.concat(chosen).sort_values("key", kind="stable").drop(columns="key")
    return [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]


def draw_undecided(
    cases: Iterable[Mapping[str, Any]], count: int = 15, seed: int = 0
) -> list[Mapping[str, Any]]:
    """At most ``count`` of what was left out as undecided, drawn by seed; the others are passed over.

    Args:
        cases: as :meth:`FeatureStore.left_out` gives them, with ``id`` and ``reason``.
        count: how many.
        seed: of the draw.
    """
    undecided = (case for case in cases if case["reason"] == UNDECIDED)
    return heapq.nsmallest(count, undecided, key=lambda case: draw_key("sample", seed, str(case["id"])))


def _shares(sizes: Mapping[tuple[int, str], int], count: int) -> dict[tuple[int, str], int]:
    """How many rows of each (label, stage): halves by label, then at least one and by size."""
    by_label: dict[int, dict[tuple[int, str], int]] = defaultdict(dict)
    for key, size in sizes.items():
        by_label[key[0]][key] = size
    totals = {label: sum(found.values()) for label, found in by_label.items()}
    halves = _deal(totals, count, dict.fromkeys(totals, 1.0))
    shares: dict[tuple[int, str], int] = {}
    for label, found in by_label.items():
        shares |= _deal(found, halves[label], {key: float(size) for key, size in found.items()})
    return shares


def _deal(sizes: Mapping[Any, int], count: int, weights: Mapping[Any, float]) -> dict[Any, int]:
    """``count`` seats among parts by weight, none more than its size, one for each as far as they go.

    Each next seat goes where a seat stands for most weight (Webster's method), so parts that
    are used up leave theirs to the others.
    """
    dealt = dict.fromkeys(sizes, 0)
    for _ in range(min(count, sum(sizes.values()))):
        open_ = [key for key in sizes if dealt[key] < sizes[key]]
        # An empty part comes before every part that has a seat; the largest of them first.
        best = max(open_, key=lambda key: (dealt[key] == 0, weights[key] / (2 * dealt[key] + 1), str(key)))
        dealt[best] += 1
    return dealt
