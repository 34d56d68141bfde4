"""Lines of text files, and what could not be used of them."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from ..types import UserError

if TYPE_CHECKING:
    pass

#: Cases kept word for word; more are only counted, so that memory stays bounded.
KEPT = 1000


@dataclass
class LeftOut:
    """Cases that were left out; a subclass says what they are called.

    Attributes:
        listed: (name, reason) of the first :data:`KEPT` of them, each in one line.
        counts: how many by kind, which is the reason up to its first colon.
    """

    listed: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    noun: ClassVar[str]
    #: Kinds that :meth:`summary` names; None is all.
    kinds: ClassVar[int | None] = None

    def add(self, name: str, reason: str) -> None:
        if len(self.listed) < KEPT:
            self.listed.append((" ".join(name.split())[:200], " ".join(reason.split())[:300]))
        self.counts[reason.partition(":")[0]] += 1

    def __len__(self) -> int:
        return sum(self.counts.values())

    def summary(self) -> str:
        """How many by kind, the most frequent first: "3 missing, 1 too short"."""
        return ", ".join(f"{n} {kind}" for kind, n in self.counts.most_common(self.kinds))

    def lines(self, most: int = 5) -> list[str]:
        """The report at the end; no line when nothing was left out."""
        if not self.counts:
            return []
        shown = [f"  {name}: {reason}" for name, reason in self.listed[:most]]
        more = len(self) - len(shown)
        return [
            f"{len(self)} {self.noun}{' was' if len(self) == 1 else 's were'} left out: {self.summary()}",
            *shown,
            *([f"  and {more} more"] if more else []),
        ]


BadLine = Literal["error", "skip"]


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is not blank; ``.gz`` is unpacked.

    Raises:
        UserError: the file is not UTF-8 text, or cut short.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
