"""Run folders: what a command wrote, from which configuration, and whether it finished.

A run folder holds ``config.yaml`` (the resolved configuration) and ``run.json``
(command, configuration fingerprint, complete or not). The fingerprint leaves out
keys that do not change what is computed, so that a run can be resumed with another
batch size or logger.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..files import canonical_json, digest, write_text
from ..types import UserError

#: Options of ``retriever=elasticsearch`` about the server and the way to it.
_OF_SERVERS = ("url", "shards", "timeout", "retries", "verify", "ca_file", "rebuild")
#: Keys (dotted) that say how a run is carried out, not what it computes.
NOT_IDENTITY = (
    "out", "batch_size", "logger", "model.device", "overwrite", "save_every", "suffix", "memory",
    "corpus_cache", "retriever.cache", "retriever.device", "retriever.batch_size",
    *(f"retriever.{option}" for option in _OF_SERVERS),
)  # fmt: skip

_CONFIG_FILE, _RUN_FILE = "config.yaml", "run.json"


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
    return kept


#: Run folders made by the command that is running.
_MADE: list[Path] = []
_MANIFEST = "manifest.json"


@contextmanager
def taking_back() -> Iterator[None]:
    """Remove the folders a command made when its request proves wrong before anything was computed.

    Some mistakes show only once the model is there (a layer it lacks, a prompt it cannot hold).
    """
    before = len(_MADE)
    try:
        yield
    except UserError:
        for path in _MADE[before:]:
            written = {p.name for p in path.rglob("*") if p.is_file()}
            if written <= {_CONFIG_FILE, _RUN_FILE, _MANIFEST}:
                shutil.rmtree(path, ignore_errors=True)
        raise
    finally:
        del _MADE[before:]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder one run of a command writes into.

    Attributes:
        path: the folder.
        command: "datagen", "train", "rag", "compare" or "demo".
        config: resolved configuration as plain containers.
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
                or files that no run of this toolkit wrote.
        """
        state = read_state(self.path)
        if state is None:
            if self.path.exists() and not self._only_begun():
                raise UserError(
                    f"out={self.path} exists and is not a run of probers-{self.command}: "
                    "choose another out or remove it"
                )
            self.path.mkdir(parents=True, exist_ok=True)
            _MADE.append(self.path)
            self._write(complete=False, summary={})
            return False
        if state["fingerprint"] != self.fingerprint:
            raise UserError(
                f"out={self.path} holds a different run ({self._difference(state)}): "
                "choose another out, remove the folder, or pass overwrite=true"
            )
        return True

    def begin(self, *, overwrite: bool, what: str = "run") -> bool:
        """Claim the folder for this run; False, with a line that says so, when it is finished there.

        Args:
            overwrite: delete an earlier run in the folder first.
            what: what the run makes, for that line.

        Raises:
            UserError: as :meth:`claim`.
        """
        if overwrite:
            self.clear()
        if self.claim() and self.complete:
            print(f"{self.path} already holds this {what}, complete; overwrite=true makes it again")
            return False
        return True

    @property
    def complete(self) -> bool:
        """Whether the same run has already finished here."""
        state = read_state(self.path)
        return bool(state and state["complete"] and state["fingerprint"] == self.fingerprint)

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the run complete, with a few plain figures for whoever lists runs."""
        self._write(complete=True, summary=dict(summary or {}))

    def clear(self) -> None:
        """Delete an earlier run in this folder (``overwrite=true``); foreign folders are refused."""
        if read_state(self.path) is not None:
            shutil.rmtree(self.path)

    def _only_begun(self) -> bool:
        """Whether the folder holds nothing but what a run that was killed at once leaves."""
        begun = {_CONFIG_FILE, f".{_CONFIG_FILE}.tmp", f".{_RUN_FILE}.tmp"}
        return self.path.is_dir() and {p.name for p in self.path.iterdir()} <= begun

    def _write(self, *, complete: bool, summary: dict[str, Any]) -> None:
        from omegaconf import OmegaConf

        write_text(self.path / _CONFIG_FILE, OmegaConf.to_yaml(OmegaConf.create(dict(self.config))))
        state = {
            "command": self.command, "fingerprint": self.fingerprint, "complete": complete,
            "identity": identity(self.config), "summary": summary,
        }  # fmt: skip
        write_text(self.path / _RUN_FILE, canonical_json(state))

    def _difference(self, state: Mapping[str, Any]) -> str:
        if state["command"] != self.command:
            return f"of probers-{state['command']}"
        here, there = _flat(identity(self.config)), _flat(state["identity"])
        keys = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
        shown = [f"{k}: {there.get(k)} there, {here.get(k)} now" for k in keys[:2]]
        return "; ".join(shown) + (f"; and {len(keys) - 2} more" if len(keys) > 2 else "")


def read_state(path: Path) -> dict[str, Any] | None:
    """The contents of a folder's ``run.json``, or None when it is no run folder."""
    try:
        state = json.loads((path / _RUN_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except json.JSONDecodeError as error:
        raise UserError(f"{path / _RUN_FILE} is damaged ({error}): remove the folder {path}") from error
    return state if isinstance(state, dict) and "fingerprint" in state else None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
    return flat


#: What a prober scores: whole generated answers, or single tokens.
ProberKind = Literal["answers", "tokens"]


def newest_prober(kind: ProberKind, *, model: str, root: Path = Path("runs")) -> Path | None:
    """The newest complete prober of a model that scores answers or tokens."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        config = _config(folder)
        spec = config.get("spec")
        if not isinstance(spec, dict):
            return False
        if kind == "tokens":  # heads that pool a text's tokens themselves have nothing to join
            return spec.get("pool") == "tokens" and config.get("aggregate") is not None
        return spec.get("position") == "generated" and spec.get("pool") not in ("tokens", "predicting")

    return newest_run("train", fits, model=model, root=root)


def newest_classifier(*, model: str, root: Path = Path("runs")) -> Path | None:
    """The newest complete classifier of questions, trained on answers of a model."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        return _config(folder).get("format") == "probers-adaptive"

    return newest_run("train", fits, model=model, root=root)


def newest_store(source: str | None = None, *, root: Path = Path("runs")) -> Path | None:
    """The newest complete feature store, of a source ("cot", "wiki") or of any."""
    return newest_run("datagen", lambda _, summary: source in (None, summary.get("source")), root=root)


def newest_run(
    command: str, fits: Callable[[Path, Mapping[str, Any]], bool] = lambda folder, summary: True, *,
    model: str | None = None, root: Path = Path("runs"),
) -> Path | None:  # fmt: skip
    """The newest complete run of a command below ``root``.

    Args:
        fits: whether a run is wanted, by its folder and summary.
        model: only what was made with this model name.
    """
    found = []
    for file in root.glob("**/run.json"):
        state = read_state(file.parent)
        if not state or state["command"] != command or not state["complete"]:
            continue
        summary = state["summary"]
        if model in (None, summary.get("model")) and fits(file.parent, summary):
            found.append((file.stat().st_mtime, file.parent))
    return max(found)[1] if found else None


def _config(folder: Path) -> dict[str, Any]:
    """What a folder's ``config.json`` says; nothing where there is none that can be read."""
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
