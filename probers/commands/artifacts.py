"""Stores, probers and classifiers of finished runs: the newest that fits, or the one that was named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn

from ..files import read_json
from ..types import UserError
from .runs import read_state

log = logging.getLogger(__name__)

#: Probers score whole generated answers, single tokens, or entities before they are written.
ProberKind = Literal["answers", "tokens", "entities"]

#: By kind: its trigger, its description, the commands that make one, and the option that names it.
_TRAINED: dict[ProberKind | Literal["questions"], tuple[str, str, str, str, str]] = {
    "answers": ("probing", "prober of whole answers", "--source cot", "layer=all", "prober=PATH"),
    "tokens": ("radio", "prober of single tokens", "--source wiki pool=tokens", "head=radio", "prober=PATH"),
    "entities": (
        "before_entity", "prober of entities before they are written", "--source wiki pool=predicting",
        "layer=all", "prober=PATH",
    ),
    "questions": (
        "adaptive", "classifier of questions", "--source cot", "head=adaptive",
        "its folder, or a sequence classifier of transformers, as trigger.classifier",
    ),
}  # fmt: skip


def find_prober(settings: Any, *kinds: ProberKind, asks: str | None = None, level: int = logging.INFO) -> str:
    """Find the prober that the settings name, else the newest for their model, else the shipped one.

    Args:
        kinds: kinds that serve the purpose, the preferred one first; none means "answers".
        asks: name of the command that needs it, for messages; None names the kind's trigger.
        level: level of the log record that says which prober was found.

    Raises:
        UserError: there is none; the message names the commands that make one.
    """
    if settings.prober is not None:
        log.log(level, "prober: %s", settings.prober)
        return str(settings.prober)
    from ..bank.io import shipped

    model = settings.model.name
    kinds = kinds or ("answers",)
    for kind in kinds:
        if (found := newest_prober(kind, model=model)) is not None:
            of = _TRAINED[kind][1].removeprefix("prober ")
            log.log(level, "prober: %s (the newest %s for model=%s)", found, of, model)
            return str(found)
    if kinds != ("entities",) and (own := shipped(model)) is not None:
        log.log(level, "prober: %s (comes with probers; of the tokens of entities in articles)", own)
        return own
    _none(model, kinds[0], asks)


def find_classifier(settings: Any) -> str:
    """Find the newest classifier of questions trained on answers of ``settings.model.name``.

    Raises:
        UserError: there is none; the message names the commands that make one.
    """
    model = settings.model.name
    found = newest_classifier(model=model) or _none(model, "questions")
    log.info("classifier: %s (the newest for model=%s)", found, model)
    return str(found)


def _none(model: str, kind: ProberKind | Literal["questions"], asks: str | None = None) -> NoReturn:
    trigger, what, data, training, given = _TRAINED[kind]
    raise UserError(
        f"{asks or f'trigger={trigger}'} needs a {what} for model={model} and there is none under "
        f"runs/: make one with 'probers-datagen {data}' and 'probers-train {training}', or pass {given}",
        "no-artifact",
    )


def newest_prober(kind: ProberKind, *, model: str, root: Path = Path("runs")) -> Path | None:
    """Find the newest complete prober of a model that scores answers, tokens or entities."""

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
    """Find the newest complete classifier of questions trained on answers of a model."""

    def fits(folder: Path, _: Mapping[str, Any]) -> bool:
        return _config(folder).get("format") == "probers-adaptive" or (folder / "adaptive.json").exists()

    return newest_run("train", fits, model=model, root=root)


def newest_store(source: str | None = None, *, root: Path = Path("runs")) -> Path | None:
    """Find the newest complete feature store, of a source ("cot", "wiki") or of any."""
    return newest_run("datagen", lambda _, summary: source in (None, summary.get("source")), root=root)


def newest_run(
    command: str, fits: Callable[[Path, Mapping[str, Any]], bool] = lambda folder, summary: True, *,
    model: str | None = None, root: Path = Path("runs"),
) -> Path | None:  # fmt: skip
    """Find the newest complete run of a command below ``root``; parts of split runs do not count.

    Args:
        fits: filter of runs by their folder and summary.
        model: only runs made with this model name.
    """
    found = []
    for file in root.glob("**/run.json"):
        try:
            state, written = read_state(file.parent), file.stat().st_mtime
        except (UserError, OSError) as error:
            log.warning("note: %s", error)
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
    """Read a folder's ``config.json``; {} where it is missing or unreadable."""
    try:
        found = read_json(folder / "config.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
