"""A command with ``launch=``: its parts, made by several processes or machines, and the merged run.

A launcher is a dataclass of options with ``make(parts)``. Workers and driver exchange plain text only.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...data.splits import PARTS, Partition
from ...options import shown
from ...types import RunError, UserError
from .. import main
from ..command_lines import merge_line, retyped
from ..compose import key_value, quote, request
from ..inputs import keep_model
from ..merge import PartRun, gather
from ..runs import read_state

log = logging.getLogger(__name__)

#: Answer of a worker: whether the part is made, and where; or why the command refuses it.
Made = tuple[bool, str]


@dataclass(frozen=True)
class Parts:
    """A run of a command split into parts: its options without folder and launcher, and its folder."""

    command: str
    typed: tuple[str, ...]
    out: str
    count: int = 0

    @property
    def all(self) -> list[Partition]:
        return [Partition(number, self.count) for number in range(1, self.count + 1)]

    @property
    def left(self) -> list[Partition]:
        """The parts that are not complete with the same options; the command judges one with others."""
        left = []
        for part in self.all:
            with suppress(UserError):
                run = PartRun.read(part.folder(Path(self.out)))
                if run.state["complete"] and retyped(run.typed) == self.typed:
                    continue
            left.append(part)
        return left

    @property
    def logs(self) -> Path:
        """Folder of the workers' files beside the parts; hidden from ``parts/*`` in shells."""
        return Path(self.out) / PARTS / ".launch"

    def log(self, part: Partition) -> Path:
        """Return the file of a part's output."""
        return self.logs / f"{part.number}of{part.count}.log"

    @property
    def begun(self) -> int | None:
        """Number of parts of the split run in the folder; None unless there is exactly one split."""
        names = [path.name for path in (Path(self.out) / PARTS).glob("*of*")]
        counts = {int(name.partition("of")[2]) for name in names if re.fullmatch(r"\d{1,6}of\d{1,6}", name)}
        return counts.pop() if len(counts) == 1 else None

    def bar(self) -> tqdm[Any]:
        """Make the progress line over all parts, the finished ones counted."""
        done = self.count - len(self.left)
        return tqdm(
            total=self.count, initial=done, desc=f"probers-{self.command}", unit="part", dynamic_ncols=True
        )

    @property
    def merge_command(self) -> str:
        """Command line that merges the parts."""
        return merge_line(Path(self.out) / PARTS)

    def merge(self) -> Any:
        """Merge the finished parts, also while another driver does; return the command's result."""
        runs = gather([part.folder(Path(self.out)) for part in self.all])
        return runs.merge([*self.typed, f"out={quote(self.out)}", "wait=true"])


def run(command: str, settings: Any) -> Any:
    """Make the parts of a run and merge them; return the command's result, None without waiting."""
    typed, out = retyped(settings.record["typed"]), str(settings.out)
    name = dict(map(key_value, settings.record["typed"]))["launch"]
    for key in ("part", "question", "overwrite"):
        if value := getattr(settings, key, None):
            problem = f"launch={name} makes all parts of many questions, and resumes those that are begun"
            raise UserError(f"{problem}: leave {key}={shown(value)} out", "conflict")
    if settings.out is None:
        problem = f"launch={name} needs a folder on a disk that all workers see"
        raise UserError(f"{problem}: add out=FOLDER", "missing-value")
    state = read_state(Path(out))
    if state is not None and state["complete"]:  # the command refuses another run
        return main.load(command)(request(command, [*typed, f"out={quote(out)}"]))
    launcher = settings.launch.make()
    parts = launcher.make(Parts(command, typed, out))
    if parts is not None and launcher.merge:
        return parts.merge()
    if parts is not None:
        log.info("every part is there: %s", parts.merge_command)
    return None


def make_part(parts: Parts, number: int, folder: str, threads: int) -> Made:
    """Make one part in a worker's process, its output in its log, and wait while another process writes it.

    Returns:
        True, and the machine and process; or False, and why the command refuses the part.

    Raises:
        RunError: the part failed and may be tried again.
        OSError: this machine lacks the driver's ``folder``.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)  # torch is loaded only now
    os.environ.setdefault("TQDM_MININTERVAL", "10")  # seconds between two lines of a bar in a log
    os.chdir(folder)
    keep_model()
    part = Partition(number, parts.count)
    file = parts.log(part)
    file.parent.mkdir(parents=True, exist_ok=True)
    typed = [*parts.typed, f"out={quote(parts.out)}", f"part={part}", "wait=true"]
    output = file.open("a", encoding="utf-8", errors="backslashreplace", buffering=1)
    with output, redirect_stdout(output), redirect_stderr(output), main.console():
        log.info("== %s %s", parts.command, " ".join(typed))
        try:
            main.run(parts.command, typed)
        except UserError as error:
            log.warning("%s", error)
            return False, str(error)
        except Exception as error:
            traceback.print_exc()
            kind = "" if isinstance(error, (RunError, OSError)) else f"{type(error).__name__}: "
            raise RunError(f"{kind}{main.described(error)[0]}") from None
    return True, f"{os.uname().nodename}, process {os.getpid()}"
