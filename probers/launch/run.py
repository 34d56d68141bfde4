"""A command with ``launch=``: its parts, the workers that make them, one progress bar, and the merged run.

Workers and driver exchange plain text only.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..commands import main
from ..commands.compose import quote, request
from ..commands.inputs import keep_model
from ..commands.merge import PartRun, gather, key_of
from ..commands.runs import listening, read_state
from ..data.splits import PARTS, Partition
from ..types import RunError, UserError

#: Folder of the workers' files beside the parts; hidden from ``parts/*`` in shells.
LOGS = ".launch"
#: Outcomes of a part.
DONE, BUSY, REFUSED, FAILED = "done", "busy", "refused", "failed"
#: Commands with a single progress bar, which gives the share of the part.
_ONE_BAR = ("datagen", "rag")
_STATE_OFTEN = 1.0  # seconds between two writes of a part's progress
_LOG_OFTEN = "10"  # seconds between two lines of a bar in a log
_BAR_OFTEN, _BAR_SELDOM = 0.5, 30.0  # seconds between two updates of the bar, on a terminal and in a file
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} parts [{elapsed}{postfix}]"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """A run of a command split into parts: its options without folder and launcher, and its folder."""

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
        """Tell whether a part is complete with the same options; the command judges one with others."""
        try:
            found = PartRun.read(part.folder(Path(self.out)))
        except UserError:
            return False
        return bool(found.state["complete"]) and plain_options(found.typed) == self.typed

    def log(self, part: Partition) -> Path:
        """Return the file of a part's output."""
        return logs(self.out) / f"{part.number}of{part.count}.log"

    def state(self, part: Partition) -> Path:
        """Return the file of a part's progress."""
        return self.log(part).with_suffix(".json")

    def merge_command(self) -> str:
        """Return the command line that merges the parts."""
        return f"probers-merge {Path(self.out) / PARTS}/*"

    def merge(self) -> Any:
        """Merge the finished parts, also while another driver does; return the command's result."""
        found = gather([part.folder(Path(self.out)) for part in self.all])
        return found.merge([*self.typed, f"out={quote(self.out)}", "wait=true"])


def logs(out: str) -> Path:
    """Return the folder of the workers' files beside the parts."""
    return Path(out) / PARTS / LOGS


def plain_options(typed: Sequence[str]) -> tuple[str, ...]:
    """Drop the options of the part, the folder and the launcher."""
    means = ("part", "out", "wait", "overwrite", "launch")
    return tuple(option for option in typed if key_of(option).partition(".")[0] not in means)


def count_begun(out: str) -> int | None:
    """Count the parts of the split run in a folder; None unless there is exactly one split."""
    names = (path.name for path in (Path(out) / PARTS).glob("*of*"))
    counts = {int(found[1]) for name in names if (found := re.fullmatch(r"\d{1,6}of(\d{1,6})", name))}
    return counts.pop() if len(counts) == 1 else None


def run(command: str, settings: Any) -> Any:
    """Make the parts of a run and merge them; return the command's result, None without waiting."""
    name = next(option.partition("=")[2] for option in settings.record["typed"] if key_of(option) == "launch")
    if settings.part is not None:
        raise UserError(f"launch={name} makes all parts: leave part={settings.part} out", "conflict")
    if getattr(settings, "question", None) is not None:
        raise UserError(f"launch={name} splits many questions: leave question= out", "conflict")
    if settings.overwrite:
        told = f"launch={name} resumes finished parts, which overwrite=true would repeat: choose another out"
        raise UserError(told, "conflict")
    if settings.out is None:
        told = f"launch={name} needs a folder on a disk that all workers see: add out=FOLDER"
        raise UserError(told, "missing-value")
    typed, out = plain_options(settings.record["typed"]), str(settings.out)
    state = read_state(Path(out))
    if state is not None and state["complete"]:  # the command refuses another run
        return main.load(command)(request(command, [*typed, f"out={quote(out)}"]))
    launcher = settings.launch.make()
    parts = launcher.make(command, typed, out)
    if parts is not None and launcher.merge:
        return parts.merge()
    if parts is not None:
        log.info("every part is there: %s", parts.merge_command())
    return None


def enter(folder: str, threads: int) -> None:
    """Prepare a process that has not loaded torch yet: the driver's working folder, and number of threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TQDM_MININTERVAL", _LOG_OFTEN)
    try:
        os.chdir(folder)
    except OSError as error:
        told = f"{folder} cannot be entered on {os.uname().nodename} ({error.strerror})"
        raise UserError(f"{told}: start in a folder that every machine sees", "no-file") from error
    keep_model()


def make_part(parts: Parts, part: Partition, *more: str) -> tuple[str, str]:
    """Make one part with ``more`` options, and its output in its log; return outcome and a sentence on it."""
    file = parts.log(part)
    file.parent.mkdir(parents=True, exist_ok=True)
    typed = [*parts.typed, f"out={quote(parts.out)}", f"part={part}", *more]
    with (
        file.open("a", encoding="utf-8", buffering=1) as output,
        redirect_stdout(output),
        redirect_stderr(output),
        main.console(),
        listening(_State(parts, part)),
    ):
        log.info("== %s %s", parts.command, " ".join(typed))
        try:
            main.run(parts.command, typed)
        except UserError as error:
            if error.code == "busy":
                return BUSY, str(error)
            log.warning("%s", error)
            return REFUSED, str(error)
        except (RunError, OSError) as error:
            told = main.told(error)[0]
            log.warning("%s", told)
            return FAILED, told
        except Exception as error:
            traceback.print_exc()
            return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


class _State:
    """Writer of a part's progress to a file beside its log, at most every second."""

    def __init__(self, parts: Parts, part: Partition) -> None:
        self._file = parts.state(part)
        self._whole = parts.command in _ONE_BAR
        self._done, self._written = 0, 0.0

    def __call__(self, more: int, unit: str, share: float) -> None:
        self._done += more
        if (now := time.monotonic()) - self._written < _STATE_OFTEN:
            return
        self._written = now
        state = {"done": self._done, "unit": unit, "share": share if self._whole else 0.0}
        temporary = self._file.with_suffix(".tmp")
        with suppress(OSError):  # nothing depends on it
            temporary.write_text(json.dumps(state))
            temporary.replace(self._file)


def read_progress(file: Path) -> Any:
    """Read the progress of a part; zeros before the first."""
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {"done": 0, "unit": "", "share": 0.0}


class PartsBar:
    """Progress bar over all parts: parts done, and units per second of all workers together."""

    def __init__(self, parts: Parts, left: Iterable[Partition]) -> None:
        self._parts, self._left = parts, list(left)
        self._done = dict.fromkeys(self._left, 0)
        self._made, self._since, self._shown = 0, time.monotonic(), 0.0
        for part in self._left:
            parts.state(part).unlink(missing_ok=True)
        self._bar = tqdm(
            total=parts.count, initial=parts.count - len(self._left), desc=f"probers-{parts.command}",
            bar_format=_FORMAT, dynamic_ncols=True,
        )  # fmt: skip

    def __enter__(self) -> PartsBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def look(self) -> None:
        """Read the progress of the unfinished parts."""
        reached, unit = 0.0, ""
        for part in self._left:
            state = read_progress(self._parts.state(part))
            # A restarted part counts from 0, and its repeated work counts too.
            self._made += max(0, state["done"] - self._done[part])
            self._done[part] = state["done"]
            reached, unit = reached + min(1.0, state["share"]), state["unit"] or unit
        now = time.monotonic()
        if unit:
            rate = self._made / max(1e-9, now - self._since)
            self._bar.set_postfix_str(f"{self._made} {unit}, {rate:.2f}/s", refresh=False)
        self._bar.n = self._parts.count - len(self._left) + reached
        if now - self._shown > (_BAR_OFTEN if sys.stderr.isatty() else _BAR_SELDOM):
            self._shown = now
            self._bar.refresh()

    def finished(self, part: Partition, where: str) -> None:
        """Mark a part as done, with a line above the bar."""
        self.look()
        self._left.remove(part)
        self.say(f"part {part} is done ({where})")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)
        self.look()
