"""Run folders: claimed by one process at a time, resumed with the same configuration, refused to others.

A run folder holds ``config.yaml`` (the resolved configuration) and ``run.json`` (command, fingerprint of the
configuration, complete or not, and the machine's choices where the configuration leaves them open). The
fingerprint leaves out keys that do not change the results, so a run can resume with another batch size. With
other keys of figures it continues too, also when complete: answers stay, figures and pages are made again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data.splits import PARTS
from ..files import SOFT, canonical_json, digest, locked, read_json, write_text, writing
from ..options import shown
from ..types import UserError, first_line, shortlist

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

#: Dotted keys that change how a run is carried out, but not its results.
NOT_IDENTITY = (
    "out", "batch_size", "logger", "model.device", "model.cache", "overwrite", "wait", "checksums",
    "save_every", "shard_size", "suffix", "memory", "corpus_cache", "wikipedia.cache", "typed",
    "retriever.cache", "retriever.device", "retriever.batch_size", "engine_timeout",
    # The server of retriever=elasticsearch and the connection.
    "retriever.url", "retriever.shards", "retriever.replicas", "retriever.timeout", "retriever.retries",
    "retriever.verify", "retriever.ca_file", "retriever.rebuild",
)  # fmt: skip

#: Keys that change figures and pages of a command's runs, but none of their answers.
FIGURES = {"compare": ("sweep", "resamples", "examples"), "score": ("shown",)}

CONFIG_FILE, RUN_FILE = "config.yaml", "run.json"
#: Answers of a server with engine=URL, until the run is complete.
ANSWERS = "engine.jsonl"
_MANIFEST, _LOCK, _WRITER = "manifest.json", ".lock", ".writer.json"
#: Files left by a run that was killed at once.
_BEGUN = {_LOCK, f"{_LOCK}{SOFT}", _WRITER, f".{_WRITER}.tmp", f".{RUN_FILE}.tmp"}
#: Files of a run folder without results.
_PAPERS = _BEGUN | {CONFIG_FILE, RUN_FILE, _MANIFEST, f".{CONFIG_FILE}.tmp"}
#: Locks of this process by folder; a command may claim the same folder again.
_HELD: dict[Path, BaseFileLock] = {}
#: Folders begun by the running command: path, whether new, and new place of an earlier run.
_MADE: list[tuple[Path, bool, Path | None]] = []


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the keys of a resolved configuration that decide the results."""
    values: dict[str, Any] = json.loads(json.dumps(config))
    for dotted in NOT_IDENTITY:
        block, _, key = dotted.rpartition(".")
        if isinstance(node := values.get(block) if block else values, dict):
            node.pop(key, None)
    if values.get("part") is None:  # a whole run has the same identity with and without the key
        values.pop("part", None)
    return values


@contextmanager
def taking_back() -> Iterator[None]:
    """Undo the files of a wrong request before any computation; release the command's locks.

    Some mistakes show only once the model is loaded, such as a layer that it lacks.
    """
    before, held = len(_MADE), set(_HELD)
    try:
        yield
    except UserError:
        for path, new, old in _MADE[before:]:
            _take_back(path, new, old)
        raise
    finally:
        del _MADE[before:]
        for path in set(_HELD) - held:
            _release(path)


def _take_back(path: Path, new: bool, old: Path | None) -> None:
    """Remove a run without results, and restore the run that it replaced."""
    entries = [entry for entry in path.iterdir() if entry.name != PARTS]
    files = [p for entry in entries for p in (entry, *entry.rglob("*")) if p.is_file() or p.is_symlink()]
    if any(p.name not in _PAPERS for p in files):
        return
    _release(path.resolve())
    for entry in entries:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)
    if new or old:
        path.rmdir()
    if old:
        old.rename(path)
        log.info("the run that was at %s is back there", path)


def _release(path: Path, now: Path | None = None) -> None:
    """Let other processes write to a folder, which may have been moved to ``now``."""
    if lock := _HELD.pop(path, None):
        if now is None:
            lock.release()  # removes a file that stands for the lock
        with suppress(OSError):
            # A process that waits for the lock then opens the next one.
            for name in (_WRITER, _LOCK, f"{_LOCK}{SOFT}"):
                ((now or path) / name).unlink(missing_ok=True)
        lock.release()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run, written by one process at a time.

    In the resolved configuration ``overwrite`` sets an earlier run of the same command aside, and ``wait``
    waits for another process that writes here.
    """

    path: Path
    command: str
    config: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        answers = self._deciding(identity(self.config))
        return digest(canonical_json({"command": self.command, "config": answers}))

    def _deciding(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the keys of an identity that decide the answers."""
        return {key: value for key, value in identity.items() if key not in FIGURES.get(self.command, ())}

    def _same_figures(self, state: Mapping[str, Any]) -> bool:
        """Tell whether a run of this fingerprint was made with the same keys of figures."""
        here, there = identity(self.config), state["identity"]
        return all(here.get(key) == there.get(key) for key in FIGURES.get(self.command, ()))

    def claim(self) -> bool:
        """Claim the folder; return True when this run already exists, finished or not.

        UserError "out-taken" for a run of another command or configuration, or for other files; "busy" if
        another process writes to it.
        """
        if self.complete and not self._replaces:
            return True  # nothing is written, so a read-only folder works
        new = not os.path.lexists(self.path)
        self._check()
        with writing(self.path, "choose another out"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
        state, old = self._check(), None  # again: another process may have written meanwhile
        if state is not None and self._replaces:
            resumes = not state["complete"] and state["fingerprint"] == self.fingerprint
            if not (resumes and "replaced" in state):
                state, old = None, self._set_aside()
        if state is None:
            _MADE.append((self.path, new, old))
        if state is None or not self._same_figures(state):
            replaced = old.name if old else (state or {}).get("replaced")
            self._write(complete=False, summary={}, replaced=replaced)
        return state is not None

    def begin(self, what: str = "run") -> bool:
        """Claim the folder (:meth:`claim`); return False, and log ``what``, when it is complete."""
        if self.claim() and self.complete:
            log.info("%s already holds this %s, complete; overwrite=true makes it again", self.path, what)
            return False
        return True

    @property
    def chosen(self) -> dict[str, str]:
        """The choices of :meth:`choose` in this run, by key."""
        return dict((read_state(self.path) or {}).get("chosen", {}))

    def choose(self, key: str, value: str) -> None:
        """Record for the whole run a choice that the configuration left to the machine."""
        state = read_state(self.path)
        assert state is not None, "claimed before"
        chosen = state.get("chosen", {}) | {key: value}
        write_text(self.path / RUN_FILE, canonical_json(state | {"chosen": chosen}))

    @property
    def complete(self) -> bool:
        """True if the same run has already finished here."""
        state = read_state(self.path)
        if state is None or not state["complete"] or state["fingerprint"] != self.fingerprint:
            return False
        return self._same_figures(state)

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the run complete, with a few figures for listings of runs."""
        self._write(complete=True, summary=dict(summary or {}))
        (self.path / ANSWERS).unlink(missing_ok=True)

    @property
    def changed(self) -> dict[str, Any]:
        """Dotted options, besides inputs, that the run in the folder, if there is one, has otherwise."""
        if (state := read_state(self.path)) is None or state["fingerprint"] == self.fingerprint:
            return {}
        here, there = _flat(identity(self.config)), _flat(state["identity"])
        apart = {key: value for key, value in here.items() if there.get(key) != value}
        return {key: value for key, value in apart.items() if key.partition(".")[0] != "inputs"}

    @property
    def _replaces(self) -> bool:
        return self.config.get("overwrite") is True

    def _check(self) -> dict[str, Any] | None:
        """Read the state of the folder's run, if any; refuse a folder of others."""
        state = read_state(self.path)
        if state is None:
            allowed = {PARTS, *_BEGUN}  # parts of a split run come before the whole
            there = os.path.lexists(self.path)
            if there and (not self.path.is_dir() or {p.name for p in self.path.iterdir()} - allowed):
                problem = f"out={self.path} exists and is not a run of probers-{self.command}"
                raise UserError(f"{problem}: choose another out or remove it", "out-taken")
        elif self._replaces and state["command"] != self.command:
            problem = f"out={self.path} holds a run of probers-{state['command']}"
            only = f"overwrite=true replaces only one of probers-{self.command}: choose another out"
            raise UserError(f"{problem}, and {only}", "out-taken")
        elif not self._replaces and state["fingerprint"] != self.fingerprint:
            other = f"of probers-{state['command']}"
            if state["command"] == self.command:
                other = differences(self._deciding(identity(self.config)), self._deciding(state["identity"]))
            problem = f"out={self.path} holds a different run ({other})"
            choose = "choose another out, remove the folder, or pass overwrite=true"
            raise UserError(f"{problem}: {choose}", "out-taken")
        return state

    def _lock(self) -> None:
        path = self.path.resolve()
        if path in _HELD:
            return

        def wait() -> None:
            problem = f"out={self.path} is being written by {_writer(path)}"
            if self.config.get("wait") is not True:
                raise UserError(f"{problem}: choose another out, or wait for it with wait=true", "busy")
            log.info("%s: waiting until it ends", problem)

        _HELD[path] = locked(path / _LOCK, wait)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        who = {"command": self.command, "process": os.getpid(), "host": socket.gethostname()}
        write_text(path / _WRITER, canonical_json(who | {"since": since}))

    def _set_aside(self) -> Path:
        """Move the run in the folder to ``<out>.old-1``, or the next free number."""
        path = Path(os.path.abspath(self.path))  # "." has no name
        old = next(o for n in count(1) if not os.path.lexists(o := path.with_name(f"{path.name}.old-{n}")))
        with writing(old):
            held = path.resolve()
            path.rename(old)
            _release(held, old)
            path.mkdir()
            self._lock()
        log.info("the run that was at %s is now at %s", self.path, os.path.relpath(old))
        return old

    def _write(self, *, complete: bool, summary: dict[str, Any], replaced: str | None = None) -> None:
        import yaml

        state = {
            "command": self.command, "fingerprint": self.fingerprint, "complete": complete,
            "identity": identity(self.config), "summary": summary,
        }  # fmt: skip
        if replaced is not None:
            state["replaced"] = replaced
        if chosen := self.chosen:
            state["chosen"] = chosen
        files = [
            # First when a run begins, to mark the folder as a run's; last when it ends.
            (RUN_FILE, canonical_json(state)),
            # Not by OmegaConf, which resolves references in texts.
            (CONFIG_FILE, yaml.safe_dump(dict(self.config), sort_keys=False, allow_unicode=True)),
        ]
        for name, text in reversed(files) if complete else files:
            write_text(self.path / name, text)


def differences(
    here: Mapping[str, Any], there: Mapping[str, Any], names: tuple[str, str] = ("there", "now")
) -> str:
    """Name the first options in which the identities of two runs differ; "" for equal runs.

    The values of ``there`` come first; ``names`` follow the values of ``there`` and of ``here``.
    """
    ours, others = _flat(dict(here)), _flat(dict(there))
    keys = sorted(k for k in {*ours, *others} if ours.get(k) != others.get(k))
    if "texts_read.rows" in {*keys} & {*ours} & {*others}:
        return "other rows"
    listed = [f"{k}: {shown(others.get(k))} {names[0]}, {shown(ours.get(k))} {names[1]}" for k in keys]
    for place, key in enumerate(keys):
        if key.startswith("inputs."):
            sides = [name for name, each in zip(names, (others, ours), strict=True) if key in each]
            what = "has other content" if len(sides) > 1 else f"is read only {sides[0]}"
            listed[place] = f"{key.removeprefix('inputs.')} {what}"
    return shortlist(listed, 2, "; ")


def _writer(path: Path) -> str:
    try:
        note = read_json(path / _WRITER)
        where = f"process {note['process']} on {note['host']}, since {note['since']}"
        return f"probers-{note['command']} ({where})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


#: Fields of ``run.json`` and their types.
_STATE = {"command": str, "fingerprint": str, "complete": bool, "identity": dict, "summary": dict}


def read_state(path: Path) -> dict[str, Any] | None:
    """Read a folder's ``run.json``; None if there is no run, UserError if it is damaged."""
    file = path / RUN_FILE
    try:
        state = read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is damaged (it {first_line(error)}): remove it", "damaged") from error
    if not isinstance(state, dict) or "fingerprint" not in state:
        return None
    odd = next((key for key, kind in _STATE.items() if not isinstance(state.get(key), kind)), None)
    chosen = state.get("chosen", {})
    if not isinstance(chosen, dict) or not all(isinstance(value, str) for value in chosen.values()):
        odd = "chosen"
    if odd is not None:
        raise UserError(f"{file} is damaged ({odd!r} is missing or of another type): remove it", "damaged")
    return state


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat = (_flat(item, f"{prefix}.{key}" if prefix else str(key)) for key, item in value.items())
    return {key: item for values in flat for key, item in values.items()}
