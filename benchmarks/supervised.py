"""Sections measured in a process apart, each in its own time limit; what they find arrives as it is found."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from timing import Results

#: Name of what comes before the first section: libraries, and the model.
START = "start"


@dataclass(slots=True)
class Sending(Results):
    """Results of a process that sends them over a pipe at once; ``pipe`` is the number of its file."""

    pipe: int = -1

    def row(self, section: str, *cells: object) -> None:
        """Add a row, and send it."""
        Results.row(self, section, *cells)
        self.send(row=[section, self.rows[section][-1]])

    def note(self, section: str, text: str) -> None:
        """Add a remark, and send it."""
        Results.note(self, section, text)
        self.send(note=[section, text])

    def send(self, **event: Any) -> None:
        """Send an event, with whether all ways gave the same so far."""
        os.write(self.pipe, (json.dumps({**event, "same": self.same}) + "\n").encode())


def measured(
    command: Callable[[Sequence[str], int], Sequence[str]], sections: Sequence[str],
    limits: Mapping[str, float], until: float, results: Results, arrived: Callable[[str], None],
) -> list[str]:  # fmt: skip
    """Run sections in a process; where one takes too long or dies, run the others in a further process.

    Args:
        command: makes the command from the sections and the number of the pipe's file. It sends ``begun`` and
            ``done`` with a section's name, ``failed`` with a reason before ``done``, and :class:`Sending`'s.
        limits: seconds of each section, and of :data:`START`.
        until: time (monotonic) after which nothing runs.
        arrived: called with a section's name when there is a further row of it.

    Returns:
        Problems: sections that failed, took too long, or were not reached.
    """
    left, problems = list(sections), []
    while left and time.monotonic() < until:
        now = START
        reader, writer = os.pipe()
        process = subprocess.Popen(
            command(left, writer), pass_fds=[writer], start_new_session=True, stdout=subprocess.DEVNULL
        )
        os.close(writer)
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        thread = threading.Thread(target=_read, args=(reader, events), daemon=True)
        thread.start()
        deadline = min(until, time.monotonic() + limits[START])
        try:
            while (event := events.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
                _take(event, results)
                if "row" in event:
                    arrived(event["row"][0])
                if "begun" in event:
                    now = event["begun"]
                    deadline = min(until, time.monotonic() + limits[now])
                if "failed" in event:
                    problems.append(f"{now} failed: {event['failed']}")
                if "done" in event:
                    left.remove(now)
                    now, deadline = START, min(until, time.monotonic() + limits[START])
            if process.wait() or now != START:
                problems.append(f"{now} ended its process with {process.returncode}")
        except queue.Empty:
            problems.append(f"{now} took more than {limits[now]:.0f} s, or all the time was over")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its servers too
            process.wait()
            thread.join()
        if now == START:
            break  # it would not start the next time either
        left.remove(now)
    return problems + [f"{name} was not run" for name in left]


def _take(event: Mapping[str, Any], results: Results) -> None:
    """Add what another process found to ``results``."""
    results.same &= event["same"]
    if "row" in event:
        section, row = event["row"]
        results.rows.setdefault(section, []).append(row)
    if "note" in event:
        results.note(*event["note"])


def _read(file: int, events: queue.Queue[dict[str, Any] | None]) -> None:
    with os.fdopen(file, encoding="utf-8") as lines:
        for line in lines:
            events.put(json.loads(line))
    events.put(None)
