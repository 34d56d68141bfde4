"""On which side of a split each group stands, and which questions are asked: seeded, the same anywhere.

The large datasets are read as a stream and keep no more questions than are asked for.
Both choices are then made from hashes of a question's id and group, so that neither
depends on the file's order or on what else is in it: the official file and the copy on
the Hub give the same questions and the same splits. Shares of splits are met on average.
"""

from __future__ import annotations

import heapq
import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar

from ..seeding import draw_key
from ..types import SPLITS, Question, UserError

T = TypeVar("T")

#: What is trained, validated and tested on.
SHARES = (0.6, 0.15, 0.25)


def limited(items: list[T], limit: int | None, seed: int) -> list[T]:
    """``limit`` items drawn by ``seed``, in the order of the draw; all in theirs when there are no more."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    order = list(range(len(items)))
    random.Random(f"limit:{seed}").shuffle(order)
    return [items[i] for i in order[:limit]]


def deal(groups: Sequence[T], shares: Sequence[float] = SHARES) -> dict[T, str]:
    """A split per group: the first groups are trained on, and so on, in these shares to within one group."""
    ends = [round(upto * len(groups)) for upto in accumulate(shares)]
    parts = zip(SPLITS, [0, *ends], ends, strict=False)
    return {group: name for name, start, end in parts for group in groups[start:end]}


class Splits:
    """Deals groups to splits by their hash, so that one group is always on one side.

    Given all groups' keys the shares are exact to within one group; without, they are
    met on average, which needs no memory and no second pass.
    """

    def __init__(self, seed: int, keys: array[int] | None = None) -> None:
        import numpy as np

        self.seed = seed
        self._ends = [round(upto * 2**64) for upto in accumulate(SHARES)]
        if keys:
            unique = np.unique(np.frombuffer(keys, dtype=np.uint64))
            ranks = [round(upto * len(unique)) for upto in accumulate(SHARES)]
            self._ends = [int(unique[rank]) if rank < len(unique) else 2**64 for rank in ranks]

    def key(self, group: str) -> int:
        """What decides about a group, below 2**64."""
        return draw_key("split", self.seed, group)

    def __call__(self, group: str) -> str:
        """The split of a group."""
        return SPLITS[bisect_right(self._ends, self.key(group))]


@dataclass(frozen=True)
class Drawn:
    """What was drawn.

    Attributes:
        questions: at most the number asked for, in the order of the draw (without a limit in the
            file's), so that a smaller limit is a part of a larger one.
        available: how many there were to draw from, which are those in the split asked for.
        splits: how many usable questions each split has.
        seen: how many of the split were left out because something was trained on them.
    """

    questions: list[Question]
    available: int
    splits: dict[str, int]
    seen: int


#: Whether a question, with group and split, may not be asked.
Unfit = Callable[[Question], bool]


def draw_stream(
    questions: Iterable[Question], *, limit: int | None, split: str | None, seed: int, unfit: Unfit
) -> Drawn:
    """Draw from a stream, holding ``limit`` questions at most."""
    splits: Counter[str] = Counter()
    seen = 0
    side_of = Splits(seed)

    def placed() -> Iterator[Question]:
        nonlocal seen
        for question in questions:
            group = question.group or question.id
            side = question.split or side_of(group)
            splits[side] += 1
            if split in (None, side):
                whole = replace(question, group=group, split=side)
                if unfit(whole):
                    seen += 1
                else:
                    yield whole

    if limit is None:
        drawn = list(placed())
    else:
        drawn = heapq.nsmallest(limit, placed(), key=lambda q: draw_key("limit", seed, q.id))
    available = sum(splits.values()) if split is None else splits[split]
    return Drawn(drawn, available - seen, dict(splits), seen)


def draw_whole(
    questions: Iterable[Question], *, limit: int | None, split: str | None, seed: int, unfit: Unfit
) -> Drawn:
    """Draw from questions that are held at once; the shares of splits are exact to within one group."""
    held = [replace(q, group=q.group or q.id) for q in questions]
    groups = sorted({q.group for q in held if not q.split})
    random.Random(f"split:{seed}").shuffle(groups)
    sides = deal(groups)
    held = [replace(q, split=q.split or sides[q.group]) for q in held]
    splits = Counter(q.split for q in held)
    pool = held if split is None else [q for q in held if q.split == split]
    fit = [q for q in pool if not unfit(q)]
    return Drawn(limited(fit, limit, seed), len(fit), dict(splits), len(pool) - len(fit))
