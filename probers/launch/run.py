"""A command with ``launch=``: its parts made by workers, then merged to the run."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..commands.compose import quote, request
from ..commands.main import load
from ..commands.merge import PartRun, gather, key_of
from ..commands.runs import read_state
from ..data.splits import PARTS, Partition
from ..types import UserError

#: Folder of the workers' files beside the parts; shells leave it out of ``parts/*``.
LOGS = ".launch"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """A run split into parts.

    Attributes:
        command: name of the command without "probers-".
        typed: its options, without the folder and the launcher.
        out: folder of the run, on a disk that every worker sees.
        count: number of parts.
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
        """The parts that are not finished, in order."""
        return [part for part in self.all if not self.finished(part)]

    def finished(self, part: Partition) -> bool:
        """Test that a part is complete with the same options; the command judges one with others."""
        try:
            found = PartRun.read(part.folder(Path(self.out)))
        except UserError:
            return False
        return bool(found.state["complete"]) and plain_options(found.typed) == self.typed

    def log(self, part: Partition) -> Path:
        """The file of a part's output."""
        return logs(self.out) / f"{part.number}of{part.count}.log"

    def merge_command(self) -> str:
        """The command line that merges the parts."""
        return f"probers-merge {Path(self.out) / PARTS}/*"

    def merge(self) -> Any:
        """Merge the finished parts; returns the command's result.

        Raises:
            UserError: they do not make one run, or not the requested one.
        """
        found = gather([part.folder(Path(self.out)) for part in self.all])
        # Another driver may be merging them.
        return found.merge([*self.typed, f"out={quote(self.out)}", "wait=true"])


def logs(out: str) -> Path:
    """The folder of the workers' files beside the parts."""
    return Path(out) / PARTS / LOGS


def plain_options(typed: Sequence[str]) -> tuple[str, ...]:
    """Drop the options that name the part, the folder and the launcher."""
    means = ("part", "out", "wait", "overwrite", "launch")
    return tuple(option for option in typed if key_of(option).partition(".")[0] not in means)


def count_begun(out: str) -> int | None:
    """Count the parts into which the run in a folder was split; None without one such split."""
    names = (path.name for path in (Path(out) / PARTS).glob("*of*"))
    counts = {int(found[1]) for name in names if (found := re.fullmatch(r"\d{1,6}of(\d{1,6})", name))}
    return counts.pop() if len(counts) == 1 else None


def run(command: str, settings: Any) -> Any:
    """Make the parts of a run and merge them; returns the command's result, or None where it does not wait.

    Raises:
        UserError: a request that cannot be split, a worker's refusal, or parts that do not make the run.
        RunError: a part failed repeatedly.
    """
    name = next(option.partition("=")[2] for option in settings.record["typed"] if key_of(option) == "launch")
    if settings.part is not None:
        raise UserError(
            f"part={settings.part} is one part, but launch={name} makes all: leave one out", "conflict"
        )
    if getattr(settings, "question", None) is not None:
        raise UserError(
            f"launch={name} splits many questions, but question= is one: leave it out", "conflict"
        )
    if settings.overwrite:
        raise UserError(
            f"overwrite=true would repeat finished parts, but launch={name} resumes them: choose another "
            "out, or remove the folder",
            "conflict",
        )
    if settings.out is None:
        raise UserError(
            f"launch={name} needs a folder on a disk that all workers see: add out=FOLDER", "missing-value"
        )
    typed, out = plain_options(settings.record["typed"]), str(settings.out)
    state = read_state(Path(out))
    if state is not None and state["complete"]:  # the command refuses another run
        return load(command)(request(command, [*typed, f"out={quote(out)}"]))
    launcher = settings.launch.make()
    parts = launcher.make(command, typed, out)
    if parts is None or not launcher.merge:
        if parts is not None:
            log.info("every part is there: %s", parts.merge_command())
        return None
    return parts.merge()
