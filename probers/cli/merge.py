"""Parts of a split run, and the command ``probers-merge`` that joins them to one run.

A part is a run in its own folder, with the typed options in its configuration. Merging repeats the
command without ``part``, and takes the model's output or the trained heads from the parts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..data.splits import PARTS, Partition
from ..options import Name
from ..types import UserError, first_line, shortlist
from .command_lines import command_line
from .compose import key_value, quote, request
from .runs import CONFIG_FILE, RunFolder, differences, identity, read_state
from .settings import Device, Screen, Settings

log = logging.getLogger(__name__)

#: Options about the execution of a command; the merge has its own.
_PART_OPTIONS = ("part", "out", "overwrite", "wait", "suffix")


@dataclass(frozen=True, kw_only=True)
class Merge(Settings):
    """Join the parts of a run: probers-merge runs/x/parts/*, after the command with part=1/n to part=n/n.

    The result is the run in one piece: the same examples in the same order, with answers and heads from
    the parts; what depends on the whole (balance, audit, calibration, report) is done here by the code
    of the command. It reads the inputs of the command, so run it where the command was run. The parts
    are only read; a killed merge can be resumed.
    """

    screen = Screen(
        "probers-merge runs/datagen/cot/parts/*", "seconds",
        "parts out device overwrite wait",
    )  # fmt: skip

    parts: list[Name] = field(default_factory=lambda: [])
    """folders of the parts, given without a key, each once, in any order; or the folder that holds parts/"""
    out: Name | None = None
    """folder to write; null is the folder that holds parts/"""
    device: Device | None = None
    """device of the model, for probers-compare; null is that of the parts"""
    overwrite: bool = False
    """true sets an earlier run aside and makes it again; the earlier one is <out>.old-1"""
    wait: bool = False
    """true waits while another process writes to out"""


@dataclass(frozen=True)
class PartRun:
    """A part of a split run: its folder, its place, its ``run.json``, and its typed options."""

    path: Path
    part: Partition
    state: Mapping[str, Any]
    typed: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> PartRun:
        """Read the part in a folder; UserError if there is none, or its files are damaged."""
        state = read_state(path)
        part = (state or {}).get("identity", {}).get("part")
        if state is None or not isinstance(part, str):
            what = "is no run" if state is None else f"is a whole run of probers-{state['command']}"
            raise UserError(f"{path} {what}: give folders written by a command with part=i/n", "parts")
        try:
            typed = yaml.safe_load((path / CONFIG_FILE).read_text("utf-8"))["typed"]
            return cls(path, Partition.parse(part), state, tuple(map(str, typed)))
        except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
            message = f"{path / CONFIG_FILE} is damaged ({first_line(error)}): make the part again"
            raise UserError(message, "damaged") from error

    @property
    def whole(self) -> dict[str, Any]:
        """The identity of the whole run."""
        return {key: value for key, value in self.state["identity"].items() if key != "part"}

    def command(self, part: Partition | None = None) -> str:
        """Return the command line of this part, or of another part of the same run."""
        typed = [o if part is None or key_value(o)[0] != "part" else f"part={part}" for o in self.typed]
        return command_line(self.state["command"], *typed)


@dataclass(frozen=True)
class PartRuns:
    """All parts of one run of a command in order, checked by :func:`gather`."""

    command: str
    runs: tuple[PartRun, ...]

    def owner(self, group: str) -> PartRun:
        """Return the part that owns a group."""
        return next(run for run in self.runs if run.part.owns(group))

    def of_one(self, what: str, read: Callable[[PartRun], Any]) -> Any:
        """Return a value, named ``what``, that all parts must share; UserError names two that differ."""
        first, value = self.runs[0], read(self.runs[0])
        for run in self.runs[1:]:
            if read(run) != value:
                message = f"{first.path} and {run.path} differ in {what}: run one where the other was run"
                raise UserError(f"{message}, with overwrite=true", "parts")
        return value

    def begin(self, folder: RunFolder, what: str = "run") -> bool:
        """Begin the whole run (:meth:`RunFolder.begin`); UserError if its command now asks for another."""
        part = self.runs[0]
        if apart := differences(identity(folder.config), part.whole, ("in the parts", "now")):
            problem = f"{part.path} is not a part of the run that its command asks for now ({apart})"
            raise UserError(f"{problem}: merge where the parts were run, with the same inputs", "parts")
        if not folder.begin(what):
            return False
        for key, value in part.state.get("chosen", {}).items():
            folder.choose(key, value)
        return True

    def merge(self, typed: Sequence[str]) -> Any:
        """Make the whole run with the typed options; return the command's result."""
        from .main import load

        data = self.runs[0].whole.get("data")
        if data and not any(key_value(option)[0] == "data" for option in typed):
            # The newest store may have changed since.
            typed = [*typed, f"data=[{','.join(map(quote, data))}]"]
        settings = request(self.command, typed)
        out = settings.record["out"]
        log.info("merging %d parts of probers-%s into %s", len(self.runs), self.command, out)
        return load(self.command)(settings, self)

    @property
    def place(self) -> Path | None:
        """The folder of the run; None for parts of several places."""
        places = {run.path.absolute().parent for run in self.runs}
        place = places.pop()
        return None if places or place.name != PARTS else Path(os.path.relpath(place.parent))


def gather(paths: Sequence[str | Path]) -> PartRuns:
    """Read the parts of one run.

    Refuse parts of several runs or models, and a part that is missing, unfinished, or given twice.
    """
    if not paths:
        raise UserError("give the folders of the parts to merge, as runs/x/parts/*", "missing-value")
    folders = [folder for path in map(Path, paths) for folder in sorted(path.glob(f"{PARTS}/*of*")) or [path]]
    given = {path.resolve(): PartRun.read(path) for path in folders}
    first, *others = given.values()
    for run in others:
        _check_alike(first, run)
    for run in given.values():
        if not run.state["complete"]:
            raise UserError(f"{run.path} is not finished: resume it with {run.command()}", "parts")
    runs: dict[int, PartRun] = {}
    for run in given.values():
        if (twin := runs.setdefault(run.part.number, run)) is not run:
            message = f"{twin.path} and {run.path} are both part {run.part}: give one of them"
            raise UserError(message, "parts")
    count = first.part.count
    missing = [Partition(i, count) for i in range(1, count + 1) if i not in runs]
    if missing:
        remedy = f"make {missing[0]} with {first.command(missing[0])}"
        lacking = f"{len(missing)} of {count} parts are missing ({shortlist(missing)})"
        raise UserError(f"{lacking}: {remedy}", "parts")
    return PartRuns(first.state["command"], tuple(runs[i] for i in sorted(runs)))


def _check_alike(first: PartRun, other: PartRun) -> None:
    names = [f"{run.path} is part {run.part} of probers-{run.state['command']}" for run in (first, other)]
    if first.state["command"] != other.state["command"] or first.part.count != other.part.count:
        raise UserError(f"{' and '.join(names)}: give the parts of one run", "parts")
    at = (f"in {other.path}", f"in {first.path}")
    ours, theirs = (run.state.get("chosen", {}) for run in (first, other))
    weights = [{"model": chosen.get("model", "")} for chosen in (ours, theirs)]  # before other choices
    for here, there in ((first.whole, other.whole), weights, (ours, theirs)):
        if apart := differences(here, there, at):
            message = f"{first.path} and {other.path} are parts of two runs ({apart})"
            raise UserError(f"{message}: make one of them again", "parts")


def run(settings: Merge) -> Any:
    """Merge the parts ``settings.parts``; return the command's result."""
    parts = gather(settings.parts)
    out = Path(settings.out) if settings.out is not None else parts.place
    if out is None:
        raise UserError("the parts are in several places: give out=FOLDER to write to", "missing-value")
    if settings.overwrite and any(out.resolve() in run.path.resolve().parents for run in parts.runs):
        raise UserError(f"overwrite=true would move the parts inside out={out}: choose another", "conflict")
    typed = [o for o in parts.runs[0].typed if key_value(o)[0] not in _PART_OPTIONS]
    replaces, waits = str(settings.overwrite).lower(), str(settings.wait).lower()
    typed += [f"out={quote(str(out))}", f"overwrite={replaces}", f"wait={waits}"]
    if settings.device is not None and parts.command != "train":
        typed.append(f"model.device={settings.device}")
    return parts.merge(typed)
