"""Published settings: presets (``configs/experiment``) and methods (``configs/method``).

A preset gives model, questions and the published numbers; a method names the components that use these
numbers. Both list their commands under ``commands``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from ..options import nearest
from ..types import UserError
from .components import choices, file_of
from .settings import Settings

#: Reference to a number given by a preset.
_PUBLISHED = re.compile(r"\$\{published\.(\w+)")


@cache
def presets(command: str) -> list[str]:
    """List the values of ``experiment`` that a command takes."""
    return [name for name in choices("experiment") if command in _commands("experiment", name)]


def methods(command: str, preset: str | None = None) -> list[str]:
    """List the values of ``method`` that a command takes.

    With a preset, list only those that need no number beyond it, its own paper's first.
    """
    names = [name for name in choices("method") if command in _commands("method", name)]
    if preset is None:
        return names
    given = set(file_of("experiment", preset).get("published", {}))
    paper = _chosen("experiment", preset).get("method", "")
    fitting = [name for name in names if {*_PUBLISHED.findall(str(file_of("method", name)))} <= given]
    return sorted(fitting, key=lambda name: (not paper or not name.startswith(paper), name))


def check_preset(command: str, typed: Mapping[str, str]) -> None:
    """Refuse a typed preset or method that the command would not run, or would run as another."""
    preset, method = typed.get("experiment", "null"), typed.get("method")
    if not (known := presets(command)) or (preset == "null" and method is None):
        return
    if preset == "null":
        problem = f"method={method} takes its numbers from a published setting"
        raise UserError(f"{problem}: add experiment=NAME, one of {', '.join(known)}", "missing-value")
    _check_choice(command, "experiment", preset, known)
    fitting, default = methods(command, preset), _chosen("experiment", preset).get("method")
    if method is not None:
        _check_choice(command, "method", method, fitting)
    elif default is not None and command not in _commands("method", default):
        problem = f"experiment={preset} needs a method of probers-{command}"
        raise UserError(f"{problem}: add method=NAME, one of {', '.join(fitting)}", "missing-value")


def _check_choice(command: str, group: str, name: str, fitting: Sequence[str]) -> None:
    if name in fitting:
        return
    problem = f"{group}={name} needs numbers that the experiment does not give"
    if name not in choices(group):
        problem = f"unknown {group} {name!r}{nearest(name, fitting)}"
    elif command not in (commands := _commands(group, name)):
        listed = ", ".join(f"probers-{each}" for each in commands)
        problem = f"{group}={name} is for {listed}, not for probers-{command}"
    remedy = f"choose one of {', '.join(fitting)}" if fitting else "leave it out"
    raise UserError(f"{problem}: {remedy}", "unknown-choice")


def note_on(typed: Mapping[str, str], settings: Settings) -> str | None:
    """Note that the numbers of a typed preset were published for another model; None if not."""
    preset = typed.get("experiment", "null")
    if preset == "null":
        return None
    published = file_of("experiment", preset).get("model", {}).get("name")
    model = settings.record["model"]["name"]
    if published in (None, model):
        return None
    return f"experiment={preset} is published for {published}: its numbers are not model={model}'s"


def departures(typed: Mapping[str, str]) -> list[str]:
    """List the groups with another component than the preset's, whose options there are then void."""
    chosen = chosen_by(typed)
    return [group for group in chosen if typed.get(group, chosen[group]) != chosen[group]]


def chosen_by(typed: Mapping[str, str]) -> dict[str, str]:
    """Map group to choice of the typed preset and its method."""
    if (preset := typed.get("experiment", "null")) not in choices("experiment"):
        return {}
    chosen = _chosen("experiment", preset)
    method = typed.get("method", chosen.pop("method", None))
    return chosen | (_chosen("method", method) if method in choices("method") else {})


def _commands(group: str, name: str) -> Sequence[str]:
    return file_of(group, name).get("commands", ())


def _chosen(group: str, name: str) -> dict[str, str]:
    """Map group to choice in a file's defaults list, such as ``override /trigger: rind``."""
    entries = [entry for entry in file_of(group, name).get("defaults", ()) if isinstance(entry, dict)]
    return {key.rpartition("/")[2]: value for entry in entries for key, value in entry.items() if "/" in key}
