"""Commands that are killed or interrupted at random moments and then repeated."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from . import sandbox

if TYPE_CHECKING:
    from .grounds import Grounds

KILLED = ("datagen", "train", "compare", "rag")
_AGAIN = 120.0  # most seconds of the second run


def attack(grounds: Grounds, index: int, rng: random.Random, number: int = signal.SIGKILL) -> sandbox.Finding:
    """Kill a command once or twice, let the same command end, and compare every result file."""
    name = KILLED[index % len(KILLED)]
    job = grounds.jobs[name]
    interrupts = number == signal.SIGINT
    kind = f"{'interrupts' if interrupts else 'kills'}: {job.command}"
    moments = [_moment(grounds.seconds[name], rng) for _ in range(rng.choice([1, 1, 2]))]
    what = f"{name} {', '.join(f'after {s:.2f} s' if s else f'{n} bytes' for s, n in moments)}"
    with grounds.field(job.needs) as field:
        from .grounds import differing

        for seconds, written in moments:
            running = sandbox.start(job.command, job.argv, field, job.before)
            if not running.ended_within(seconds):
                late = time.monotonic() + sandbox.LIMIT
                while _size(field / job.out) < written and time.monotonic() < late:
                    if running.ended_within(0.001):
                        break
                running.send(number)
            ended = running.wait()
            if interrupts and (wrong := _interrupted(ended, job.command)):
                return sandbox.Finding(kind, index, what, *wrong)
            if not interrupts and ended.code not in (0, -signal.SIGKILL):
                return sandbox.finding(kind, index, what, ended, job.command)
        ended = sandbox.run(job.command, job.argv, field, limit=_AGAIN, before=job.before)
        if ended.code:
            found = sandbox.finding(kind, index, what, ended, job.command)
            bad = found.column in sandbox.BAD
            return found if bad else sandbox.Finding(kind, index, what, "loss", f"cannot go on: {ended.told}")
        odd = differing(field / job.out, grounds.undisturbed / name)
        hidden = [p for p in field.rglob(".*") if p.is_file() and not p.name.endswith(".checked.json")]
        left = [str(p.relative_to(field)) for p in hidden]
        differs = f"differ: {', '.join(odd)}" if odd else f"left behind: {', '.join(left)}" if left else ""
        return sandbox.finding(kind, index, what, ended, job.command, differs=differs)


def _moment(seconds: float, rng: random.Random) -> tuple[float, int]:
    """Draw when to kill: so many seconds after the start, or once the folder holds so many bytes."""
    if rng.random() < 0.5:
        return rng.uniform(0.02, seconds * 1.02), 0
    return 0.0, round(2 ** rng.uniform(5, 20))


def _size(folder: Path) -> int:
    """Count the bytes in a folder that is being written to."""
    found = 0
    with suppress(OSError):  # the folder may vanish while it is listed
        for path in folder.rglob("*"):
            with suppress(OSError):
                found += path.stat().st_size
    return found


def interrupt(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Attack like :func:`attack` with Ctrl-C, after which one sentence and exit code 130 are due."""
    return attack(grounds, index, rng, signal.SIGINT)


def _interrupted(ended: sandbox.Ended, command: str) -> tuple[str, str] | None:
    """Describe the fault in the end of an interrupted command."""
    if wrong := sandbox.fault(ended, command):
        column, _, note = wrong.partition(": ")
        return column, note
    if ended.code not in (0, 130):
        return "traceback", f"exit code {ended.code} after an interrupt: {ended.told}"
    return None
