"""Published settings: presets (``configs/experiment``) and methods (``configs/method``).

A preset gives model, questions and the published numbers; a method says which components use these
numbers. Both list their commands under ``commands``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..types import UserError
from .components import choices, file_of

if TYPE_CHECKING:
    from .settings import Settings

#: A reference to one of the numbers that a preset gives.
_PUBLISHED = re.compile(r"\$\{published\.(\w+)")


def presets(command: str) -> list[str]:
    """The values of ``experiment`` that a command takes."""
    return [name for name in choices("experiment") if command in _commands("experiment", name)]


def methods(command: str, preset: str | None = None) -> list[str]:
    """The values of ``method`` that a command takes; those of a preset's own paper come first.

    Args:
        command: the command.
        preset: only methods that need no other number than it gives.
    """
    found = [name for name in choices("method") if command in _commands("method", name)]
    if preset is None:
        return found
    given = _given(preset)
    own = _chosen("experiment", preset).get("method", "")
    fitting = [m for m in found if _published(m) <= given]
    return sorted(fitting, key=lambda name: (not own or not name.startswith(own), name))


def check_preset(command: str, typed: Mapping[str, str]) -> None:
    """Refuse a preset or method that the command would not run, or would run as another.

    Args:
        command: the command.
        typed: key -> value of the overrides.

    Raises:
        UserError: says what to choose instead.
    """
    preset, method = typed.get("experiment"), typed.get("method")
    known = presets(command)
    if preset in (None, "null") or not known:
        if method is not None and known:
            raise UserError(
                f"method={method} takes its numbers from a published setting: "
                f"add experiment=NAME, one of {', '.join(known)}",
                "missing-value",
            )
        return
    assert preset is not None
    if preset not in choices("experiment"):
        raise UserError(f"unknown experiment {preset!r}: choose one of {', '.join(known)}", "unknown-choice")
    if preset not in known:
        own = _listed(_commands("experiment", preset))
        raise UserError(
            f"experiment={preset} is for {own}; probers-{command} has {', '.join(known)}", "unknown-choice"
        )
    default = _chosen("experiment", preset).get("method")
    if default is None and method is None:
        return
    fitting = methods(command, preset)
    if method is None and command not in _commands("method", str(default)):
        first, *others = fitting
        more = f" (or {', '.join(others)})" if others else ""
        raise UserError(
            f"experiment={preset} needs a method of probers-{command}: add method={first}{more}",
            "missing-value",
        )
    if method is None or method in fitting:
        return
    choose = f"choose one of {', '.join(fitting)}" if fitting else "leave it out"
    if method not in choices("method"):
        raise UserError(f"unknown method {method!r}: {choose}", "unknown-choice")
    if command not in _commands("method", method):
        own = _listed(_commands("method", method))
        raise UserError(
            f"method={method} is for {own}, not for probers-{command}: {choose}", "unknown-choice"
        )
    raise UserError(
        f"method={method} needs numbers that experiment={preset} does not give: {choose}", "unknown-choice"
    )


def notes(overrides: Sequence[str], settings: Settings) -> list[str]:
    """Notes on a request: a preset whose numbers were published for another model."""
    preset = next((o.partition("=")[2] for o in overrides if o.lstrip("+").startswith("experiment=")), "null")
    preset = preset.strip("'\"")
    if preset == "null":
        return []
    published, chosen = file_of("experiment", preset).get("model", {}).get("name"), settings.record["model"]
    if published in (None, chosen["name"]):
        return []
    return [f"experiment={preset} is published for {published}: its numbers are not model={chosen['name']}'s"]


def departures(typed: Mapping[str, str]) -> list[str]:
    """Groups in which the user chose another component than the preset, whose options are then void."""
    preset = typed.get("experiment")
    if preset in (None, "null"):
        return []
    chosen = _chosen("experiment", str(preset))
    method = typed.get("method", chosen.get("method"))
    if method is not None:
        chosen |= _chosen("method", method)
    groups = [group for group in chosen if group != "method"]
    return [group for group in groups if group in typed and typed[group] != chosen[group]]


def _commands(group: str, name: str) -> tuple[str, ...]:
    return tuple(file_of(group, name).get("commands", ()))


def _chosen(group: str, name: str) -> dict[str, str]:
    """Group -> choice of a file's defaults list."""
    found = {}
    for entry in file_of(group, name).get("defaults", ()):
        for key, value in entry.items() if isinstance(entry, dict) else ():
            if "/" in key:
                found[key.rpartition("/")[2]] = value
    return found


def _given(preset: str) -> set[str]:
    """The published numbers that a preset gives, with those of the presets that it builds on."""
    return set(file_of("experiment", preset).get("published", {}))


def _published(method: str) -> set[str]:
    """The published numbers that a method reads."""
    return {name for text in _texts(file_of("method", method)) for name in _PUBLISHED.findall(text)}


def _texts(value: Any) -> Iterator[str]:
    """All texts within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _listed(commands: Sequence[str]) -> str:
    return ", ".join(f"probers-{command}" for command in commands)
