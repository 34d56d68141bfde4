"""From what was typed to the resolved configuration of a command; a mistake is one sentence."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from .presets import check_preset, choices, departures, keeps_options, typed_values
from .types import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Short forms: what the user types -> the key it sets.
_ALIASES = {"model": "model.name"}


def normalise(arguments: list[str]) -> list[str]:
    """Hydra overrides from what was typed: ``--source wiki``, short keys, unquoted text."""
    overrides: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--source":
            if position == len(arguments):
                raise UserError("--source needs a value: --source wiki or --source cot")
            argument = f"source={arguments[position]}"
            position += 1
        elif argument.startswith("--source="):
            argument = argument.removeprefix("--")
        elif argument in ("--cfg", "-c"):
            overrides.append(argument)
            continue
        overrides += [_quoted(part) for part in _of_file(argument)]
    return overrides


def _of_file(argument: str) -> list[str]:
    """``questions=FILE`` as the choice of a file and its path; any other argument as it is."""
    key, equals, value = argument.partition("=")
    if key != "questions" or not equals or set(value.split(",")) <= set(choices("questions")):
        return [argument]
    known = "." not in value and "/" not in value and not Path(value).exists()
    return [argument] if known else ["questions=file", f"questions.path={value}"]


def _quoted(argument: str) -> str:
    """The override with free text quoted for Hydra's grammar, and aliases resolved."""
    key, equals, value = argument.partition("=")
    key = _ALIASES.get(key, key)
    if not equals or key.startswith("-"):
        return argument
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if key == "question":  # always text, even where it looks like a list or a sweep
        return f"{key}={quote(value)}"
    try:
        OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return f"{key}={quote(value)}"
    return f"{key}={value}"


def quote(text: str) -> str:
    """Text as Hydra's grammar takes it whatever is in it."""
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", r"\'")
    return f"'{escaped}'"


def compose(command: str, overrides: list[str]) -> DictConfig:
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
        if override.startswith("-") or "=" not in override:
            raise UserError(f"cannot read the argument {override!r}: write key=value (see --help)")
    overrides = [o for o in overrides if o != "experiment=null"]  # Hydra has no word for "none"
    typed = typed_values(overrides)
    check_preset(command, typed)
    try:
        with initialize_config_module("probers.configs", version_base="1.3"):
            config = hydra_compose(command, overrides=overrides)
            for group in departures(typed):
                own = [o for o in overrides if re.match(rf"[+]*{group}[.=]", o)]
                _depart(config, group, hydra_compose(command, overrides=own)[group])
            OmegaConf.to_container(config, resolve=True)  # references to keys that are not there fail here
            return config
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_explain(command, overrides, error)) from error


def _depart(config: DictConfig, group: str, plain: DictConfig) -> None:
    """Take the user's choice in a group without the options that a preset has for another choice.

    Args:
        plain: the user's choice with the user's options, without the preset.
    """
    from omegaconf import OmegaConf, open_dict

    if keeps_options(group):
        plain = OmegaConf.masked_copy(config[group], list(map(str, plain)))
    with open_dict(config):
        config[group] = plain


def _explain(command: str, overrides: list[str], error: Exception) -> str:
    """One sentence for what Hydra says in several lines."""
    text = str(error)
    missing = re.search(r"Could not find '([\w-]+)/([^']+)'", text)
    if missing:
        group, choice = missing.groups()
        return f"unknown {group} {choice!r}: choose one of {', '.join(choices(group))}"
    unknown = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text)
    if unknown:
        key = next(g for g in unknown.groups() if g)
        keys = sorted(_keys(command))
        near = difflib.get_close_matches(key, keys, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"unknown key {key!r}{hint}: the keys are {', '.join(keys)}; --help explains them"
    dangling = re.search(r"Interpolation key '([^']+)' not found\s+full_key: (\S+)", text)
    if dangling:
        return f"{dangling[2]} is taken from {dangling[1]}, and there is no such key"
    return f"cannot read {' '.join(overrides)}: {' '.join(text.split())}"


def _keys(command: str) -> list[str]:
    config = compose(command, [])
    return [str(k) for k in config] + [f"model.{k}" for k in config.get("model", {})]
