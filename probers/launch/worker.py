"""Workers of a run in parts: one part after another in one process, and one progress bar over all of them.

Workers and driver exchange plain text only.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from ..commands import main
from ..commands.compose import quote
from ..commands.console import console
from ..commands.inputs import keep_model
from ..data.splits import Partition
from ..progress import listening
from ..types import RunError, UserError
from .run import Parts

_LOGGER = logging.getLogger(__name__)

#: Outcomes of a part.
DONE, BUSY, REFUSED, FAILED = "done", "busy", "refused", "failed"
#: Commands with one progress bar, whose share is the part's.
_ONE_BAR = ("datagen", "rag")
_STATE_OFTEN = 1.0  # seconds between two states of a part
_LOG_OFTEN = "10"  # seconds between two lines of a bar in a log
_BAR_OFTEN, _BAR_SELDOM = 0.5, 30.0  # seconds between two pictures of the bar, on a terminal and in a file
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} parts [{elapsed}{postfix}]"


def enter(folder: str, threads: int) -> None:
    """Prepare a process that has not loaded torch yet.

    Args:
        folder: working folder, the driver's.
        threads: number of threads of the arithmetic.

    Raises:
        UserError: the folder is missing on this machine.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TQDM_MININTERVAL", _LOG_OFTEN)
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be entered on {os.uname().nodename} ({error.strerror}): start the run in a "
            "folder that every machine sees",
            "no-file",
        ) from error
    keep_model()


def make_part(parts: Parts, part: Partition, *more: str) -> tuple[str, str]:
    """Make one part, with the command's output in its log.

    Args:
        *more: further options.

    Returns:
        Outcome, and a sentence about it.
    """
    log = parts.log(part)
    log.parent.mkdir(parents=True, exist_ok=True)
    typed = [*parts.typed, f"out={quote(parts.out)}", f"part={part}", *more]
    with (
        log.open("a", encoding="utf-8", buffering=1) as file,
        redirect_stdout(file),
        redirect_stderr(file),
        console(),
        listening(_State(parts, part)),
    ):
        _LOGGER.info("== %s %s", parts.command, " ".join(typed))
        try:
            main.run(parts.command, typed)
        except UserError as error:
            if error.code == "busy":
                return BUSY, str(error)
            _LOGGER.warning("%s", error)
            return REFUSED, str(error)
        except (RunError, OSError) as error:
            told = main.told(error)[0]
            _LOGGER.warning("%s", told)
            return FAILED, told
        except Exception as error:
            traceback.print_exc()
            return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


class _State:
    """Writes the progress of a part into a file beside its log, at most every second."""

    def __init__(self, parts: Parts, part: Partition) -> None:
        self._file = state_file(parts, part)
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


def state_file(parts: Parts, part: Partition) -> Path:
    """The file of a part's progress."""
    return parts.log(part).with_suffix(".json")


def read_progress(file: Path) -> dict[str, Any]:
    """Read the progress of a part; zeros before its first state."""
    try:
        found = json.loads(file.read_text())
        return {"done": int(found["done"]), "unit": str(found["unit"]), "share": float(found["share"])}
    except (OSError, ValueError, LookupError, TypeError):
        return {"done": 0, "unit": "", "share": 0.0}


class PartsBar:
    """Progress bar over all parts: parts done, and units per second of all workers together."""

    def __init__(self, parts: Parts, left: Iterable[Partition]) -> None:
        self._parts, self._left = parts, list(left)
        self._done = dict.fromkeys(self._left, 0)
        self._made, self._since, self._shown = 0, time.monotonic(), 0.0
        for part in self._left:
            state_file(parts, part).unlink(missing_ok=True)
        self._bar = tqdm(
            total=parts.count, initial=parts.count - len(self._left), desc=f"probers-{parts.command}",
            bar_format=_FORMAT, dynamic_ncols=True,
        )  # fmt: skip

    def __enter__(self) -> PartsBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._bar.close()

    def look(self) -> None:
        """Read the progress of the unfinished parts."""
        reached, unit = 0.0, ""
        for part in self._left:
            state = read_progress(state_file(self._parts, part))
            # A part begun again counts from 0, and its repeated work counts too.
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
