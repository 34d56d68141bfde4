"""What a worker does: one part after the other in one process, with the model kept between them.

All that goes to a worker and comes back is text, whatever carries it.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from ..commands import main
from ..commands.compose import quote
from ..commands.parts import keep_model
from ..data.partition import Partition
from ..progress import listening
from ..types import RunError, UserError
from .parts import Parts

#: What became of a part.
DONE, BUSY, REFUSED, FAILED = "done", "busy", "refused", "failed"
#: Commands whose work is one bar, so that its share is that of the part.
_ONE_BAR = ("datagen", "rag")
_OFTEN = 1.0  # seconds between two states of a part
_LOG_OFTEN = "10"  # seconds between two lines of a bar in a log


def enter(folder: str, threads: int) -> None:
    """Begin work in a process that has not loaded torch yet.

    Args:
        folder: to work in, that of the driver.
        threads: of the arithmetic.

    Raises:
        UserError: the folder is not there on this machine.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("TQDM_MININTERVAL", _LOG_OFTEN)
    try:
        os.chdir(folder)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be entered on {os.uname().nodename} ({error.strerror}): begin the run in a "
            "folder that every machine sees"
        ) from error
    keep_model()


def make_part(parts: Parts, part: Partition, *more: str) -> tuple[str, str]:
    """Do one part, and write what the command prints into its log.

    Args:
        parts: the run.
        part: which.
        *more: further options.

    Returns:
        What became of it, and a sentence about it.
    """
    log = parts.log(part)
    log.parent.mkdir(parents=True, exist_ok=True)
    typed = [*parts.typed, f"out={quote(parts.out)}", f"part={part}", *more]
    with (
        log.open("a", encoding="utf-8", buffering=1) as file,
        redirect_stdout(file),
        redirect_stderr(file),
        listening(_State(parts, part)),
    ):
        print(f"== {parts.command} {' '.join(typed)}")
        try:
            main.run(parts.command, typed)
        except UserError as error:
            if error.code == "busy":
                return BUSY, str(error)
            print(error)
            return REFUSED, str(error)
        except (RunError, OSError) as error:
            told = main.told(error)[0]
            print(told)
            return FAILED, told
        except Exception as error:
            traceback.print_exc()
            return FAILED, f"{type(error).__name__}: {error}"
    return DONE, ""


class _State:
    """Writes how far a part is into a file beside its log, every second at most."""

    def __init__(self, parts: Parts, part: Partition) -> None:
        self._file = state_file(parts, part)
        self._whole = parts.command in _ONE_BAR
        self._done, self._written = 0, 0.0

    def __call__(self, more: int, unit: str, share: float) -> None:
        self._done += more
        if (now := time.monotonic()) - self._written < _OFTEN:
            return
        self._written = now
        state = {"done": self._done, "unit": unit, "share": share if self._whole else 0.0}
        temporary = self._file.with_suffix(".tmp")
        with suppress(OSError):  # nothing depends on it
            temporary.write_text(json.dumps(state))
            temporary.replace(self._file)


def state_file(parts: Parts, part: Partition) -> Path:
    """Where a worker says how far it is."""
    return parts.log(part).with_suffix(".json")


def read_state(file: Path) -> dict[str, Any]:
    """What a worker says of how far it is; nothing where it has not said so yet."""
    try:
        found = json.loads(file.read_text())
        return {"done": int(found["done"]), "unit": str(found["unit"]), "share": float(found["share"])}
    except (OSError, ValueError, LookupError, TypeError):
        return {"done": 0, "unit": "", "share": 0.0}
