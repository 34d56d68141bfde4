"""Deterministic split assignment by group hash, and seeded sampling of questions.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias, TypeVar

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
        """Hash of a group, below 2**64, which decides its split."""
        return draw_key("split", self.seed, group)

    def __call__(self, group: str) -> str:
        """The split of a group."""
        return SPLITS[bisect_right(self._ends, self.key(group))]


#: How many questions are drawn: of all, or of each split named; None is all of them.
Limit: TypeAlias = int | Mapping[str, int | None] | None


@dataclass(frozen=True)
class Drawn:
    """Result of a draw.

    Attributes:
        questions: at most the number asked for, in the order of the draw (without a limit in the
            file's), so that a smaller limit is a part of a larger one; with a limit for each
            split, one split after the other.
        splits: how many usable questions each split has.
        dealt: how many of them were dealt to it, for they came without a split.
        seen: how many of the wanted were left out because something was trained on them.
    """

    questions: list[Question]
    splits: dict[str, int]
    dealt: int
    seen: int

    def available(self, split: str | None) -> int:
        """Count the usable questions of a split, None for all."""
        return sum(self.splits.values()) if split is None else self.splits.get(split, 0)


#: Whether a question, with group and split, may not be asked; it then counts nowhere else.
Unfit = Callable[[Question], bool]


def parts_of(limit: Limit, split: str | None) -> dict[str | None, int | None]:
    """Map each part of a set (a split, or None for all) to its limit."""
    if isinstance(limit, Mapping):
        return {name: limit[name] for name in SPLITS if name in limit}
    return {split: limit}


def draw_stream(
    questions: Iterable[Question], *, limit: Limit, split: str | None, seed: int, deal_splits: bool,
    unfit: Unfit,
) -> Drawn:  # fmt: skip
    """Draw from a stream, holding as many questions as are asked for at most.

    Args:
        questions: in any order, which does not matter to what is drawn.
        limit: how many, of all or of each split named.
        split: only those of this split, where ``limit`` names none.
        seed: of the draw and of dealing.
        deal_splits: deal the questions that have no split; False takes them for test questions.
        unfit: which are not drawn.
    """
    splits: Counter[str] = Counter()
    dealt = seen = 0
    side_of = Splits(seed)
    parts = {name: _Smallest(most, seed) for name, most in parts_of(limit, split).items()}
    for question in questions:
        group = question.group or question.id
        side = question.split or (side_of(group) if deal_splits else "test")
        dealt += deal_splits and not question.split
        part = parts.get(side) or parts.get(None)
        whole = replace(question, group=group, split=side)
        if part is not None and unfit(whole):
            seen += 1
            continue
        splits[side] += 1
        if part is not None:
            part.add(whole)
    drawn = [question for part in parts.values() for question in part.taken()]
    return Drawn(drawn, dict(splits), dealt, seen)


class _Smallest:
    """The questions with the smallest hashes of a stream; with no limit all of them, in its order."""

    def __init__(self, most: int | None, seed: int) -> None:
        self._most, self._seed = most, seed
        self._all: list[Question] = []
        self._kept: list[tuple[int, int, Question]] = []  # a heap, the largest hash on top
        self._count = 0

    def add(self, question: Question) -> None:
        if self._most is None:
            self._all.append(question)
            return
        self._count += 1
        # Of questions with one id the first is kept; no two questions are ever compared.
        entry = (-draw_key("limit", self._seed, question.id), -self._count, question)
        if len(self._kept) < self._most:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)

    def taken(self) -> list[Question]:
        """The kept questions, by hash."""
        return self._all or [question for _, _, question in sorted(self._kept, reverse=True)]


def draw_whole(
    questions: Iterable[Question], *, limit: Limit, split: str | None, seed: int, deal_splits: bool,
    unfit: Unfit,
) -> Drawn:  # fmt: skip
    """Draw from questions that are held at once; the shares of splits are exact to within one group.

    Args:
        questions: their order decides, with ``seed``, what is drawn.
        limit: as of :func:`draw_stream`.
        split: as of :func:`draw_stream`.
        seed: as of :func:`draw_stream`.
        deal_splits: deal the questions that have no split; False takes them for test questions
            where no question has one.
        unfit: as of :func:`draw_stream`.
    """
    held = [replace(q, group=q.group or q.id) for q in questions]
    dealt = sum(not q.split for q in held)
    if deal_splits or any(q.split for q in held):
        groups = sorted({q.group for q in held if not q.split})
        random.Random(f"split:{seed}").shuffle(groups)
        sides = deal(groups)
        held = [replace(q, split=q.split or sides[q.group]) for q in held]
    else:
        held, dealt = [replace(q, split="test") for q in held], 0
    parts = parts_of(limit, split)
    fit = [q for q in held if not ((q.split in parts or None in parts) and unfit(q))]
    drawn: list[Question] = []
    for name, most in parts.items():
        drawn += limited(fit if name is None else [q for q in fit if q.split == name], most, seed)
    return Drawn(drawn, dict(Counter(q.split for q in fit)), dealt, len(held) - len(fit))
