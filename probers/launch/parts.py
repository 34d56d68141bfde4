"""The parts that a run is made of: which are left, what makes one, and the run they become."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..commands.compose import quote
from ..commands.merge import PartRun, gather, key_of
from ..data.partition import PARTS, Partition
from ..types import UserError

#: What workers write beside the parts; shells leave it out of ``parts/*``.
LOGS = ".launch"


@dataclass(frozen=True)
class Parts:
    """A run in parts.

    Attributes:
        command: as in probers-NAME.
        typed: its options, without where it is written and how it is launched.
        out: the folder of the run, on a disk that every worker sees.
        count: how many parts.
    """

    command: str
    typed: tuple[str, ...]
    out: str
    count: int

    @property
    def all(self) -> list[Partition]:
        return [Partition(number, self.count) for number in range(1, self.count + 1)]

    @property
    def left(self) -> list[Partition]:
        """Those that are not finished, in their order."""
        return [part for part in self.all if not self.finished(part)]

    def finished(self, part: Partition) -> bool:
        """Whether a part is there, typed as now; one that was typed otherwise its command has to judge."""
        try:
            found = PartRun.read(part.folder(Path(self.out)))
        except UserError:
            return False
        return bool(found.state["complete"]) and plain_options(found.typed) == self.typed

    def log(self, part: Partition) -> Path:
        """Where the worker of a part writes what the command prints."""
        return logs(self.out) / f"{part.number}of{part.count}.log"

    def merge_command(self) -> str:
        """What is typed to make the run of them."""
        return f"probers-merge {Path(self.out) / PARTS}/*"

    def merge(self) -> Any:
        """Make the run of all parts, which are finished; returns what the command returns.

        Raises:
            UserError: they do not make one run, or not the one that is asked for.
        """
        found = gather([part.folder(Path(self.out)) for part in self.all])
        # Another driver may be merging them.
        return found.merge([*self.typed, f"out={quote(self.out)}", "wait=true"])


def logs(out: str) -> Path:
    """The folder of what workers write besides the parts themselves."""
    return Path(out) / PARTS / LOGS


def plain_options(typed: Sequence[str]) -> tuple[str, ...]:
    """Options without those that say which part, where, and by which means."""
    means = ("part", "out", "wait", "overwrite", "launch")
    return tuple(option for option in typed if key_of(option).partition(".")[0] not in means)


def count_begun(out: str) -> int | None:
    """How many parts the run in a folder was cut into; None where none is begun, or runs of several cuts."""
    names = (path.name for path in (Path(out) / PARTS).glob("*of*"))
    counts = {int(found[1]) for name in names if (found := re.fullmatch(r"\d{1,6}of(\d{1,6})", name))}
    return counts.pop() if len(counts) == 1 else None
