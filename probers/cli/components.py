"""Components of a command by name: triggers, queries, heads, retrievers, question sets, prompts, launchers.

A component is a class whose fields or constructor parameters are its options. A class of your own need not
be in the table of parts: ``trigger._target_=my_package.MyTrigger``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pkgutil import resolve_name
from typing import Any

from ..options import check_options, nearest, options_of, refuse_unknown, shown
from ..parts import PARTS, load_part, target_of
from ..types import UserError, first_line

#: Placeholder of a dotted path that the user must give.
MISSING = "???"


def choices(group: str) -> list[str]:
    """List the names of a group: components, and files such as prompts and presets."""
    folder = resources.files("probers.configs") / group
    files = folder.iterdir() if folder.is_dir() else ()
    named = {f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml")}
    return sorted(named | set(PARTS.get(group, ())))


def component_class(group: str, name: str) -> Any:
    """Import the class behind a name; None if the user must give it."""
    name = name if name in PARTS[group] else "testbed"  # files of values are prompts
    return load_part(group, name) if PARTS[group][name] else None


def component_node(group: str, name: str) -> dict[str, Any]:
    """Make the node of a component in a configuration: its class and the values of its options."""
    if name not in PARTS[group]:
        return component_node(group, "testbed") | values_of(group, name)
    kind = component_class(group, name)
    defaults = {} if kind is None else {option.name: option.default for option in options_of(kind)}
    return {"_target_": target_of(group, name) or MISSING, **defaults}


@cache
def file_of(group: str, name: str) -> Mapping[str, Any]:
    """Read a YAML file of a group; with "" as group one beside the groups."""
    import yaml

    file = resources.files("probers.configs") / group / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
    return yaml.load(file.read_text(encoding="utf-8"), loader)  # type: ignore[no-any-return]


def values_of(group: str, name: str) -> dict[str, Any]:
    """Read the values of a file, over those of the files that its ``defaults`` name."""
    values, inherited = dict(file_of(group, name)), dict[str, Any]()
    for base in values.pop("defaults", ()):
        inherited |= {} if base in PARTS.get(group, ()) else values_of(group, base)
    return inherited | values


def choice(name: str | None) -> Any:
    """Make a field of settings that holds a component of the group with the field's name, or None."""
    return field(default=None, metadata={"choice": name})


def fixed(target: str, **defaults: Any) -> Any:
    """Make a field of settings that holds a component of one class; ``defaults`` differ from the class's."""
    return field(default=None, metadata={"fixed": target, "defaults": defaults})


@dataclass(frozen=True, slots=True)
class Component:
    """A class with plain options, not yet instantiated; ``named`` if the configuration names the class."""

    group: str
    target: str
    options: Mapping[str, Any]
    named: bool = True

    @classmethod
    def read(cls, group: str, node: Mapping[str, Any], target: str | None = None) -> Component:
        """Read a configuration's node; ``target`` is the class, else its ``_target_``."""
        path = target or node.get("_target_")
        options = {str(key): value for key, value in node.items() if key != "_target_"}
        if not isinstance(path, str) or not re.fullmatch(r"\?\?\?|[A-Za-z_]\w*(\.\w+)+", path):
            raise UserError(f"{group}._target_={shown(path)} must be the dotted path of a class or function")
        component = cls(group, path, options, named=target is None)
        if path.startswith("probers."):  # the class of a user checks its own options
            check_options(component.kind, options, f"{group}.")
        return component

    @classmethod
    def of(cls, group: str, name: str, /, **options: Any) -> Component:
        """Choose a component by its name, with some options changed; UserError as in :meth:`read`."""
        if name not in choices(group):
            problem = f"unknown {group} {name!r}{nearest(name, choices(group))}"
            raise UserError(f"{problem}: choose one of {', '.join(choices(group))}", "unknown-choice")
        node = component_node(group, name)
        refuse_unknown(f"{group}={name}", options, [key for key in node if key != "_target_"])
        return cls.read(group, node | options)

    @property
    def name(self) -> str:
        """The option ``name`` of a component that has one, such as a prompt."""
        return str(self.options["name"])

    @property
    def node(self) -> dict[str, Any]:
        """Return the component's node in a configuration."""
        return {**({"_target_": self.target} if self.named else {}), **self.options}

    def get(self, option: str, default: Any = None) -> Any:
        return self.options.get(option, default)

    def with_options(self, **options: Any) -> Component:
        """Return the component with some options changed."""
        return Component(self.group, self.target, {**self.options, **options}, self.named)

    @property
    def kind(self) -> Callable[..., Any]:
        """The class; UserError where it cannot be imported."""
        key = f"{self.group}._target_"
        if self.target == MISSING:
            raise UserError(f"{self.group}=own needs the class: {key}=my_package.MyClass", "missing-value")
        try:
            return resolve_name(self.target)  # type: ignore[no-any-return]
        except (ImportError, AttributeError, ValueError) as error:
            message = f"{key}={self.target} cannot be imported: {first_line(error)}"
            raise UserError(message, "own-class") from error

    def make(self, *args: Any, **kwargs: Any) -> Any:
        """Make the component; ``kwargs`` replace its options, and errors of its class become a UserError."""
        kind = self.kind
        try:
            return kind(*args, **{key: _made(value) for key, value in self.options.items()} | kwargs)
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.target} cannot be made: {first_line(error)}", "own-class") from error


def _made(value: Any) -> Any:
    if isinstance(value, Mapping) and "_target_" in value:
        from hydra.utils import instantiate

        return instantiate(value)
    return value
