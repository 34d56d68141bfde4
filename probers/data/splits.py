"""Which questions are asked, and on which side of the split each stands: seeded, and the same anywhere.

The large datasets are read as a stream and keep no more questions than are asked for.
Both choices are then made from hashes of a question's id and group, so that neither
depends on the file's order or on what else is in it: the official file and the copy on
the Hub give the same questions and the same splits. Shares of splits are met on average.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from ..seeding import draw_key
from ..types import Question, UserError

if TYPE_CHECKING:
    pass

T = TypeVar("T")

SPLIT_SHARES = (("train", 0.6), ("validation", 0.15), ("test", 0.25))


def limited(items: list[T], limit: int | None, seed: int) -> list[T]:
    """``limit`` items drawn by ``seed``, in the order of the draw; all in theirs when there are no more."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    order = list(range(len(items)))
    random.Random(f"limit:{seed}").shuffle(order)
    return [items[i] for i in order[:limit]]


def dealt(keys: list[str], seed: int) -> dict[str, str]:
    """A split per group key, in the shares of SPLIT_SHARES to within one group."""
    groups = sorted(set(keys))
    random.Random(f"split:{seed}").shuffle(groups)
    sides: dict[str, str] = {}
    upto, start = 0.0, 0
    for name, share in SPLIT_SHARES:
        upto += share
        end = round(upto * len(groups))
        sides.update(dict.fromkeys(groups[start:end], name))
        start = end
    return sides


@dataclass(frozen=True)
class Drawn:
    """What was drawn.

    Attributes:
        questions: at most the number asked for, in the order of the draw (without a limit in the
            file's), so that a smaller limit is a part of a larger one.
        available: how many there were to draw from, which are those in the split asked for.
        splits: how many usable questions each split has.
    """

    questions: list[Question]
    available: int
    splits: dict[str, int]


def split_of(group: str, seed: int) -> str:
    """The split of a group, with the probabilities of SPLIT_SHARES."""
    place, upto = draw_key("split", seed, group) / 2**64, 0.0
    for name, share in SPLIT_SHARES:
        upto += share
        if place < upto:
            return name
    return SPLIT_SHARES[-1][0]


def draw_stream(questions: Iterable[Question], *, limit: int | None, split: str | None, seed: int) -> Drawn:
    """Draw from a stream, holding ``limit`` questions at most."""
    kept: list[tuple[int, int, Question]] = []
    every: list[Question] = []
    splits: Counter[str] = Counter()
    order = count()
    for question in questions:
        group = question.group or question.id
        side = question.split or split_of(group, seed)
        splits[side] += 1
        if split is not None and side != split:
            continue
        placed = replace(question, group=group, split=side)
        if limit is None:
            every.append(placed)
            continue
        entry = (-draw_key("limit", seed, question.id), -next(order), placed)
        if len(kept) < limit:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    available = sum(splits.values()) if split is None else splits[split]
    return Drawn(every or [q for _, _, q in sorted(kept, reverse=True)], available, dict(splits))


def draw_whole(questions: Iterable[Question], *, limit: int | None, split: str | None, seed: int) -> Drawn:
    """Draw from questions that are held at once; the shares of splits are exact to within one group."""
    held = [replace(q, group=q.group or q.id) for q in questions]
    sides = dealt([q.group for q in held if not q.split], seed)
    held = [replace(q, split=q.split or sides[q.group]) for q in held]
    splits = Counter(q.split for q in held)
    pool = held if split is None else [q for q in held if q.split == split]
    return Drawn(limited(pool, limit, seed), len(pool), dict(splits))
