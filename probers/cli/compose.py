"""Composition of a command's settings from typed arguments, by Hydra's overrides, groups and presets.

Hydra gets the nodes of the components that a command line chooses, itself, by default or by a preset; no
other component is imported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ..options import nearest, shown, text_keys
from ..parts import PARTS
from ..prompts import TESTBED_FILE
from ..types import UserError, first_line
from .components import choices, component_node
from .presets import check_preset, chosen_by, departures, presets
from .settings import TESTBED, Settings, default_values, read

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

#: Command -> its settings, and the function that runs it; each is imported only when needed.
COMMANDS = {
    "demo": ("cli.demo.Demo", "cli.demo.run"),
    "datagen": ("datagen.settings.Datagen", "datagen.labelling.run"),
    "train": ("train.settings.Train", "train.run.run"),
    "search": ("train.settings.Search", "train.search.run"),
    "rag": ("rag.settings.Rag", "rag.command.run"),
    "compare": ("rag.settings.Compare", "rag.comparison.command.run"),
    "score": ("score.settings.Score", "score.run.run"),
    "serve": ("serve.settings.Serve", "serve.command.run"),
    "check": ("score.settings.Check", "score.check.run"),
    "import": ("score.settings.Import", "score.exchange.run_import"),
    "export": ("score.settings.Export", "score.exchange.run_export"),
    "judge": ("datagen.settings.Judge", "datagen.judges.agreement.run"),
    "merge": ("cli.merge.Merge", "cli.merge.run"),
}
#: Groups in which a preset chooses a component and sets options of that component.
_OF_A_CHOICE = ("trigger", "query")
#: Groups in which ``<group>._target_`` can name a class of the user's own.
_OWN = ("trigger", "query", "retriever")
#: Meaning of an argument that is not ``key=value``: one key, or several as a list.
_PLACED = {"score": "texts", "import": "probe", "export": "prober"}
_PLACED_LIST = {"merge": "parts", "judge": "files"}
#: Key of the first such argument if it does not belong to the list.
_PLACED_FIRST = {"judge": "action"}
#: Other words for a command's keys: one of two that mean the same, and short forms.
_SHORT = {"model": "model.name", "texts": "texts.path"}
_ALIKE = {"layer": "layers", "layers": "layer"}
#: Keys whose text is sent exactly as typed.
FREE = re.compile(r"\+*(question|prompt\.\w+|trigger\.prompt|retriever\.\w+_prefix)")
_KEY = re.compile(r"\+{0,2}(?!hydra\b)[A-Za-z_]\w*(\.\w+)*")
_DEEPEST = 20  # levels of nested brackets
#: Choices of nothing, for which Hydra has no word.
_NONE = ("experiment=null", "launch=null")
#: Start of a reference in a configuration, with the backslashes before it.
_OPENING = re.compile(r"(\\*)\$\{")


def settings_of(command: str) -> type[Settings]:
    """Import the class of a command's settings."""
    return resolve_name(f"probers.{COMMANDS[command][0]}")  # type: ignore[no-any-return]


@cache
def groups_of(command: str) -> dict[str, str | None]:
    """Map a command's groups of components to the name of the default."""
    keys = fields(settings_of(command))
    return {key.name: key.metadata["choice"] for key in keys if "choice" in key.metadata}


def quote(text: str) -> str:
    """Quote any text for Hydra's grammar."""
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", r"\'")
    return f"'{escaped}'"


def key_value(override: str) -> tuple[str, str]:
    """Split an override into key and value, without the marks and quotes of Hydra's grammar."""
    key, _, value = override.partition("=")
    return key.lstrip("+"), value.strip("'\"")


@cache
def parsed(override: str) -> Override | None:
    """Parse an override by Hydra's grammar; None if it does not fit."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(override)
    except (HydraException, ValueError, RecursionError):  # too many digits or brackets for Python
        return None


def normalise(command: str, arguments: Sequence[str]) -> list[str]:
    """Make Hydra overrides of typed arguments: ``--source wiki``, short keys, unquoted text."""
    overrides: list[str] = []
    placed: list[str] = []
    left = iter(arguments)
    for argument in left:
        key, equals, _ = argument.partition("=")
        flag = argument.startswith("-")
        if argument == "--source":
            if (value := next(left, None)) is None:
                raise UserError("--source needs a value: --source wiki or --source cot", "missing-value")
            argument = f"source={value}"
        elif argument.startswith("--source="):
            argument = argument.removeprefix("--")
        elif command in _PLACED and not equals and not flag:
            argument = f"{_PLACED[command]}={argument}"
        elif command in _PLACED_LIST and not flag and not (equals and _KEY.fullmatch(key)):
            placed.append(quote(argument))  # a path, which may hold an equals sign
            continue
        overrides += [_quoted(command, part) for part in _file_choice(argument)]
    for one, other in _ALIKE.items():
        if {one, other} <= {argument.partition("=")[0] for argument in arguments}:
            raise UserError(f"{one}= and {other}= are both given and mean the same: give one", "conflict")
    if placed and command in _PLACED_FIRST:
        overrides.append(f"{_PLACED_FIRST[command]}={placed.pop(0)}")
    return [*overrides, f"{_PLACED_LIST[command]}=[{','.join(placed)}]"] if placed else overrides


def _file_choice(argument: str) -> list[str]:
    """Turn ``questions=FILE`` into the choice of a file and its path; leave any other argument."""
    key, equals, value = argument.partition("=")
    if key != "questions" or not equals or set(value.split(",")) <= set(choices("questions")):
        return [argument]
    known = "." not in value and "/" not in value and not Path(value).exists()
    return [argument] if known else ["questions=file", f"questions.path={value}"]


def _quoted(command: str, argument: str) -> str:
    """Quote the override's free text for Hydra's grammar, and write ``model`` in full."""
    key, equals, value = argument.partition("=")
    if not equals or key.startswith("-"):
        return argument
    keys, other = {each.name for each in fields(settings_of(command))}, _ALIKE.get(key)
    key = other if other in keys and key not in keys else _SHORT.get(key, key)  # the command's own word
    if FREE.fullmatch(key):  # the text holds no reference
        value = _OPENING.sub(lambda opening: f"{opening[1] * 2}\\${{", value)
    override = parsed(f"{key}={value}")
    single = override is not None and not override.is_sweep_override()
    text = single and key in text_keys(settings_of(command))
    # Hydra would read a number, a truth value or a list, as in ``out=1``.
    if override is None or key == "question" or (text and not isinstance(override.value(), str | None)):
        value = quote(value)
    return f"{key}={value}"


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """List every combination of the comma-separated values among Hydra overrides, each once.

    Arguments that are not overrides stay, so that the command itself refuses them.
    """
    from hydra.errors import HydraException

    axes: list[list[str]] = []
    for text in overrides:
        if (override := parsed(text)) is None:
            return [list(overrides)]
        if not override.is_sweep_override():
            axes.append([text])
            continue
        key = override.get_key_element()
        try:
            axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        except HydraException as error:  # glob() has nothing to choose among
            raise UserError(f"{shown(text)} names no values: write them out, as in {key}=a,b") from error
    return [list(job) for job in dict.fromkeys(itertools.product(*axes))]


def request(command: str, overrides: Sequence[str]) -> Settings:
    """Make the settings of a command, every value checked; UserError as in :func:`compose`."""
    from omegaconf import OmegaConf

    kind = settings_of(command)
    config = compose(command, kind.accepted(overrides))
    # Hydra's mark of a missing value; a component without a class reports it itself.
    for key in sorted(OmegaConf.missing_keys(config)):
        if not key.endswith("._target_"):
            raise UserError(f"{key}=??? is not a value: give one", "missing-value")
    record = _unread(config)
    if config.get("part") is not None or config.get("launch") is not None:
        # A merge repeats them without the part, and a launcher with one.
        record["typed"] = list(overrides)
    values = {key: value for key, value in _resolved(config).items() if key != "published"}
    settings = read(kind, values, _record=record, _typed=tuple(overrides))
    for key, _ in map(key_value, overrides):
        for unread, why in settings.unread.items():
            if f"{key}.".startswith(f"{unread}."):
                raise UserError(f"{key} has no effect: {why}. Leave it out", "conflict")
    return settings


def check_world(typed: Sequence[str], settings: Settings) -> None:
    """Refuse questions, passages or articles of the testbed that nobody asked for with a real model."""
    model = getattr(settings, "model", None)
    if model is None or model.name == TESTBED or Path(model.name, TESTBED_FILE).is_file():
        return
    given = {key_value(override)[0].partition(".")[0] for override in typed}
    for key in settings.of_testbed:
        if key not in given:
            problem = f"{key} is not given, and those of the testbed are of a fictional world"
            hint = nearest(model.name.lower(), (TESTBED,))
            remedy = f"with model={model.name}{hint} give {key}=FILE (or {key}=testbed)"
            raise UserError(f"{problem}: {remedy}", "missing-value")


def _resolved(config: DictConfig) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in values.items() if key != "commands"}


def _unread(config: DictConfig) -> dict[str, Any]:
    """Return plain values for a file: references to the environment stay ``${oc.env:NAME}``."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers.oc import env

    def unread(*names: Any) -> str:  # a default may be a number
        return f"${{oc.env:{','.join(map(str, names))}}}"

    OmegaConf.register_new_resolver("oc.env", unread, replace=True)
    try:
        return _resolved(config)
    finally:
        OmegaConf.register_new_resolver("oc.env", env, replace=True)


def fill_store(command: str, overrides: Sequence[str]) -> None:
    """Tell Hydra the defaults of a command, and those of the components that the overrides choose."""
    groups = groups_of(command)
    defaults: list[Any] = ["_self_", *({group: name} for group, name in groups.items())]
    if presets(command):
        defaults.append({"experiment": None})
    node = {"defaults": defaults, **default_values(settings_of(command))}
    _store(command, node)
    typed = dict(map(key_value, overrides))
    preset = chosen_by(typed) if "experiment" in typed else {}
    for group, name in (groups | preset | typed).items():
        if group in groups and name in choices(group):
            name = name if name in PARTS[group] else "testbed"  # other files are prompts
            _store(name, component_node(group, name), group)


def _store(name: str, node: dict[str, Any], group: str | None = None) -> None:
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name, node, group, provider="probers")


def compose(command: str, overrides: Sequence[str]) -> DictConfig:
    """Compose the resolved configuration of a command; UserError lists the valid keys or choices."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    for override, value in [(override, _read(override)) for override in overrides]:
        _check(command, override, value)
    overrides = [o for o in overrides if o not in _NONE]
    typed = dict(map(key_value, overrides))
    preset = not typed.keys().isdisjoint(("experiment", "method"))
    if preset:
        check_preset(command, typed)
    try:
        with initialize_config_module("probers.configs", version_base="1.3"):
            fill_store(command, overrides)
            config = hydra_compose(command, overrides=overrides)
            replaced: dict[str, DictConfig] = {}
            for group in departures(typed) if preset else ():
                chosen = [o for o in overrides if key_value(o)[0].partition(".")[0] == group]
                fill_store(command, chosen)
                replaced[group] = plain = hydra_compose(command, overrides=chosen)[group]
                # Elsewhere a preset's options also fit another choice, but never a file.
                if group not in _OF_A_CHOICE and plain.get("path") is None:
                    replaced[group] = OmegaConf.masked_copy(config[group], list(map(str, plain)))
            for group in _OWN:
                if f"{group}._target_" in typed and group not in typed:
                    node = replaced.get(group, config[group])
                    given = (k for k in node if any(f"{t}.".startswith(f"{group}.{k}.") for t in typed))
                    replaced[group] = OmegaConf.masked_copy(node, list(map(str, given)))
            with open_dict(config):
                for group, node in replaced.items():
                    config[group] = node
            OmegaConf.to_container(config, resolve=True)  # references to missing keys fail here
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(command, overrides, error) from error
    except ValueError as error:  # about a key within a list
        message = f"cannot read {shown(' '.join(overrides))}: give a list whole, as in key=[a,b]"
        raise UserError(message) from error


def _read(override: str) -> Override:
    """Read an override; refuse what Hydra's grammar cannot read, in one sentence."""
    from omegaconf import grammar_parser
    from omegaconf.errors import OmegaConfBaseException

    key, equals, value = override.partition("=")
    typed = shown(override)
    if not equals or override.startswith("-"):
        raise UserError(f"cannot read {typed!r}{nearest(key, ('--source',))}: write key=value (see --help)")
    if not _KEY.fullmatch(key):
        raise UserError(f"cannot read the key {shown(key)!r} of {typed}: give a name like seed or model.name")
    if max(itertools.accumulate((c in "[{(") - (c in "]})") for c in value), default=0) > _DEEPEST:
        raise UserError(f"{typed} nests more than {_DEEPEST} brackets: give fewer")
    try:
        grammar_parser.parse(value if "${" in value else "-")
    except OmegaConfBaseException:
        raise UserError(f"{typed} holds an invalid reference: write ${{key}} or ${{oc.env:NAME}}") from None
    if (parse := parsed(override)) is None:
        raise UserError(f"cannot read {typed}: close its quotes and brackets, or put the text into quotes")
    return parse


def _check(command: str, override: str, read: Override) -> None:
    """Refuse several values, and a value other than a name where a name chooses a component."""
    (group, _), typed = key_value(override), shown(override)
    if read.is_sweep_override():
        key = override.partition("=")[0]
        remedy = f"add -m to run each, or write [a,b] or the text \"{key}='a,b'\""
        raise UserError(f"{typed} gives several values: {remedy}")
    if group in groups_of(command) and override not in _NONE and read.value() not in choices(group):
        listed, name = ", ".join(choices(group)), shown(read.value())
        hint = nearest(name, choices(group))
        raise UserError(f"unknown {group} {name!r}{hint}: choose one of {listed}", "unknown-choice")


def _explain(command: str, overrides: Sequence[str], error: Exception) -> UserError:
    """Explain Hydra's refusal in one sentence: the first override that names nothing known."""
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationKeyError, InterpolationResolutionError

    if isinstance(error, InterpolationKeyError) and (missing := re.search("'(.+)'", str(error))):
        message = f"{error.full_key} is taken from {missing[1]}, which does not exist"
        return UserError(f"{message}: choose another value for it", "unknown-key")
    if isinstance(error, InterpolationResolutionError):
        return UserError(f"{error.full_key} cannot be read: {first_line(error).rpartition(': ')[2]}")
    choosing = [o for o in overrides if key_value(o)[0] in {*groups_of(command), "experiment", "method"}]
    if len(choosing) < len(overrides):
        keys = [*_dotted(OmegaConf.to_container(compose(command, choosing), resolve=False))]
        for override in overrides:
            key = key_value(override)[0]
            if not override.startswith("+") and key not in keys:
                return UserError(_unknown(command, key, keys), "unknown-key")
    return UserError(f"cannot read {shown(' '.join(overrides))}: {first_line(error)}", "argument")


def _dotted(values: Any, prefix: str = "") -> Iterator[str]:
    for name, value in values.items() if isinstance(values, dict) else ():
        yield f"{prefix}{name}"
        yield from _dotted(value, f"{prefix}{name}.")


def _unknown(command: str, key: str, keys: Sequence[str]) -> str:
    """Describe an unknown key: the nearest, and the keys beside it."""
    block = key.rpartition(".")[0]
    if block in groups_of(command) and f"{block}._target_" not in keys:
        return f"{key} needs a launcher: add {' or '.join(f'launch={name}' for name in choices(block))}"
    beside = [each for each in keys if each.rpartition(".")[0] == block and not each.endswith("._target_")]
    listed = f"the keys are {', '.join(sorted(beside))}" if beside else f"{block} has none"
    return f"unknown key {key!r}{nearest(key, keys)}: {listed}; --help all explains them"
