"""The newest finished run that a command takes where none is named: its store, prober or classifier."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from ..files import read_json
from ..types import UserError
from .runs import read_state

#: What a prober scores: whole generated answers, single tokens, or entities before they are written.
ProberKind = Literal["answers", "tokens", "entities"]


def newest_prober(kind: ProberKind, *, model: str, root: Path = Path("runs")) -> Path | None:
    """The newest complete prober of a model that scores answers, tokens or entities."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        config = _config(folder)
        spec = config.get("spec")
        if not isinstance(spec, dict):
            return False
        if kind == "tokens":  # heads that pool a text's tokens themselves have nothing to join
            return spec.get("pool") == "tokens" and config.get("aggregate") is not None
        if kind == "entities":
            return spec.get("position") == "entity" and spec.get("pool") == "predicting"
        return spec.get("position") == "generated" and spec.get("pool") not in ("tokens", "predicting")

    return newest_run("train", fits, model=model, root=root)


def newest_classifier(*, model: str, root: Path = Path("runs")) -> Path | None:
    """The newest complete classifier of questions, trained on answers of a model."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        return _config(folder).get("format") == "probers-adaptive" or (folder / "adaptive.json").exists()

    return newest_run("train", fits, model=model, root=root)


def newest_store(source: str | None = None, *, root: Path = Path("runs")) -> Path | None:
    """The newest complete feature store, of a source ("cot", "wiki") or of any."""
    return newest_run("datagen", lambda _, summary: source in (None, summary.get("source")), root=root)


def newest_run(
    command: str, fits: Callable[[Path, Mapping[str, Any]], bool] = lambda folder, summary: True, *,
    model: str | None = None, root: Path = Path("runs"),
) -> Path | None:  # fmt: skip
    """The newest complete run of a command below ``root``, parts of one left out.

    Args:
        fits: whether a run is wanted, by its folder and summary.
        model: only what was made with this model name.
    """
    found = []
    for file in root.glob("**/run.json"):
        try:
            state, written = read_state(file.parent), file.stat().st_mtime
        except (UserError, OSError) as error:
            print(f"note: {error}", file=sys.stderr)
            continue
        if not state or state["command"] != command or not state["complete"]:
            continue
        if "part" in state["identity"]:
            continue
        summary = state["summary"]
        if model in (None, summary.get("model")) and fits(file.parent, summary):
            found.append((written, file.parent))
    return max(found)[1] if found else None


def _config(folder: Path) -> dict[str, Any]:
    """What a folder's ``config.json`` says; nothing where there is none that can be read."""
    try:
        found = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
