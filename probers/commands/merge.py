"""Runs of parts, and the command ``probers-merge`` that makes one run of them.

A part is a run of its own folder, and what it was typed as stands in its configuration. Merging
repeats that command without ``part``: all of it but what the model makes, or training, which is
taken from the parts. So the whole is checked, ordered, balanced, calibrated and reported by the
code of a run in one piece.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from ..checksums import sha256
from ..data.partition import PARTS, Partition
from ..files import digest
from ..types import RunError, UserError, first_line
from .compose import quote, request
from .runs import CONFIG_FILE, RUN_FILE, RunFolder, as_before, identity, read_state, told_apart

log = logging.getLogger(__name__)

#: What says how a command is carried out and not what it makes; the merge has its own.
_OF_A_PART = ("part", "out", "overwrite", "wait", "suffix")


def part_of(settings: Any) -> Partition | None:
    """The part that a command is to do; None where it does the whole."""
    return None if settings.part is None else Partition.parse(settings.part)


@dataclass(frozen=True)
class PartRun:
    """A run of one part.

    Attributes:
        path: its folder.
        part: which.
        state: what it says of itself (:func:`~.runs.read_state`).
        typed: the options it was run with.
    """

    path: Path
    part: Partition
    state: Mapping[str, Any]
    typed: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> PartRun:
        """The part in a folder.

        Raises:
            UserError: there is none, or its files are damaged.
        """
        state = read_state(path)
        part = (state or {}).get("identity", {}).get("part")
        if state is None or not isinstance(part, str):
            what = "is no run" if state is None else f"is a whole run of probers-{state['command']}"
            raise UserError(f"{path} {what}: give folders that a command with part=i/n has written")
        try:
            typed = yaml.safe_load((path / CONFIG_FILE).read_text("utf-8"))["typed"]
            return cls(path, Partition.parse(part), state, tuple(map(str, typed)))
        except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError) as error:
            raise UserError(
                f"{path / CONFIG_FILE} is damaged ({first_line(error)}): make the part again"
            ) from error

    @property
    def whole(self) -> dict[str, Any]:
        """The identity of the run that it is a part of."""
        return {key: value for key, value in self.state["identity"].items() if key != "part"}

    def command(self, part: Partition | None = None) -> str:
        """What is typed for this part, or for another of the same run."""
        typed = [o if part is None or key_of(o) != "part" else f"part={part}" for o in self.typed]
        return " ".join([f"probers-{self.state['command']}", *map(shlex.quote, typed)])


@dataclass(frozen=True)
class PartRuns:
    """All parts of one run, in their order; :func:`gather` checks them.

    Attributes:
        command: whose runs they are.
    """

    command: str
    runs: tuple[PartRun, ...]

    def owner(self, group: str) -> PartRun:
        """The part that did what belongs to a group."""
        return next(run for run in self.runs if run.part.owns(group))

    def of_one(self, what: str, read: Callable[[PartRun], Any]) -> Any:
        """What every part must have alike.

        Raises:
            UserError: two differ; names them.
        """
        first, found = self.runs[0], read(self.runs[0])
        for run in self.runs[1:]:
            if read(run) != found:
                raise UserError(
                    f"{first.path} and {run.path} have other {what}: run one of them again where the other "
                    "was run, with overwrite=true"
                )
        return found

    def begin(self, folder: RunFolder, what: str = "run") -> bool:
        """As :meth:`RunFolder.begin`, for the whole run.

        Raises:
            UserError: the whole is no longer what the parts are of; names what differs.
        """
        part = self.runs[0]
        apart = told_apart(identity(folder.config), part.whole, ("in the parts", "now"))
        if apart and told_apart(identity(as_before(folder.config)), part.whole):
            raise UserError(
                f"{part.path} is not a part of the run that its command asks for now ({apart}): merge where "
                "the parts were run, with the same inputs"
            )
        if not folder.begin(what):
            return False
        for key, value in part.state.get("chosen", {}).items():
            if key != "model":  # of parts alone
                folder.choose(key, value)
        return True

    def merge(self, typed: Sequence[str]) -> Any:
        """Make the run that they are of, as its command is typed; returns what that returns.

        Raises:
            UserError: what the command refuses.
        """
        from .main import load

        data = self.runs[0].whole.get("data")
        if data and not any(key_of(option) == "data" for option in typed):
            # The newest store then may not be so now.
            typed = [*typed, f"data=[{','.join(map(quote, data))}]"]
        made = request(self.command, typed)
        log.info("merging %d parts of probers-%s into %s", len(self.runs), self.command, made.record["out"])
        return load(self.command)(made, self)

    @property
    def place(self) -> Path | None:
        """The folder whose parts they are, where they stand in one."""
        places = {run.path.absolute().parent for run in self.runs}
        place = places.pop()
        return None if places or place.name != PARTS else place.parent


def gather(paths: Sequence[str | Path]) -> PartRuns:
    """The parts in some folders, all of one run; a part that is there twice counts once.

    Raises:
        UserError: a folder that is no part; parts of other runs or models; a part that is missing,
            unfinished, or there twice with other contents.
    """
    if not paths:
        raise UserError("there is nothing to merge: give the folders of the parts, as in runs/x/parts/*")
    given = {Path(path).resolve(): PartRun.read(Path(path)) for path in paths}
    first, *others = given.values()
    for run in others:
        _check_alike(first, run)
    for run in given.values():
        if not run.state["complete"]:
            raise UserError(f"{run.path} is not finished: {run.command()} goes on with it")
    found: dict[int, PartRun] = {}
    for run in given.values():
        twin = found.setdefault(run.part.number, run)
        if twin is not run and contents(twin.path) != contents(run.path):
            raise UserError(
                f"{twin.path} and {run.path} are both part {run.part}, with other contents: give one of them"
            )
    count = first.part.count
    missing = [Partition(i, count) for i in range(1, count + 1) if i not in found]
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (
            f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        )
        lacks = f"part {listed} is" if len(missing) == 1 else f"parts {listed} are"
        raise UserError(f"{lacks} missing: {first.command(missing[0])} makes {missing[0]}")
    return PartRuns(first.state["command"], tuple(found[i] for i in sorted(found)))


def _check_alike(first: PartRun, other: PartRun) -> None:
    """Refuse parts of two runs (UserError); names what differs."""
    names = [run.state["command"] for run in (first, other)]
    if names[0] != names[1]:
        raise UserError(
            f"{first.path} is a part of probers-{names[0]} and {other.path} one of probers-{names[1]}: merge "
            "those of one command"
        )
    if first.part.count != other.part.count:
        raise UserError(
            f"{first.path} is part {first.part} and {other.path} part {other.part}: give the parts of one run"
        )
    at = (f"in {other.path}", f"in {first.path}")
    # The weights before what else the machine chose, for they decide most.
    chosen = [dict(run.state.get("chosen", {})) for run in (first, other)]
    for here, there in ((first.whole, other.whole), *zip(*map(_weights_first, chosen), strict=True)):
        if apart := told_apart(here, there, at):
            raise UserError(
                f"{first.path} and {other.path} are parts of two runs ({apart}): make one of them again"
            )


def _weights_first(chosen: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"model": chosen.get("model", "")}, {k: v for k, v in chosen.items() if k != "model"}]


def contents(folder: Path) -> dict[str, str]:
    """What a run has computed: a checksum by file; times that were taken do not count."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.name.startswith(".") and path.name not in (RUN_FILE, CONFIG_FILE):
            traces = path.suffix == ".jsonl"
            found[str(path.relative_to(folder))] = digest(_untimed(path), 64) if traces else sha256(path)
    return found


def _untimed(traces: Path) -> str:
    """Traces without seconds, and without the checksums, which are also of these."""
    found = []
    try:
        for line in traces.read_text("utf-8").splitlines():
            trace = json.loads(line)
            trace.pop("sha256", None)
            if isinstance(counters := trace.get("counters"), dict):
                counters.pop("seconds", None)
            found.append(json.dumps(trace, sort_keys=True))
    except (ValueError, AttributeError) as error:
        raise RunError(f"{traces} is damaged ({first_line(error)}): make the part again") from error
    return "\n".join(found)


def key_of(override: str) -> str:
    """The key that an option sets."""
    return override.partition("=")[0].lstrip("+")


def run(cfg: DictConfig) -> Any:
    """Make the run that the parts are of; returns what its command returns.

    Raises:
        UserError: parts that do not make one run; what the command refuses.
    """
    found = gather(cfg.parts)
    out = Path(cfg.out) if cfg.out is not None else found.place
    if out is None:
        raise UserError("the parts stand in several folders: give the one to write as out=FOLDER")
    if cfg.overwrite and any(out.resolve() in run.path.resolve().parents for run in found.runs):
        raise UserError(
            f"overwrite=true would move the parts with out={out}, where they stand: choose another out"
        )
    typed = [o for o in found.runs[0].typed if key_of(o) not in _OF_A_PART]
    typed += [f"out={quote(str(out))}", f"overwrite={cfg.overwrite}".lower(), f"wait={cfg.wait}".lower()]
    if cfg.device is not None and found.command != "train":
        typed.append(f"model.device={cfg.device}")
    return found.merge(typed)
