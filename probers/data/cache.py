"""Cache of slowly made folders: each is made once, whole or not at all, by one process at a time.

A folder is filled as ``<folder>.partial`` and renamed when whole; an interrupted one is continued.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checksums import check, sealed, take, unsealed
from ..files import locked, write_text, writing
from ..types import RunError

log = logging.getLogger(__name__)

#: The file that describes the folder's content; written last.
MANIFEST = "built.json"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected cost of making a folder: seconds, bytes of disk, bytes of memory."""

    seconds: float
    disk: float
    memory: float

    def __str__(self) -> str:
        return f"about {duration(self.seconds)}, {size(self.disk)} of disk, {size(self.memory)} of memory"


def build_once(
    folder: Path,
    what: str,
    make: Callable[[Path], Mapping[str, Any]],
    estimate: Callable[[], Estimate | None],
) -> dict[str, Any]:
    """Fill a folder with ``make`` unless an earlier run has; return the figures that ``make`` returned.

    A damaged folder is made again. ``make`` gets the folder to fill, with the leftovers of an interrupted
    call. The ``estimate`` is logged before the work begins and checked against the free disk space; None logs
    nothing. Messages call the folder ``what``.
    """
    if (summary := _whole(folder)) is not None:
        return summary
    partial = folder.with_name(f"{folder.name}.partial")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
    message = "another process is making the %s in %s: waiting for it"
    lock = locked(folder.with_name(f"{folder.name}.lock"), lambda: log.warning(message, what, folder))
    try:
        if (summary := _whole(folder)) is not None:
            return summary
        if folder.exists():
            log.warning("the %s in %s is damaged: making it again", what, folder)
            shutil.rmtree(folder)
        if (expected := estimate()) is not None:
            free = shutil.disk_usage(folder.parent).free
            log.warning("making the %s in %s: %s", what, folder, expected)
            if free < expected.disk:
                message = f"{folder.parent} has {size(free)} free and the {what} needs {size(expected.disk)}"
                raise RunError(f"{message}: free some space or give another folder as cache", "disk")
        with writing(folder):
            partial.mkdir(exist_ok=True)
            summary = dict(make(partial))
            names = sorted(p.name for p in partial.iterdir() if p.name != MANIFEST)
            for name in names:
                with (partial / name).open("rb") as file:
                    os.fsync(file.fileno())
            write_text(partial / MANIFEST, sealed({"files": take(partial, names), "summary": summary}))
            os.replace(partial, folder)
        return summary
    finally:
        with suppress(OSError):
            partial.rmdir()  # fails unless it is empty
        lock.release()


def duration(seconds: float) -> str:
    """Format seconds: 40 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """Format bytes: 12 MB, 3.4 GB."""
    return f"{max(1, round(count / 1e6))} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def _whole(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = unsealed(folder / MANIFEST)
        return None if check(folder, manifest["files"]) else dict(manifest["summary"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
