"""Division of a run into parts by hash, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..seeding import draw_key

T = TypeVar("T")

#: The folder of a run that holds the runs of its parts.
PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Partition:
    """One of ``count`` parts that a run is cut into.

    Attributes:
        number: from 1 to ``count``.
        count: 1 or more.
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Partition:
        """The part that is written ``i/n``.

        Raises:
            ValueError: it is not from 1/n to n/n.
        """
        found = re.fullmatch(r"([1-9]\d{0,5})/([1-9]\d{0,5})", text)
        if found is None or int(found[1]) > int(found[2]):
            raise ValueError(f"{text} is no part: write i/n, from 1/n to n/n")
        return cls(int(found[1]), int(found[2]))

    def owns(self, group: str) -> bool:
        """Tell whether a group belongs to this part."""
        return draw_key("part", 0, group) % self.count == self.number - 1

    def block(self, items: Sequence[T]) -> Sequence[T]:
        """This part of a sequence that is cut into as many stretches of like length as there are parts."""
        ends = [len(items) * k // self.count for k in range(self.count + 1)]
        return items[ends[self.number - 1] : ends[self.number]]

    def folder(self, out: Path) -> Path:
        """Name the folder of this part of the run in ``out``."""
        return out / PARTS / f"{self.number}of{self.count}"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
