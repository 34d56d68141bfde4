"""The help of a command: its keys with defaults and ranges, and its components."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ..options import allowed, field_types
from .components import COMPONENTS, choices, told_of
from .compose import groups_of, settings_of
from .presets import methods, presets
from .settings import default_component
from .signatures import Option, signature

_WIDTH = 100
_FLAGS = """\
Flags:
  --help       this text
  --cfg job    print the resolved configuration and stop
  -m           run every combination of comma-separated values (key=a,b) and compare them"""

#: Keys whose default is a file of values.
_FILED = {"methods": "(see configs/methods.yaml)"}


@dataclass(frozen=True, slots=True)
class Key:
    """A dotted key, its default as typed, its range in words ("" for obvious ones), and more."""

    name: str
    default: str
    allowed: str
    about: str


@dataclass(frozen=True, slots=True)
class Choice:
    """A component in the help."""

    about: str
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Help:
    """The help of a command: its keys, those of blocks last, components by group and name, and presets."""

    about: str
    keys: tuple[Key, ...]
    groups: Mapping[str, Mapping[str, Choice]]
    presets: Sequence[str]
    methods: Sequence[str]


def help_of(command: str) -> Help:
    """Build the help of a command from the classes of its settings and components."""
    kind = settings_of(command)
    groups = {
        group: {name: _choice(group, name) for name in choices(group)} for group in sorted(groups_of(kind))
    }
    about, keys = signature(_path(kind)).about, tuple(_keys(kind))
    return Help(about, keys, groups, presets(command), methods(command))


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _keys(kind: type, prefix: str = "") -> Iterator[Key]:
    """List the keys of settings or of a block, those of blocks last."""
    types, told = field_types(kind), {option.name: option for option in signature(_path(kind)).options}
    blocks: list[Key] = []
    for each in fields(kind):
        name, type_ = each.name, types[each.name]
        if name.startswith("_") or "choice" in each.metadata:
            continue
        if "fixed" in each.metadata:
            component = default_component(each)
            assert component is not None
            options = signature(component.target).options
            blocks += [_key(o, f"{prefix}{name}.", component.options[o.name]) for o in options]
        elif isinstance(type_, type) and is_dataclass(type_):
            blocks += _keys(type_, f"{prefix}{name}.")
        else:
            option = told[name]
            default = option.default if option.default is not None else _FILED.get(name)
            yield Key(f"{prefix}{name}", _typed(default), allowed(type_), _plain(option.about))
    yield from blocks


def _choice(group: str, name: str) -> Choice:
    if name not in COMPONENTS[group]:
        return Choice("", ())  # a file of values for the keys of the others
    told = told_of(group, name)
    return Choice(_plain(told.about), tuple(_key(option, f"{group}.") for option in told.options))


def _key(option: Option, prefix: str, default: Any = ...) -> Key:
    value = option.default if default is ... else default
    return Key(
        f"{prefix}{option.name}", _typed(value), ", ".join(map(str, option.choices)), _plain(option.about)
    )


def _typed(value: Any) -> str:
    """Format a default as users type it."""
    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=False)


_ROLES = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``([^`]*)``")
_WORDS = {"None": "null", "True": "true", "False": "false"}


def _plain(text: str) -> str:
    """Return a docstring's text without markup, in the words that users type."""
    text = _ROLES.sub(lambda m: m[1] or m[2], text)
    return re.sub(r"\b(None|True|False)\b", lambda m: _WORDS[m[1]], text)


def help_text(command: str) -> str:
    """Format the help of a command as plain text."""
    told = help_of(command)
    lines = [f"Usage: probers-{command} [key=value ...]", "", told.about, "", "Keys with their defaults:"]
    for key in told.keys:
        lines += _shown(key, "  ")
    if told.presets:
        lines += ["", *_wrapped(f"experiment=NAME, one of: {', '.join(told.presets)}", "")]
    if told.methods:
        lines += _wrapped(f"with method=NAME, one of: {', '.join(told.methods)}", "  ")
    for group, named in told.groups.items():
        lines += ["", *_wrapped(f"{group}=NAME, one of: {', '.join(named)}", "")]
        for name, choice in named.items():
            if not choice.about and not choice.keys:
                continue
            lines += [f"  {group}={name}", *_wrapped(choice.about.split("\n\n")[0], "      ")]
            for key in choice.keys:
                lines += _shown(key, "    ")
    return "\n".join([*lines, "", _FLAGS])


def _shown(key: Key, indent: str) -> Iterator[str]:
    yield from _wrapped(f"{key.name}={key.default}", indent)
    about = f"{key.about} [{key.allowed}]" if key.allowed else key.about
    yield from _wrapped(about, f"{indent}    ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
