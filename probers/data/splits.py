"""Membership of texts and questions: parts of a run, splits by group hash, seeded samples, training records.

Hashes of a question's group and id decide splits and samples of large datasets, so that the official
file and the copy on the Hub give the same ones, in any order. Shares are met on average.
"""

from __future__ import annotations

import heapq
import random
import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias, TypeVar

from ..checksums import draw_key, sealed, unsealed
from ..files import digest, write_text
from ..types import SPLITS, Question, UserError

T = TypeVar("T")

PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Partition:
    """Part ``number``, from 1, of the ``count`` parts of a run, the same on every machine."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Partition:
        """Read ``i/n``; a ValueError unless it is from 1/n to n/n."""
        numbers = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if numbers is None or int(numbers[1]) > int(numbers[2]):
            raise ValueError(f"{text} is not a part: write i/n, from 1/n to n/n")
        return cls(int(numbers[1]), int(numbers[2]))

    def owns(self, group: str) -> bool:
        return draw_key("part", 0, group) % self.count == self.number - 1

    def block(self, items: Sequence[T]) -> Sequence[T]:
        """Return this part of a sequence cut into stretches of similar length."""
        start, end = (len(items) * k // self.count for k in (self.number - 1, self.number))
        return items[start:end]

    def folder(self, out: Path) -> Path:
        return out / PARTS / f"{self.number}of{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


#: Names of splits in files of others.
SPLIT_NAMES = {"dev": "validation", "valid": "validation", "val": "validation"} | {s: s for s in SPLITS}
#: Shares of the splits, for training, validation and testing.
SHARES = (0.6, 0.15, 0.25)


def limited(items: list[T], limit: int | None, seed: int) -> list[T]:
    """Return ``limit`` items drawn by ``seed``, in the order of the draw, or all in their own order."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    shuffled = list(items)
    random.Random(f"limit:{seed}").shuffle(shuffled)
    return shuffled[:limit]


def deal(groups: Sequence[T], shares: Sequence[float] = SHARES) -> dict[T, str]:
    """Deal groups to splits in their order, in these shares to within one group."""
    ends = [round(upto * len(groups)) for upto in accumulate(shares)]
    parts = zip(SPLITS, [0, *ends], ends, strict=False)
    return {group: name for name, start, end in parts for group in groups[start:end]}


class Splits:
    """Dealer of groups to splits by hash: with all groups' keys in exact shares, else on average."""

    def __init__(self, seed: int, keys: array[int] | None = None) -> None:
        import numpy as np

        self.seed = seed
        self._ends = [round(upto * 2**64) for upto in accumulate(SHARES)]
        if keys:
            unique = np.unique(np.frombuffer(keys, dtype=np.uint64))
            ranks = [round(upto * len(unique)) for upto in accumulate(SHARES)]
            self._ends = [int(unique[rank]) if rank < len(unique) else 2**64 for rank in ranks]

    def key(self, group: str) -> int:
        """Hash a group to a number below 2**64, which decides its split."""
        return draw_key("split", self.seed, group)

    def of_key(self, key: int) -> str:
        """Return the split of a group by its hash."""
        return SPLITS[bisect_right(self._ends, key)]

    def __call__(self, group: str) -> str:
        return self.of_key(self.key(group))


#: Number of questions to draw: of all, or of each named split; None for all of them.
Limit: TypeAlias = int | Mapping[str, int | None] | None
#: Limits by split; None is the key for all questions.
Parts: TypeAlias = Mapping[str | None, int | None]
#: Predicate of a question, with group and split, that must not be asked; it then counts nowhere else.
Unfit = Callable[[Question], bool]


@dataclass(frozen=True)
class Drawn:
    """Questions in the order of the draw, so that a smaller limit is a part of a larger one.

    ``splits`` counts the usable questions of each split, ``dealt`` those that had no split of their own, and
    ``seen`` those left out because something was trained on them.
    """

    questions: list[Question]
    splits: dict[str, int]
    dealt: int
    seen: int

    def available(self, split: str | None) -> int:
        """Count the usable questions of a split; None means all."""
        return sum(self.splits.values()) if split is None else self.splits.get(split, 0)


def parts_of(limit: Limit, split: str | None) -> Parts:
    """List the limit of each part of a set to draw from."""
    if isinstance(limit, Mapping):
        return {name: limit[name] for name in SPLITS if name in limit}
    return {split: limit}


def draw_stream(
    questions: Iterable[Question], parts: Parts, *, seed: int, deal_splits: bool, unfit: Unfit
) -> Drawn:
    """Draw from a stream in any order, holding at most the requested number of questions.

    Questions without a split are dealt one, or with ``deal_splits=False`` all become test questions.
    """
    splits: Counter[str] = Counter()
    dealt = seen = 0
    side_of = Splits(seed)
    # Heaps with the largest hash on top; without a limit, lists in the stream's order.
    heaps: dict[str | None, list[tuple[int, int, Question]]] = {name: [] for name in parts}
    for number, question in enumerate(questions):
        group = question.group or question.id
        side = question.split or (side_of(group) if deal_splits else "test")
        dealt += deal_splits and not question.split
        name = side if side in heaps else None
        whole = replace(question, group=group, split=side)
        if name in heaps and unfit(whole):
            seen += 1
            continue
        splits[side] += 1
        if name in heaps:
            most = parts[name]
            # The first question of an id is kept; two questions are never compared.
            entry = (0 if most is None else -draw_key("limit", seed, whole.id), -number, whole)
            full = most is not None and len(heaps[name]) >= most
            (heapq.heappushpop if full else heapq.heappush)(heaps[name], entry)
    drawn = [question for part in heaps.values() for _, _, question in sorted(part, reverse=True)]
    return Drawn(drawn, dict(splits), dealt, seen)


def draw_whole(
    questions: Iterable[Question], parts: Parts, *, seed: int, deal_splits: bool, unfit: Unfit
) -> Drawn:
    """Draw like :func:`draw_stream` from questions held at once, in their order and with exact shares.

    ``deal_splits`` only matters where no question has a split.
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
    fit = [q for q in held if not ((q.split in parts or None in parts) and unfit(q))]
    drawn: list[Question] = []
    for name, most in parts.items():
        drawn += limited(fit if name is None else [q for q in fit if q.split == name], most, seed)
    return Drawn(drawn, dict(Counter(q.split for q in fit)), dealt, len(held) - len(fit))


#: Name of the file beside trained artefacts.
SEEN = "seen.json"
#: Data sets whose groups are articles that also label ``--source wiki``.
_SAME_GROUPS = {"completion": "wiki", "judged": "wiki"}


@dataclass(frozen=True, slots=True)
class Seen:
    """Hashes, by split, of the groups and question texts used to make something."""

    splits: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, splits: Mapping[str, Iterable[tuple[str, str, str]]]) -> Seen:
        """Collect data set, group and question ("" for none) of every text, by split."""
        return cls({s: frozenset(m for text in texts for m in _marks(*text)) for s, texts in splits.items()})

    @classmethod
    def read(cls, folder: Path) -> Seen | None:
        """Read the texts seen by the prober or classifier in a folder, if recorded; UserError if damaged."""
        try:
            marks = unsealed(folder / SEEN)["splits"]
            return cls({split: frozenset(map(str, marks.get(split, ()))) for split in SPLITS})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / SEEN} is damaged ({error}): train again", "damaged") from error

    def save(self, folder: Path) -> None:
        splits = {split: sorted(marks) for split, marks in self.splits.items()}
        write_text(folder / SEEN, sealed({"format": "probers-seen", "splits": splits}))

    def __or__(self, other: Seen) -> Seen:
        none: frozenset[str] = frozenset()
        return Seen({s: self.splits.get(s, none) | other.splits.get(s, none) for s in SPLITS})

    def split_of(self, question: Question) -> str:
        """Return the first split that the question is in, "" for none."""
        return self.side(question.dataset, question.group or question.id, question.question)

    def side(self, dataset: str, group: str, text: str) -> str:
        """Return the first split that a group or the text of a question is in, "" for none."""
        marks = {*_marks(dataset, group, text)}
        return next((split for split in SPLITS if marks & self.splits.get(split, frozenset())), "")


def _marks(dataset: str, group: str, question: str) -> Iterable[str]:
    from ..evaluation.answers import normalize_answer  # only here: the commands' settings know Partition

    if group:
        yield digest(f"group\n{_SAME_GROUPS.get(dataset, dataset)}\n{group}")
    if text := normalize_answer(question):
        yield digest(f"question\n{text}")
