"""Run folders: what a command wrote, from which configuration, and whether it finished.

A run folder holds ``config.yaml`` (the resolved configuration) and ``run.json``
(command, configuration fingerprint, complete or not, and what was chosen as it began
where the configuration leaves that open). The fingerprint leaves out keys that do not
change what is computed, so that a run can be resumed with another batch size or logger.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..checksums import inputs_by_ends
from ..data.partition import PARTS
from ..files import canonical_json, digest, read_json, write_text, writing
from ..options import shown
from ..types import UserError, first_line


class BusyError(UserError):
    """Another process writes to the folder of a run."""


#: Options of ``retriever=elasticsearch`` about the server and the way to it.
_OF_SERVERS = ("url", "shards", "timeout", "retries", "verify", "ca_file", "rebuild")
#: Keys (dotted) that say how a run is carried out, not what it computes.
NOT_IDENTITY = (
    "out", "batch_size", "logger", "model.device", "model.cache", "overwrite", "wait", "checksums",
    "save_every", "suffix", "memory", "corpus_cache", "typed", "retriever.cache", "retriever.device",
    "retriever.batch_size",
    *(f"retriever.{option}" for option in _OF_SERVERS),
)  # fmt: skip

CONFIG_FILE, RUN_FILE = "config.yaml", "run.json"


def as_before(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose inputs are named as in earlier versions, which read the ends of large files."""
    return {**config, "inputs": inputs_by_ends(config["inputs"])} if "inputs" in config else dict(config)


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that decides what is computed."""
    kept = json.loads(json.dumps(config))
    for dotted in NOT_IDENTITY:
        *parents, leaf = dotted.split(".")
        node = kept
        for parent in parents:
            node = node.get(parent, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict):
            node.pop(leaf, None)
    if kept.get("part") is None:  # a whole run is the one that it is without the option
        kept.pop("part", None)
    return kept


#: Files of a run folder that hold nothing computed.
_MANIFEST, _LOCK, _WRITER = "manifest.json", ".lock", ".writer.json"
#: Folders that a run's may lie within.
_DEEPEST = 100
#: What a run that was killed at once leaves.
_BEGUN = {_LOCK, _WRITER, f".{_WRITER}.tmp", f".{RUN_FILE}.tmp"}
_PAPERS = _BEGUN | {CONFIG_FILE, RUN_FILE, _MANIFEST, f".{CONFIG_FILE}.tmp"}
#: Locks of this process, by folder: within it a run may come back to its own folder.
_HELD: dict[Path, FileLock] = {}


@dataclass(frozen=True, slots=True)
class _Made:
    """A folder that the running command made or replaced.

    Attributes:
        path: the folder.
        new: it was not there before.
        old: where an earlier run was moved to.
    """

    path: Path
    new: bool
    old: Path | None


_MADE: list[_Made] = []


@contextmanager
def taking_back() -> Iterator[None]:
    """Undo what a command wrote when its request proves wrong before anything was computed.

    Some mistakes show only once the model is there (a layer it lacks, a prompt it cannot hold).
    Locks of the command end with it.
    """
    before, held = len(_MADE), set(_HELD)
    try:
        yield
    except UserError:
        for made in _MADE[before:]:
            _take_back(made)
        raise
    finally:
        del _MADE[before:]
        for path in set(_HELD) - held:
            _release(path)


def _take_back(made: _Made) -> None:
    """Remove what stands only for a run that never began; the earlier run is put back."""
    if any(p.name not in _PAPERS for p in _own(made.path) if p.is_file() or p.is_symlink()):
        return
    _release(made.path.resolve())
    for name in _PAPERS:
        (made.path / name).unlink(missing_ok=True)
    for folder in sorted((p for p in _own(made.path) if p.is_dir()), reverse=True):
        folder.rmdir()
    if made.new or made.old:
        made.path.rmdir()
    if made.old:
        made.old.rename(made.path)
        print(f"the run that was at {made.path} is back there")


def _own(folder: Path) -> Iterator[Path]:
    """Everything below a run's folder, but the runs of its parts."""
    return (p for p in folder.rglob("*") if p.relative_to(folder).parts[0] != PARTS)


def _release(path: Path, now: Path | None = None) -> None:
    """Let other processes write to a folder, which may stand elsewhere now; what told of this one goes.

    Whoever waits on the lock's file finds it gone and opens the next one.
    """
    if lock := _HELD.pop(path, None):
        with suppress(OSError):
            for name in (_WRITER, _LOCK):
                ((now or path) / name).unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder one run of a command writes into; one process at a time.

    Attributes:
        path: the folder.
        command: "datagen", "train", "rag", "compare" or "demo".
        config: resolved configuration as plain containers; ``overwrite`` sets an earlier run of the
            same command aside, ``wait`` waits for another process that writes here.
    """

    path: Path
    command: str
    config: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        blob = canonical_json({"command": self.command, "config": identity(self.config)})
        return digest(blob)

    def claim(self) -> bool:
        """Make the folder this run's own; True when an unfinished or finished run is there already.

        Raises:
            UserError: the folder holds a run of another command or configuration,
                files that no run of this toolkit wrote, or another process writes to it.
        """
        if len(self.path.parts) > _DEEPEST:  # pathlib makes each by a call within a call
            raise UserError(
                f"out={shown(str(self.path))} has {len(self.path.parts)} folders within each other: "
                f"choose one with at most {_DEEPEST}"
            )
        if self.complete and not self._replaces:
            self._tidy()
            return True  # nothing is written, also where nothing may be
        new = not os.path.lexists(self.path)
        self._check()
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
        state, old = self._check(), None  # again: another process may have been there
        if state is not None and self._replaces and not self._replacing(state):
            state, old = None, self._set_aside()
        if state is None:
            _MADE.append(_Made(self.path, new, old))
            self._write(complete=False, summary={}, replaced=old)
        return state is not None

    def begin(self, what: str = "run") -> bool:
        """Claim the folder for this run; False, with a line that says so, when it is finished there.

        Args:
            what: what the run makes, for that line.

        Raises:
            UserError: as :meth:`claim`.
        """
        if self.claim() and self.complete:
            print(f"{self.path} already holds this {what}, complete; overwrite=true makes it again")
            return False
        return True

    @property
    def chosen(self) -> dict[str, str]:
        """What :meth:`choose` was told in this run, by key."""
        return dict((read_state(self.path) or {}).get("chosen", {}))

    def choose(self, key: str, value: str) -> None:
        """Keep for the whole run what the machine decided where the configuration leaves it open."""
        state = read_state(self.path)
        assert state is not None, "claimed before"
        write_text(
            self.path / RUN_FILE, canonical_json(state | {"chosen": state.get("chosen", {}) | {key: value}})
        )

    @property
    def complete(self) -> bool:
        """Whether the same run has already finished here, also one of an earlier version."""
        state = read_state(self.path)
        if not state or not state["complete"]:
            return False
        return state["fingerprint"] in (
            self.fingerprint,
            replace(self, config=as_before(self.config)).fingerprint,
        )

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the run complete, with a few plain figures for whoever lists runs."""
        self._write(complete=True, summary=dict(summary or {}))

    @property
    def _replaces(self) -> bool:
        return self.config.get("overwrite") is True

    def _replacing(self, state: Mapping[str, Any]) -> bool:
        """Whether the unfinished run here is this one, begun in another's place, which then goes on."""
        return not state["complete"] and state["fingerprint"] == self.fingerprint and "replaced" in state

    def _check(self) -> dict[str, Any] | None:
        """The state of the run that is here, if any; refuses what is not for this one to write to."""
        state = read_state(self.path)
        if state is None:
            there = os.path.lexists(self.path)
            allowed = {PARTS, *_BEGUN}  # parts of a run may be there before it
            if there and (not self.path.is_dir() or {p.name for p in self.path.iterdir()} - allowed):
                raise UserError(
                    f"out={self.path} exists and is not a run of probers-{self.command}: "
                    "choose another out or remove it"
                )
        elif self._replaces and state["command"] != self.command:
            raise UserError(
                f"out={self.path} holds a run of probers-{state['command']}, and overwrite=true replaces "
                f"only one of probers-{self.command}: choose another out"
            )
        elif not self._replaces and state["fingerprint"] != self.fingerprint:
            raise UserError(
                f"out={self.path} holds a different run ({self._difference(state)}): "
                "choose another out, remove the folder, or pass overwrite=true"
            )
        return state

    def _lock(self) -> None:
        path = self.path.resolve()
        if path in _HELD:
            return
        lock = FileLock(path / _LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            told = f"out={self.path} is being written by {_writer(path)}"
            if self.config.get("wait") is not True:
                raise BusyError(f"{told}: choose another out, or wait for it with wait=true") from None
            print(f"{told}: waiting until it ends", flush=True)
            lock.acquire()
        _HELD[path] = lock
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        who = {"command": self.command, "process": os.getpid(), "host": socket.gethostname()}
        write_text(path / _WRITER, canonical_json(who | {"since": since}))

    def _tidy(self) -> None:
        """Remove the lock that a process left which was killed once its run was complete."""
        path = self.path.resolve()
        if path in _HELD or not os.path.lexists(path / _LOCK):
            return
        with suppress(OSError, Timeout):
            lock = FileLock(path / _LOCK)
            lock.acquire(timeout=0)
            _HELD[path] = lock
            _release(path)

    def _set_aside(self) -> Path:
        """Move the run that is here to ``<out>.old-1``, or the next number that is free."""
        path = Path(os.path.abspath(self.path))  # "." has no name
        old = next(o for n in count(1) if not os.path.lexists(o := path.with_name(f"{path.name}.old-{n}")))
        with writing(old):
            held = path.resolve()
            path.rename(old)
            _release(held, old)
            path.mkdir()
            self._lock()
        print(f"the run that was at {self.path} is now at {os.path.relpath(old)}", flush=True)
        return old

    def _write(self, *, complete: bool, summary: dict[str, Any], replaced: Path | None = None) -> None:
        import yaml

        state = {
            "command": self.command, "fingerprint": self.fingerprint, "complete": complete,
            "identity": identity(self.config), "summary": summary,
        }  # fmt: skip
        if replaced is not None:
            state["replaced"] = replaced.name
        if chosen := self.chosen:
            state["chosen"] = chosen
        files = [
            # First at the beginning, for it tells the folder from one that is not a run's; last at the end.
            (RUN_FILE, canonical_json(state)),
            # Not by OmegaConf, which reads references in texts.
            (CONFIG_FILE, yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)),
        ]
        for name, text in reversed(files) if complete else files:
            write_text(self.path / name, text)

    def _difference(self, state: Mapping[str, Any]) -> str:
        if state["command"] != self.command:
            return f"of probers-{state['command']}"
        return told_apart(identity(self.config), state["identity"])


def told_apart(
    here: Mapping[str, Any], there: Mapping[str, Any], names: tuple[str, str] = ("there", "now")
) -> str:
    """The first options by which two runs differ, with both values; "" where they do not.

    Args:
        here: one run's identity.
        there: the other's, whose value is told first.
        names: what each value stands behind: of ``there``, and of ``here``.
    """
    ours, others = _flat(dict(here)), _flat(dict(there))
    keys = sorted(k for k in {*ours, *others} if ours.get(k) != others.get(k))
    listed = [f"{k}: {shown(others.get(k))} {names[0]}, {shown(ours.get(k))} {names[1]}" for k in keys[:2]]
    return "; ".join(listed) + (f"; and {len(keys) - 2} more" if len(keys) > 2 else "")


def _writer(path: Path) -> str:
    """Who writes to a folder and since when, as it says there itself."""
    try:
        found = read_json(path / _WRITER)
        return (
            f"probers-{found['command']} (process {found['process']} on {found['host']}, since "
            f"{found['since']})"
        )
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


#: What ``run.json`` holds, and of which kind.
_STATE = {"command": str, "fingerprint": str, "complete": bool, "identity": dict, "summary": dict}


def read_state(path: Path) -> dict[str, Any] | None:
    """The contents of a folder's ``run.json``, or None when it is no run folder.

    Raises:
        UserError: it is damaged.
    """
    file = path / RUN_FILE
    try:
        state = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged (it {first_line(error)}): remove it") from error
    if not isinstance(state, dict) or "fingerprint" not in state:
        return None
    chosen = state.get("chosen", {})
    if not isinstance(chosen, dict) or not all(isinstance(value, str) for value in chosen.values()):
        raise UserError(f"{file} is damaged ('chosen' holds no names): remove it")
    odd = next((key for key, kind in _STATE.items() if not isinstance(state.get(key), kind)), None)
    if odd is not None:
        raise UserError(f"{file} is damaged ({odd!r} is missing or no {_STATE[odd].__name__}): remove it")
    return state


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat
