"""Tables of the benchmarks: ways that take turns, their ratios, and sections that run in time limits."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import torch

from probers.types import first_line

ROOT = Path(__file__).resolve().parents[1]
#: Name of what comes before the first section: libraries, and the model.
START = "start"
_PACKAGES = ("torch", "transformers", "numpy", "safetensors", "pyarrow")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Section:
    """Section of the results.

    Attributes:
        columns: titles, separated by " | ".
        measure: adds rows to :class:`Results`, given the script's options.
        seconds: time limit.
        note: remark below the table.
    """

    title: str
    columns: str
    measure: Callable[[Results, argparse.Namespace], None]
    seconds: float
    note: str = ""


@dataclass(slots=True)
class Results:
    """Rows and remarks per section, and whether all ways gave the same.

    Attributes:
        heads: column titles per section, separated as the cells of a row are.
    """

    heads: dict[str, str]
    rows: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    same: bool = True

    def row(self, section: str, *cells: object) -> None:
        """Add a row; cells left out at its end are empty."""
        cells += ("",) * (len(self.heads[section].split(" | ")) - len(cells))
        self.rows.setdefault(section, []).append(" | ".join(map(str, cells)))

    def note(self, section: str, text: str) -> None:
        """Add a remark unless it is already there."""
        notes = self.notes.setdefault(section, [])
        if text and text not in notes:
            notes.append(text)

    def body(self, section: str) -> str:
        """Format the section as Markdown."""
        head = self.heads[section]
        rule = " | ".join("---" for _ in head.split(" | "))
        table = "\n".join(f"| {line} |" for line in (head, rule, *self.rows.get(section, [])))
        return table + "\n\n" + "\n".join(f"- {note}" for note in self.notes.get(section, []))


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
        """Send an event, with whether all ways gave the same so far; where there is no pipe, nothing."""
        if self.pipe >= 0:
            os.write(self.pipe, (json.dumps({**event, "same": self.same}) + "\n").encode())


def run_sections(results: Sending, work: Mapping[str, Callable[[], None]]) -> dict[str, str]:
    """Run sections in turn; one that fails does not stop the others. Return reasons by section."""
    failed = {}
    for name, measure in work.items():
        results.send(begun=name)
        print(f"{name} ...", file=sys.stderr)
        try:
            measure()
        except (Exception, SystemExit) as error:
            failed[name] = f"{type(error).__name__}: {first_line(error)}"
            results.send(failed=failed[name])
        results.send(done=name)
    return failed


def script(
    sections: Mapping[str, Section], parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> int:
    """Run a script's command: measure its sections and print their tables.

    Returns:
        1 if a section failed, or the ways compared did not give the same; else 0.
    """
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections), help="sections")
    parser.add_argument("--pipe", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    results = Sending({name: each.columns for name, each in sections.items()}, pipe=args.pipe)
    work = {name: _bound(sections[name].measure, results, args) for name in args.only}
    failed = run_sections(results, work)
    if args.pipe >= 0:
        return 0
    for name in args.only:
        if name in failed:
            results.row(name, f"failed: {failed[name]}")
        results.note(name, sections[name].note)
        print(f"\n## {sections[name].title}\n\n{results.body(name)}")
    return int(bool(failed) or not results.same)


def _bound(
    measure: Callable[[Results, argparse.Namespace], None], results: Results, args: argparse.Namespace
) -> Callable[[], None]:
    return lambda: measure(results, args)


def measured(
    command: Callable[[Sequence[str], int], Sequence[str]], limits: Mapping[str, float], until: float,
    results: Results, arrived: Callable[[str], None],
) -> dict[str, str]:  # fmt: skip
    """Run sections in a process; where one takes too long or dies, run the others in a further process.

    Args:
        command: makes the command from the sections and the number of the pipe's file. It sends ``begun`` and
            ``done`` with a section's name, ``failed`` with a reason before ``done``, and :class:`Sending`'s.
        limits: seconds of each section, and of :data:`START`.
        until: time (monotonic) after which nothing runs.
        arrived: called with a section's name when there is a further row of it.

    Returns:
        Reasons by section: of those that failed, took too long, or were not reached.
    """
    left = [name for name in limits if name != START]
    problems: dict[str, str] = {}
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
                    problems[now] = f"failed: {event['failed']}"
                if "done" in event:
                    left.remove(now)
                    now, deadline = START, min(until, time.monotonic() + limits[START])
            if process.wait() or now != START:
                problems[now] = f"failed: its process ended with {process.returncode}"
        except queue.Empty:
            problems[now] = f"failed: it took more than {limits[now]:.0f} s, or all the time was over"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its servers too
            process.wait()
            thread.join()
        if now == START:
            break  # it would not start the next time either
        left.remove(now)
    return problems | {name: f"not run{_because(problems)}" for name in left}


def _because(problems: Mapping[str, str]) -> str:
    return f": {problems[START]}" if START in problems else ": all the time was over"


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


def by_turns(
    work: Mapping[str, Callable[[], _T]], *, warm: Mapping[str, Callable[[], Any]], rounds: int,
    device: torch.device | None = None,
) -> tuple[dict[str, list[float]], dict[str, _T]]:  # fmt: skip
    """Return seconds of every way in every round, and each way's first result.

    Each round begins with another way, so that no way always follows the slowest.

    Args:
        work: the ways.
        warm: run once before, untimed.
        device: None for the host alone.
    """
    for warm_up in warm.values():
        warm_up()
    gc.collect()
    gc.freeze()  # present objects are never garbage, so collecting between the ways is free
    device, names = device or torch.device("cpu"), list(work)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, _T] = {}
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            begun = now(device)
            result = work[name]()
            seconds[name].append(now(device) - begun)
            results.setdefault(name, result)
    gc.unfreeze()
    print(f"  {', '.join(f'{n} {t[0]:.2f} s' for n, t in seconds.items())}", file=sys.stderr)
    return seconds, results


def now(device: torch.device | None) -> float:
    """Return the time once the accelerator has finished its work; None stands for the present one, if any."""
    if torch.accelerator.is_available() and (device is None or device.type != "cpu"):
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format median with lowest and highest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide the times ``above`` by the times ``below``, round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def verdict(reached: bool) -> str:
    """Say in the table's words whether a target was reached."""
    return "met" if reached else "**not met**"


def goal(values: Sequence[float], least: float) -> tuple[str, str]:
    """Make the cells of a target for the median of ratios."""
    return f">= {least:g}", verdict(statistics.median(values) >= least)


def machine() -> str:
    """Describe processor, cores, memory, accelerator and versions in a line."""
    parts = [_processor(), f"{os.cpu_count()} cores", f"{_memory() / 2**30:.0f} GiB RAM", *_accelerators()]
    parts += [
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
    ]
    return ", ".join(parts + [f"{name} {version(name)}" for name in _PACKAGES])


def commit() -> str:
    """Name the commit of the checkout, and say if files differ from it, except for results."""
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True, text=True
        )
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", "."]
        changed = subprocess.run(
            [*status, ":!benchmarks/RESULTS.md", ":!docs"], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _accelerators() -> list[str]:
    if (kind := torch.accelerator.current_accelerator()) is None:
        return []
    return [device_name(torch.device(kind.type, i)) for i in range(torch.accelerator.device_count())]


def device_name(device: torch.device) -> str:
    """Return the name of a device."""
    if device.type == "cpu":
        return "CPU"
    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return named(device) if named else device.type


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def options(about: str | None, *, rounds: int = 3) -> argparse.ArgumentParser:
    """Make the parser of a script, with the options that all of them take."""
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    parser.add_argument(
        "--rounds", type=positive, default=rounds, help=f"of each comparison; default {rounds}"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, xpu, mps; default: the best one")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="default: the model's usual"
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of real text")
    return parser


def amount(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
