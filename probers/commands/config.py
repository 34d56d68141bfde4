"""From what was typed to the resolved configuration of a command, and its help.

The comments of the YAML files are what ``--help`` prints.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..options import shown
from ..types import UserError, first_line
from .presets import check_preset, choices, departures, methods, presets, text_of
from .schema import check, numbers, texts

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

#: Groups whose choice a preset makes together with options of that very choice.
_OF_A_CHOICE = ("trigger", "query")
#: Groups in whose place a class of the user's own can be named, by ``<group>._target_``.
_OWN = ("trigger", "query", "retriever")

#: Short forms: what the user types -> the key it sets.
_ALIASES = {"model": "model.name"}
#: What an argument that is no ``key=value`` stands for: one, or several as a list.
_PLACED, _PLACED_LIST = {"score": "texts"}, {"merge": "parts"}


def normalise(command: str, arguments: Sequence[str]) -> list[str]:
    """Hydra overrides from what was typed: ``--source wiki``, short keys, unquoted text.

    Raises:
        UserError: ``--source`` without a value.
    """
    overrides: list[str] = []
    placed: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--source":
            value = next(left, None)
            if value is None:
                raise UserError("--source needs a value: --source wiki or --source cot")
            argument = f"source={value}"
        elif argument.startswith("--source="):
            argument = argument.removeprefix("--")
        elif command in _PLACED and "=" not in argument and not argument.startswith("-"):
            argument = f"{_PLACED[command]}={argument}"
        elif command in _PLACED_LIST and _is_placed(argument):
            placed.append(argument)
            continue
        overrides += [_quoted(command, part) for part in _of_file(argument)]
    if placed:
        overrides.append(f"{_PLACED_LIST[command]}=[{','.join(map(quote, placed))}]")
    return overrides


def _is_placed(argument: str) -> bool:
    """Whether an argument is a path, which may hold an equals sign, and no option."""
    key, equals, _ = argument.partition("=")
    return not argument.startswith("-") and not (equals and _KEY.fullmatch(key))


def _of_file(argument: str) -> list[str]:
    """``questions=FILE`` as the choice of a file and its path; any other argument as it is."""
    key, equals, value = argument.partition("=")
    if key != "questions" or not equals or set(value.split(",")) <= set(choices("questions")):
        return [argument]
    known = "." not in value and "/" not in value and not Path(value).exists()
    return [argument] if known else ["questions=file", f"questions.path={value}"]


#: Keys whose text is sent as it is typed, whatever stands in it.
_FREE = re.compile(r"\+*(question|prompt\.\w+|trigger\.prompt|retriever\.\w+_prefix)")
_KEY = re.compile(r"\+{0,2}(?!hydra\b)[A-Za-z_]\w*(\.\w+)*")
_DEEPEST = 20  # brackets within brackets
#: Choices of nothing, for which Hydra has no word.
_NONE = ("experiment=null", "launch=null")


def _quoted(command: str, argument: str) -> str:
    """The override with free text quoted for Hydra's grammar, and aliases resolved."""
    key, equals, value = argument.partition("=")
    key = _ALIASES.get(key, key)
    if not equals or key.startswith("-"):
        return argument
    if _FREE.fullmatch(key):
        value = literal(value)
    if key == "question" or (key in texts(command) and _is_no_text(key, value)):
        return f"{key}={quote(value)}"
    return f"{key}={value if _parsed(key, value) is not None else quote(value)}"


#: What opens a reference in a configuration, with the backslashes before it.
_OPENING = re.compile(r"(\\*)\$\{")


def literal(text: str) -> str:
    """Text in which a configuration reads no reference."""
    return _OPENING.sub(lambda found: f"{found[1] * 2}\\${{", text)


def _parsed(key: str, value: str) -> Override | None:
    """The override in Hydra's grammar, None where it has no place there."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(f"{key}={value}")
    except (HydraException, ValueError, RecursionError):  # more digits or brackets than Python reads
        return None


def _is_no_text(key: str, value: str) -> bool:
    """Whether Hydra would read a number, a truth value or a list, as of ``out=1``."""
    override = _parsed(key, value)
    if override is None or override.is_sweep_override():
        return False
    read = override.value()
    return read is not None and not isinstance(read, str)


def quote(text: str) -> str:
    """Text as Hydra's grammar takes it whatever is in it."""
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", r"\'")
    return f"'{escaped}'"


def request(command: str, overrides: Sequence[str]) -> DictConfig:
    """The resolved configuration of a command, with every value checked.

    Raises:
        UserError: as :func:`compose`, or a value that is not allowed.
    """
    from omegaconf import open_dict

    config = compose(command, overrides)
    check(command, config)
    if config.get("part") is not None or config.get("launch") is not None:
        with open_dict(config):  # which a merge repeats without the part, and a launcher with one
            config.typed = [literal(override) for override in overrides]
    return config


def compose(command: str, overrides: Sequence[str]) -> DictConfig:
    """The resolved configuration of a command.

    Raises:
        UserError: an unknown key or choice (the choices are listed), or an
            argument that is no ``key=value``.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for override in overrides:
        _check_form(override)
    for override in overrides:
        _check_kind(command, override)
    overrides = [o for o in overrides if o not in _NONE]
    pairs = (override.partition("=") for override in overrides)
    # Without the marks and quotes of Hydra's grammar.
    typed = {key.lstrip("+"): value.strip("'\"") for key, _, value in pairs}
    check_preset(command, typed)
    try:
        with initialize_config_module("probers.configs", version_base="1.3"):
            config = hydra_compose(command, overrides=overrides)
            for group in departures(typed):
                own = [o for o in overrides if re.match(rf"[+]*{group}[.=]", o)]
                _depart(config, group, hydra_compose(command, overrides=own)[group])
            for group in _OWN:
                if f"{group}._target_" in typed and group not in typed:
                    _keep(config, group, typed)
            OmegaConf.to_container(config, resolve=True)  # references to keys that are not there fail here
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_explain(command, overrides, error)) from error
    except ValueError as error:  # of a key within a list
        raise UserError(
            f"cannot read {shown(' '.join(overrides))}: a list is given whole, as in key=[a,b], and has no "
            "options with names"
        ) from error


def _depart(config: DictConfig, group: str, plain: DictConfig) -> None:
    """Take the user's choice in a group without the options that a preset has for another choice.

    Args:
        plain: the user's choice with the user's options, without the preset.
    """
    from omegaconf import OmegaConf, open_dict

    if group not in _OF_A_CHOICE:  # there a preset's options still mean something for another choice
        plain = OmegaConf.masked_copy(config[group], list(map(str, plain)))
    with open_dict(config):
        config[group] = plain


def _keep(config: DictConfig, group: str, typed: Mapping[str, str]) -> None:
    """Take a class of the user's own without the options of the part whose place it takes."""
    from omegaconf import OmegaConf, open_dict

    given = [str(key) for key in config[group] if any(f"{t}.".startswith(f"{group}.{key}.") for t in typed)]
    with open_dict(config):
        config[group] = OmegaConf.masked_copy(config[group], given)


def _check_form(override: str) -> None:
    """Refuse what is no ``key=value`` of Hydra's grammar, in one sentence."""
    from omegaconf import grammar_parser
    from omegaconf.errors import OmegaConfBaseException

    key, equals, value = override.partition("=")
    told = shown(override)
    if not equals or override.startswith("-"):
        raise UserError(f"cannot read the argument {told!r}: write key=value (see --help)")
    if not _KEY.fullmatch(key):
        raise UserError(
            f"cannot read the key {shown(key)!r} of {told}: a key is a name such as seed or model.name"
        )
    if _depth(value) > _DEEPEST:
        raise UserError(f"{told} has more than {_DEEPEST} brackets within each other: give fewer")
    try:
        grammar_parser.parse(value if "${" in value else "-")
    except OmegaConfBaseException:
        raise UserError(
            f"{told} holds a reference that cannot be read: write ${{key}} or ${{oc.env:NAME}}"
        ) from None
    if _parsed(key, value) is None:
        raise UserError(f"cannot read {told}: close its quotes and brackets, or put the text into quotes")


def _check_kind(command: str, override: str) -> None:
    """Refuse several values, and what is no name where a name chooses a file."""
    key, _, value = override.partition("=")
    read, told = _parsed(key, value), shown(override)
    assert read is not None
    if read.is_sweep_override():
        raise UserError(
            f"{told} gives several values: add -m to run with each of them, or write a list as [a,b] and a "
            f"text with a comma as \"{key}='a,b'\""
        )
    group = key.lstrip("+")
    if group in _groups(command) and not isinstance(read.value(), str) and override not in _NONE:
        raise UserError(f"{told} is no name: give {group}=NAME, one of {', '.join(_names(command, group))}")


def _depth(text: str) -> int:
    """The most brackets that are open at once."""
    steps = ((c in "[{(") - (c in "]})") for c in text)
    return max(itertools.accumulate(steps), default=0)


def _groups(command: str) -> set[str]:
    """The keys of a command whose value is the name of a file."""
    listed = re.findall(r"^  - (?:override /|/)?(\w+)(?:@\w+)?: ", text_of("", command), re.MULTILINE)
    return {*listed, "method"} - {"model", "matcher"}


def _names(command: str, group: str) -> list[str]:
    special = {"experiment": presets, "method": methods}
    return special[group](command) if group in special else choices(group)


def _explain(command: str, overrides: Sequence[str], error: Exception) -> str:
    """One sentence for what Hydra says in several lines."""
    text = str(error)
    missing = re.search(r"Could not find '([\w-]+)/([^']+)'", text)
    if missing:
        group, choice = missing.groups()
        return f"unknown {group} {choice!r}: choose one of {', '.join(_names(command, group))}"
    unknown = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text)
    if unknown:
        return _unknown(command, next(g for g in unknown.groups() if g), overrides)
    dangling = re.search(r"Interpolation key '([^']+)' not found\s+full_key: (\S+)", text)
    if dangling:
        return f"{dangling[2]} is taken from {dangling[1]}, and there is no such key"
    where = re.search(r"full_key: (\S+)", text)
    if where:
        return f"{where[1]} cannot be read: {first_line(error).rpartition(': ')[2]}"
    merged = re.search(r"Error merging override (.*)", text)
    if merged:
        holds = "a list, or options that are each set by their own name"
        return f"{shown(merged[1])} does not fit: that key holds {holds}"
    return f"cannot read {shown(' '.join(overrides))}: {first_line(error)}"


def _unknown(command: str, key: str, overrides: Sequence[str]) -> str:
    """The sentence about a key that is not there: those beside it, and the nearest."""
    from omegaconf import OmegaConf

    group = key.partition(".")[0]
    chosen = [o for o in overrides if o.partition("=")[0] == group]
    config = compose(command, chosen if group in _groups(command) else [])
    if group == "launch" and group in _groups(command) and not chosen:
        return f"{key} is of launch=NAME: add one of {', '.join(f'launch={name}' for name in choices(group))}"
    block = key.rpartition(".")[0]
    while block and not OmegaConf.is_dict(OmegaConf.select(config, block)):
        block = block.rpartition(".")[0]
    beside = config if not block else OmegaConf.select(config, block)
    keys = sorted(f"{block}.{k!s}" if block else str(k) for k in beside if k != "_target_")
    if not block:
        keys += [f"model.{k}" for k in config.get("model", {})]
    near = difflib.get_close_matches(key, keys, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    listed = f"the keys are {', '.join(keys)}" if keys else f"{block} has none"
    return f"unknown key {key!r}{hint}: {listed}; --help explains them"


_FLAGS = """\
Flags:
  --help       this text
  --cfg job    print the resolved configuration and stop
  -m           run every combination of comma-separated values (key=a,b) and compare them"""


@dataclass(frozen=True)
class Help:
    """What a command's files say of it. Lines are those of the YAML files, numbers with what they may be."""

    about: list[str]
    keys: list[str]
    #: Group -> choice -> its lines. A group with the single choice ``default`` is a plain block of keys.
    groups: dict[str, dict[str, list[str]]]
    presets: list[str]
    methods: list[str]


def help_of(command: str) -> Help:
    """What the configuration files of a command say of it and of its parts."""
    lines = text_of("", command).splitlines()
    about = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    body = lines[len(about) :]
    groups = sorted(
        {m[1] for line in body if (m := re.match(r"\s+- (?:override /|/)?(\w+)(?:@\w+)?: ", line))}
    )
    # The defaults list is Hydra's business; its choices are shown in words.
    if "defaults:" in body:
        start = body.index("defaults:")
        end = start + 1
        while end < len(body) and (body[end].startswith((" ", "-")) or not body[end].strip()):
            end += 1
        body = body[:start] + body[end:]
    return Help(
        [line.lstrip("# ") for line in about],
        [line for line in _with_ranges(body, "", numbers(command)) if line.strip()],
        {
            group: {name: text_of(group, name).splitlines() for name in choices(group)}
            for group in groups
            if group != "experiment"  # names only: each is a whole configuration
        },
        presets(command) if "experiment" in groups else [],
        methods(command) if "experiment" in groups else [],
    )


def help_text(command: str) -> str:
    """The help of a command: its configuration file, whose comments explain every key."""
    told = help_of(command)
    parts = [f"Usage: probers-{command} [key=value ...]", "", *told.about, "", "Keys with their defaults:"]
    parts += [f"  {line}".rstrip() for line in told.keys]
    if told.presets:
        parts += ["", f"experiment=NAME, one of: {', '.join(told.presets)}"]
    if told.methods:
        parts += [f"  with method=NAME, one of: {', '.join(told.methods)}"]
    for group, files in told.groups.items():
        if list(files) == ["default"]:
            parts += ["", *(f"  {group}.{line}" for line in files["default"])]
        elif files:
            parts += ["", f"{group}=NAME, one of: {', '.join(files)}"]
            for name, lines in files.items() if len(files) < 30 else ():
                keys = [x for x in lines if x.strip() and "_target_" not in x]
                parts += [f"  {group}={name}", *(f"    {line}" for line in keys)]
    return "\n".join([*parts, "", _FLAGS])


def _with_ranges(lines: Sequence[str], block: str, ranges: Mapping[str, str]) -> Iterator[str]:
    """The lines of a file with what the schema says of a number put before what the comment says of it."""
    for line in lines:
        found = re.match(r"( *)(\w+):", line)
        if found:
            key = f"{block}.{found[2]}" if found[1] else found[2]
            block = block if found[1] else found[2]
            if key in ranges:
                line = re.sub(r"# ", f"# [{ranges[key]}] ", line, count=1)
        yield line
