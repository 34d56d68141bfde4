"""Files of the configuration by name: the choices of a group, presets and methods, and what they go with.

A preset (``configs/experiment``) says model, questions and the published numbers; a method
(``configs/method``) says which parts use these numbers. Both name their commands in a comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from ..types import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

_MODEL = re.compile(r"^model:\n  name: (\S+)$", re.MULTILINE)
_OVERRIDE = re.compile(r"^\s+- (?:override )?/(\w+): (\w+)", re.MULTILINE)


def choices(group: str) -> list[str]:
    """The names of a configuration group, e.g. every trigger."""
    folder = resources.files("probers.configs").joinpath(group)
    if not folder.is_dir():
        return []
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def text_of(group: str, name: str) -> str:
    """The file of a choice; of the group "" that of a command."""
    folder = resources.files("probers.configs").joinpath(group)
    return folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def presets(command: str) -> list[str]:
    """The values of ``experiment`` that a command takes."""
    return [name for name in choices("experiment") if command in _commands("experiment", name)]


def methods(command: str, preset: str | None = None) -> list[str]:
    """The values of ``method`` that a command takes; those of a preset's own paper come first.

    Args:
        preset: only methods that need no other number than it gives.
    """
    found = [name for name in choices("method") if command in _commands("method", name)]
    if preset is None:
        return found
    given = text_of("experiment", preset)
    own = _chosen(given).get("method", "")
    fitting = [m for m in found if all(re.search(rf"\b{key}:", given) for key in _published(m))]
    return sorted(fitting, key=lambda name: (not own or not name.startswith(own), name))


def check_preset(command: str, typed: Mapping[str, str]) -> None:
    """Refuse a preset or method that the command would not run, or would run as something else.

    Args:
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
                f"add experiment=NAME, one of {', '.join(known)}"
            )
        return
    assert preset is not None
    if preset not in choices("experiment"):
        raise UserError(f"unknown experiment {preset!r}: choose one of {', '.join(known)}")
    if preset not in known:
        own = _listed(_commands("experiment", preset))
        raise UserError(f"experiment={preset} is for {own}; probers-{command} has {', '.join(known)}")
    default = _chosen(text_of("experiment", preset)).get("method")
    if default is None and method is None:
        return
    fitting = methods(command, preset)
    if method is None and command not in _commands("method", str(default)):
        first, *others = fitting
        more = f" (or {', '.join(others)})" if others else ""
        raise UserError(f"experiment={preset} needs a method of probers-{command}: add method={first}{more}")
    if method is None or method in fitting:
        return
    choose = f"choose one of {', '.join(fitting)}" if fitting else "leave it out"
    if method not in choices("method"):
        raise UserError(f"unknown method {method!r}: {choose}")
    if command not in _commands("method", method):
        raise UserError(
            f"method={method} is for {_listed(_commands('method', method))} and not for probers-{command}: "
            f"{choose}"
        )
    raise UserError(f"method={method} needs numbers that experiment={preset} does not give: {choose}")


def notes(overrides: Sequence[str], config: DictConfig) -> list[str]:
    """What whoever typed this should know: that a preset's numbers were published for another model."""
    preset = next((o.partition("=")[2] for o in overrides if o.lstrip("+").startswith("experiment=")), "null")
    preset = preset.strip("'\"")
    given = None if preset == "null" else _MODEL.search(text_of("experiment", preset))
    if given is None or given[1] == config.model.name:
        return []
    return [
        f"experiment={preset} is published for {given[1]}: its numbers are not model={config.model.name}'s"
    ]


def departures(typed: Mapping[str, str]) -> list[str]:
    """Groups in which the user chose something else than the preset, whose options are then void."""
    preset = typed.get("experiment")
    if preset in (None, "null"):
        return []
    chosen = _chosen(text_of("experiment", str(preset)))
    method = typed.get("method", chosen.get("method"))
    if method is not None:
        chosen |= _chosen(text_of("method", method))
    groups = [group for group in chosen if group != "method"]
    return [group for group in groups if group in typed and typed[group] != chosen[group]]


def _commands(group: str, name: str) -> tuple[str, ...]:
    found = re.search(r"^# Command: (.*)$", text_of(group, name), re.MULTILINE)
    return tuple(c.removeprefix("probers-") for c in found[1].split(", ")) if found else ()


def _chosen(text: str) -> dict[str, str]:
    """Group -> choice of a file's defaults list."""
    return dict(_OVERRIDE.findall(text))


def _published(method: str) -> set[str]:
    """The keys below ``published`` that a method reads."""
    return set(re.findall(r"published\.(\w+)", text_of("method", method)))


def _listed(commands: Sequence[str]) -> str:
    return ", ".join(f"probers-{command}" for command in commands)
