"""Published settings: presets (``configs/experiment``) and methods (``configs/method``).

A preset gives model, questions and the published numbers; a method names the components that use these
numbers. Both list their commands under ``commands``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..types import UserError
from .components import choices, file_of
from .settings import Settings

#: Reference to a number given by a preset.
_PUBLISHED = re.compile(r"\$\{published\.(\w+)")


def presets(command: str) -> list[str]:
    """List the values of ``experiment`` that a command takes."""
    return [name for name in choices("experiment") if command in _commands("experiment", name)]


def methods(command: str, preset: str | None = None) -> list[str]:
    """List the values of ``method`` that a command takes.

    With a preset, list only those that need no number beyond it, its own paper's first.
    """
    found = [name for name in choices("method") if command in _commands("method", name)]
    if preset is None:
        return found
    given = set(file_of("experiment", preset).get("published", {}))
    own = _chosen("experiment", preset).get("method", "")
    fitting = [m for m in found if {*_published(file_of("method", m))} <= given]
    return sorted(fitting, key=lambda name: (not own or not name.startswith(own), name))


def check_preset(command: str, typed: Mapping[str, str]) -> None:
    """Refuse a typed preset or method that the command would not run, or would run as another."""
    preset, method = typed.get("experiment", "null"), typed.get("method")
    if not (known := presets(command)):
        return
    if preset == "null":
        if method is not None:
            told = f"method={method} takes its numbers from a published setting"
            raise UserError(f"{told}: add experiment=NAME, one of {', '.join(known)}", "missing-value")
        return
    if preset not in choices("experiment"):
        raise UserError(f"unknown experiment {preset!r}: choose one of {', '.join(known)}", "unknown-choice")
    if preset not in known:
        own, there = _listed("experiment", preset), ", ".join(known)
        raise UserError(f"experiment={preset} is for {own}; probers-{command} has {there}", "unknown-choice")
    fitting = methods(command, preset)
    if method is None:
        default = _chosen("experiment", preset).get("method")
        if default is not None and command not in _commands("method", default):
            first, *others = fitting
            more = f" (or {', '.join(others)})" if others else ""
            told = f"experiment={preset} needs a method of probers-{command}: add method={first}{more}"
            raise UserError(told, "missing-value")
    elif method not in fitting:
        if method not in choices("method"):
            problem = f"unknown method {method!r}"
        elif command not in _commands("method", method):
            problem = f"method={method} is for {_listed('method', method)}, not for probers-{command}"
        else:
            problem = f"method={method} needs numbers that experiment={preset} does not give"
        choose = f"choose one of {', '.join(fitting)}" if fitting else "leave it out"
        raise UserError(f"{problem}: {choose}", "unknown-choice")


def note_on(typed: Mapping[str, str], settings: Settings) -> str | None:
    """Note that the numbers of a typed preset were published for another model; None if not."""
    preset = typed.get("experiment", "null")
    if preset == "null":
        return None
    published, model = file_of("experiment", preset).get("model", {}).get("name"), settings.record["model"]
    if published in (None, model["name"]):
        return None
    return f"experiment={preset} is published for {published}: its numbers are not model={model['name']}'s"


def departures(typed: Mapping[str, str]) -> list[str]:
    """List the groups with another component than the preset's, whose options there are then void."""
    preset = typed.get("experiment", "null")
    if preset == "null":
        return []
    chosen = _chosen("experiment", preset)
    default = chosen.pop("method", None)
    if (method := typed.get("method", default)) is not None:
        chosen |= _chosen("method", method)
    return [group for group in chosen if typed.get(group, chosen[group]) != chosen[group]]


def _commands(group: str, name: str) -> Sequence[str]:
    return file_of(group, name).get("commands", ())


def _listed(group: str, name: str) -> str:
    return ", ".join(f"probers-{command}" for command in _commands(group, name))


def _chosen(group: str, name: str) -> dict[str, str]:
    """Map group to choice in a file's defaults list, such as ``override /trigger: rind``."""
    entries = [entry for entry in file_of(group, name).get("defaults", ()) if isinstance(entry, dict)]
    return {key.rpartition("/")[2]: value for entry in entries for key, value in entry.items() if "/" in key}


def _published(value: Any) -> Iterator[str]:
    """List the published numbers that the file of a method reads."""
    if isinstance(value, str):
        yield from _PUBLISHED.findall(value)
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _published(each)
