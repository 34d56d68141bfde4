"""Obstacles of a writer: a second writer, a full disk, a folder that may not be written to."""

from __future__ import annotations

import errno
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from . import sandbox
from .kills import KILLED

if TYPE_CHECKING:
    from .grounds import Grounds

_WAIT = 90.0  # most seconds of a run while another one works


def race(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Run two processes with the same ``out``: one works, the other is refused or waits."""
    name = KILLED[index % len(KILLED)]
    way = ("refused", "waits", "replaces", "dies")[index // len(KILLED) % 4]
    job, delay = grounds.jobs[name], rng.choice([0.0, 0.0, rng.uniform(0, grounds.seconds[name])])
    what = f"{name}, {way}, {delay:.2f} s apart"
    more = {"waits": ["wait=true"], "dies": ["wait=true"], "replaces": ["overwrite=true"]}.get(way, [])
    with grounds.field(job.needs) as field:
        first = sandbox.start(
            job.command, [*job.argv, *(more if way == "replaces" else [])], field, job.before
        )
        time.sleep(delay)
        second = sandbox.start(job.command, [*job.argv, *more], field, job.before)
        if way == "dies" and not first.ended_within(rng.uniform(0, grounds.seconds[name])):
            first.send(signal.SIGKILL)
        ends = [first.wait(_WAIT), second.wait(_WAIT)]
        for ended in ends[1:] if way == "dies" else ends:
            if wrong := sandbox.fault(ended, job.command):
                column, _, note = wrong.partition(": ")
                return sandbox.Finding("races", index, what, column, note)
        return _judged(grounds, index, what, way, name, field, ends)


def _judged(
    grounds: Grounds, index: int, what: str, way: str, name: str, field: Path, ends: list[sandbox.Ended]
) -> sandbox.Finding:
    from .grounds import differing

    codes, told = [e.code for e in ends], "; ".join(e.told for e in ends if e.code)
    differs = ""
    if odd := differing(field / grounds.jobs[name].out, grounds.undisturbed / name):
        differs = f"differ: {', '.join(odd)} (codes {codes}: {told})"
    elif way in ("waits", "dies") and codes[1] != 0:
        differs = f"the one that waits ends with {codes[1]}: {told}"
    elif way in ("refused", "replaces") and (0 not in codes or not set(codes) <= {0, 2}):
        differs = f"codes {codes}: {told}"
    elif 2 in codes and "is being written by probers-" not in told:
        differs = f"does not say who writes: {told}"
    if differs:
        return sandbox.Finding("races", index, what, "difference", differs)
    return sandbox.Finding("races", index, what, "refused" if 2 in codes else "fine", told)


def full_disk(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Run on a disk with too little room; with more room the same command ends in the same files."""
    name = KILLED[index % len(KILLED)]
    job, room = grounds.jobs[name], rng.choice([4, 8, 16, 32, 64, 128, 256, 512, 1024])
    what = f"{name} with {room} kB"
    with grounds.field(job.needs) as field, small_disk(field / "disk", room) as grow:
        from .grounds import differing

        arguments = [*job.arguments, "out=disk/new"]
        before = None if grow else lambda: _small_files(room)
        ended = sandbox.run(job.command, arguments, field, before=before)
        found = sandbox.finding("full disk", index, what, ended, job.command)
        if found.column in sandbox.BAD:
            return found
        if ended.code == 2 or (ended.code and "cannot write" not in ended.told):
            return sandbox.Finding("full disk", index, what, "difference", f"not said so: {ended.told}")
        if grow:
            grow()
        again = sandbox.run(job.command, arguments, field, limit=_WAIT)
        ends = grounds.undisturbed / name
        odd = differing(field / "disk/new", ends) if again.code == 0 else [f"exit code {again.code}"]
        if odd:
            return sandbox.Finding("full disk", index, what, "difference", f"afterwards {odd}: {again.told}")
        return found


@contextmanager
def small_disk(folder: Path, room: int) -> Iterator[object]:
    """Mount a file system of so many kB; yield a function that enlarges it, or None if that is forbidden."""
    folder.mkdir()
    mounted = _mount("-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(folder))
    try:
        yield (lambda: _mount("-o", "remount,size=256m", str(folder))) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _small_files(room: int) -> None:
    """Forbid large files, in place of a small disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room << 10, room << 10))


def read_only(grounds: Grounds, index: int, rng: random.Random) -> sandbox.Finding:
    """Check read-only folders: inputs are read, results there give one sentence, a finished run is fine."""
    name = KILLED[index % len(KILLED)]
    job, way = grounds.jobs[name], ("inputs", "out", "finished")[index // len(KILLED) % 3]
    what = f"{name}, {way} read-only"
    with grounds.field(job.needs) as field:
        locked = field / "locked"
        locked.mkdir()
        if way == "finished":
            sandbox.run(job.command, [*job.arguments, "out=locked/new"], field, limit=_WAIT)
        if way == "inputs":
            for need in job.needs:
                shutil.move(field / need, locked / need)
        with unwritable(locked) as held:
            if not held:
                return sandbox.Finding(
                    "read-only", index, what, "fine", "skipped: nothing can be mounted here"
                )
            if way == "inputs":
                for need in job.needs:
                    (field / need).symlink_to(locked / need)
            arguments = [*job.arguments, "out=new" if way == "inputs" else "out=locked/new"]
            ended = sandbox.run(job.command, arguments, field)
        found = sandbox.finding("read-only", index, what, ended, job.command)
        due = 1 if way == "out" else 0
        if found.column not in sandbox.BAD and ended.code != due:
            return sandbox.Finding("read-only", index, what, "difference", f"exit {ended.code}: {ended.told}")
        return found


@contextmanager
def unwritable(folder: Path) -> Iterator[bool]:
    """Make a folder unwritable even for root, if such a mount is allowed."""
    bound = _mount("--bind", str(folder), str(folder))
    held = bound and _mount("-o", "remount,bind,ro", str(folder))
    try:
        if held:
            try:
                (folder / "x").touch()
                held = False
            except OSError as error:
                held = error.errno == errno.EROFS
        yield held
    finally:
        if bound:  # os.path.ismount does not see a folder bound to itself
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def _mount(*arguments: str) -> bool:
    try:
        return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0
    except OSError:
        return False
