"""From what was typed to the settings of a command, by Hydra's overrides, groups and presets."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ..options import shown, text_keys
from ..types import UserError, first_line
from .components import COMPONENTS, choices, node_of
from .presets import check_preset, departures, methods, presets
from .settings import Settings, default_values, read

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

#: Command -> its settings, and the function that runs it; each is imported only when needed.
COMMANDS = {
    "demo": ("commands.settings.Demo", "commands.demo.run"),
    "datagen": ("datagen.settings.Datagen", "datagen.run.run"),
    "train": ("train.settings.Train", "train.run.run"),
    "rag": ("rag.settings.Rag", "rag.command.run"),
    "compare": ("rag.settings.Compare", "rag.compare.run.run"),
    "score": ("score.settings.Score", "score.run.run"),
    "serve": ("serve.settings.Serve", "serve.command.run"),
    "check": ("score.settings.Check", "score.check.run"),
    "merge": ("commands.settings.Merge", "commands.merge.run"),
}
#: Groups whose choice a preset makes together with options of that very choice.
_OF_A_CHOICE = ("trigger", "query")
#: Groups in whose place a class of the user's own can be named, by ``<group>._target_``.
_OWN = ("trigger", "query", "retriever")
#: Keys beside those of the settings: what presets bring for their own references, and their commands.
_OF_PRESETS = ("published", "commands")


def settings_of(command: str) -> type[Settings]:
    """The class of a command's settings."""
    return resolve_name(f"probers.{COMMANDS[command][0]}")  # type: ignore[no-any-return]


def groups_of(kind: type[Settings]) -> dict[str, str | None]:
    """The groups of components that a command has, with the name of the default."""
    return {f.name: f.metadata["choice"] for f in fields(kind) if "choice" in f.metadata}


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
                raise UserError("--source needs a value: --source wiki or --source cot", "missing-value")
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
    if key == "question" or (key in _texts(command) and _is_no_text(key, value)):
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


@cache
def _texts(command: str) -> set[str]:
    """Dotted keys whose value is text whatever it looks like."""
    return set(text_keys(settings_of(command)))


def request(command: str, overrides: Sequence[str]) -> Settings:
    """The settings of a command, every value checked.

    Raises:
        UserError: as :func:`compose`, or a value that is not allowed.
    """
    from omegaconf import OmegaConf

    config, kind = compose(command, overrides), settings_of(command)
    # Hydra's mark of a value that is still to come; a component without a class says so itself.
    for key in sorted(OmegaConf.missing_keys(config)):
        if not key.endswith("._target_"):
            raise UserError(f"{key}=??? stands for no value: give one", "missing-value")
    record = _unread(config)
    if config.get("part") is not None or config.get("launch") is not None:
        # A merge repeats them without the part, and a launcher with one.
        record["typed"] = list(overrides)
    values = {key: value for key, value in _resolved(config).items() if key not in _OF_PRESETS}
    return read(kind, values, _record=record)


def _resolved(config: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf

    found = OmegaConf.to_container(config, resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key != "commands"}


def _unread(config: DictConfig) -> dict[str, Any]:
    """Plain values for a file: what is taken from the environment stays ``${oc.env:NAME}``."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers.oc import env

    def unread(*names: Any) -> str:  # a default may be a number
        return f"${{oc.env:{','.join(map(str, names))}}}"

    OmegaConf.register_new_resolver("oc.env", unread, replace=True)
    try:
        return _resolved(config)
    finally:
        OmegaConf.register_new_resolver("oc.env", env, replace=True)


@cache
def fill_store(command: str) -> None:
    """Tell Hydra the defaults of a command and of every component that it may choose."""
    from hydra.core.config_store import ConfigStore

    store, kind = ConfigStore.instance(), settings_of(command)
    groups = groups_of(kind)
    defaults: list[Any] = ["_self_", *({group: name} for group, name in groups.items())]
    if presets(command):
        defaults.append({"experiment": None})
    store.store(name=command, node={"defaults": defaults, **default_values(kind)}, provider="probers")
    for group in groups:
        for name in COMPONENTS[group]:
            store.store(group=group, name=name, node=node_of(group, name), provider="probers")


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

    fill_store(command)
    for override in overrides:
        _check_form(override)
    for override in overrides:
        _check_kind(command, override)
    overrides = [o for o in overrides if o not in _NONE]
    # Without the marks and quotes of Hydra's grammar.
    typed = {k.lstrip("+"): v.strip("'\"") for k, _, v in (each.partition("=") for each in overrides)}
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
        raise _explain(command, overrides, error) from error
    except ValueError as error:  # of a key within a list
        raise UserError(
            f"cannot read {shown(' '.join(overrides))}: a list is given whole, as in key=[a,b], and has no "
            "options with names"
        ) from error


def _depart(config: DictConfig, group: str, plain: DictConfig) -> None:
    """Take the user's choice in a group, ``plain``, without a preset's options for another choice."""
    from omegaconf import OmegaConf, open_dict

    # Elsewhere a preset's options still mean something for another choice, but not for a file.
    if group not in _OF_A_CHOICE and plain.get("path") is None:
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
    return max(itertools.accumulate((c in "[{(") - (c in "]})") for c in text), default=0)


def _groups(command: str) -> set[str]:
    """The keys of a command whose value is a name of components or presets."""
    found = set(groups_of(settings_of(command)))
    return found | {"experiment", "method"} if presets(command) else found


def _names(command: str, group: str) -> list[str]:
    special = {"experiment": presets, "method": methods}
    return special[group](command) if group in special else choices(group)


def _explain(command: str, overrides: Sequence[str], error: Exception) -> UserError:
    """One sentence for what Hydra refuses: the first override that names nothing there is."""
    from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError

    if isinstance(error, InterpolationKeyError) and (found := re.search("'(.+)'", str(error))):
        told = f"{error.full_key} is taken from {found[1]}, which does not exist: choose another value for it"
        return UserError(told, "unknown-key")
    if isinstance(error, InterpolationResolutionError):
        return UserError(f"{error.full_key} cannot be read: {str(error).splitlines()[0].rpartition(': ')[2]}")
    choosing: list[str] = []
    for override in overrides:
        key, _, value = override.partition("=")
        group = key.lstrip("+")
        if group in _groups(command) and value.strip("'\"") not in _names(command, group):
            listed = ", ".join(_names(command, group))
            return UserError(f"unknown {group} {shown(value)!r}: choose one of {listed}", "unknown-choice")
        if group in _groups(command):
            choosing.append(override)
    if len(choosing) < len(overrides):
        there = compose(command, choosing)
        for override in overrides:
            key = override.partition("=")[0]
            if not key.startswith("+") and not _is_there(there, key):
                return UserError(_unknown(command, key, overrides), "unknown-key")
    return UserError(f"cannot read {shown(' '.join(overrides))}: {first_line(error)}", "argument")


def _is_there(config: Any, key: str) -> bool:
    """Whether a configuration has a dotted key."""
    from omegaconf import OmegaConf

    for name in key.split("."):
        if not OmegaConf.is_dict(config) or name not in config:
            return False
        config = config._get_node(name)
    return True


def _unknown(command: str, key: str, overrides: Sequence[str]) -> str:
    """The sentence about a key that is not there: those beside it, and the nearest."""
    from omegaconf import OmegaConf

    group = key.partition(".")[0]
    chosen = [o for o in overrides if o.partition("=")[0] == group]
    config = compose(command, chosen if group in _groups(command) else [])
    if group == "launch" and group in _groups(command) and not chosen:
        return f"{key} needs a launcher: add {' or '.join(f'launch={name}' for name in choices(group))}"
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
