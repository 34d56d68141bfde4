"""The help of a command: one screen of the keys that people set, all of it, or one group, block or key."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

from ..options import Option, about, allowed, field_types, nearest, options_of
from ..parts import PARTS
from ..types import UserError
from .components import choices, component_class
from .compose import groups_of, settings_of
from .presets import methods, presets
from .settings import default_component

_WIDTH, _SCREEN = 100, 80
_COLUMN = 26  # characters of a key and its default on the first screen
_MORE = """\
More:
  --help all   every key and every component
  --help NAME  a group (trigger), component (trigger=rind), block (model) or key
  --cfg job    print the resolved configuration and stop
  --version    print the version of this package and stop
  -m           run every combination of comma-separated values (key=a,b)"""
_OWN = """\
A class of your own derived from torch.nn.Module, as +head._target_=my_package.MyHead. It takes the width
first and maps states (n, width) to logits (n, 2), wrong and correct, or to one logit of "correct". Its
options are +head.OPTION=value."""
#: Keys whose default is a file of values.
_FILED = {"methods": "(see configs/methods.yaml)"}


@dataclass(frozen=True, slots=True)
class Key:
    """A dotted key, its default as typed, its range in words, and its description."""

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
    """Build the complete help of a command from the classes of its settings and components."""
    kind = settings_of(command)
    groups = {group: group_help(group) for group in sorted(groups_of(command))}
    return Help(about(kind), tuple(_keys(kind)), groups, presets(command), methods(command))


def group_help(group: str, *names: str) -> dict[str, Choice]:
    """Import the components of a group, or those with ``names``, and describe them and their options."""
    return {name: _choice(group, name) for name in names or choices(group)}


def _choice(group: str, name: str) -> Choice:
    if name not in PARTS[group]:
        return Choice("", ())  # a file of values for the keys of the others
    if (kind := component_class(group, name)) is None:
        return Choice(_OWN, ())
    return Choice(_plain(about(kind)), tuple(_key(option, f"{group}.") for option in options_of(kind)))


def _keys(kind: Any, prefix: str = "") -> Iterator[Key]:
    """List the keys of settings or of a block, those of blocks last."""
    for option in options_of(kind):
        yield _key(option, prefix)
    for each in fields(kind):
        block = field_types(kind)[each.name]
        if "fixed" in each.metadata and (component := default_component(each)) is not None:
            for option in options_of(resolve_name(component.target)):
                yield _key(option, f"{prefix}{each.name}.", component.options[option.name])
        elif "choice" not in each.metadata and is_dataclass(block):
            yield from _keys(block, f"{prefix}{each.name}.")


def _key(option: Option, prefix: str, default: Any = ...) -> Key:
    default = _FILED.get(option.name, option.default) if default is ... else default
    return Key(f"{prefix}{option.name}", _typed(default), allowed(option.type), _plain(option.about))


def _typed(value: Any) -> str:
    if isinstance(value, str) and value and value == value.strip() and value.isprintable():
        return value
    return json.dumps(value, ensure_ascii=False)


_ROLES = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``([^`]*)``")
_WORDS = {"None": "null", "True": "true", "False": "false"}


def _plain(text: str) -> str:
    """Return a docstring's text without markup, in the words that users type."""
    text = _ROLES.sub(lambda m: m[1] or m[2], text)
    return re.sub(r"\b(None|True|False)\b", lambda m: _WORDS[m[1]], text)


def help_text(command: str, topic: str = "") -> str:
    """Format the first screen of a command's help, ``all`` of it, or its topic: a group, component or key.

    UserError "unknown-choice" for a topic that the command does not have.
    """
    if not topic:
        return "\n".join(_screen(command))
    if topic == "all":
        return "\n".join([*_all(help_of(command)), "", _MORE])
    group, _, name = topic.partition("=")
    groups = groups_of(command)
    if group in groups and (not name or name in choices(group)):
        return "\n".join(_group(group, group_help(group, *filter(None, [name]))))
    keys = [*_keys(settings_of(command))]
    if lines := [line for key in keys if f"{key.name}.".startswith(f"{topic}.") for line in _shown(key, "")]:
        return "\n".join(lines)
    topics = choices(group) if group in groups and name else [*groups, *(key.name for key in keys)]
    hint = nearest(name or topic, topics)
    listed = ", ".join(topics if name else [*groups, "all"])
    raise UserError(f"--help {topic}: no such name{hint}; choose {listed}, or a key", "unknown-choice")


def _screen(command: str) -> Iterator[str]:
    """Yield the lines of the first screen: the marked keys, each with its first clause, which must fit."""
    kind: Any = settings_of(command)
    screen = kind.screen
    yield from _wrapped(about(kind).split("\n\n")[0], "", _SCREEN)
    yield from ("", f"Example, {screen.takes}:", f"  {screen.example}", "", "Keys and their defaults:")
    for dotted in screen.keys.split():
        block, _, name = dotted.rpartition(".")
        holder: Any = field_types(kind)[block] if block else kind
        options = options_of(holder)
        key = _key(next(option for option in options if option.name == name), f"{block}." if block else "")
        default = key.default if len(key.default) < _COLUMN else "[..]"
        left = f"{f'{dotted}={default}':<{_COLUMN}}"
        yield f"  {left} {re.split('[;.] ', ' '.join(key.about.split()))[0]}"
    if groups := groups_of(command):
        listed = [f"{group}={name or 'null'} ({len(choices(group))})" for group, name in groups.items()]
        text = ", ".join(listed) + (", experiment=null" if presets(command) else "")
        yield from ("", "Groups of components, with the number of choices:", *_wrapped(text, "  ", _SCREEN))
    yield from ("", *_MORE.splitlines())


def _all(help_: Help) -> Iterator[str]:
    yield from (help_.about, "", "Keys with their defaults:")
    for key in help_.keys:
        yield from _shown(key, "  ")
    if help_.presets:
        yield from ("", *_wrapped(f"experiment=NAME, one of: {', '.join(help_.presets)}", ""))
    if help_.methods:
        yield from _wrapped(f"with method=NAME, one of: {', '.join(help_.methods)}", "  ")
    for group, named in help_.groups.items():
        yield from ("", *_group(group, named))


def _group(group: str, named: Mapping[str, Choice]) -> Iterator[str]:
    if len(named) > 1:
        yield from _wrapped(f"{group}=NAME, one of: {', '.join(named)}", "")
    for name, choice in named.items():
        if choice.about or choice.keys:
            yield from (f"  {group}={name}", *_wrapped(choice.about.split("\n\n")[0], "      "))
            for key in choice.keys:
                yield from _shown(key, "    ")


def _shown(key: Key, indent: str) -> Iterator[str]:
    yield from _wrapped(f"{key.name}={key.default}", indent)
    yield from _wrapped(f"{key.about} [{key.allowed}]", f"{indent}    ")


def _wrapped(text: str, indent: str, width: int = _WIDTH) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
