"""Entry points of the console scripts: arguments in, exit code out.

Hydra composes the configuration, but does not run the job: composing here keeps
the working directory untouched, leaves no files behind, and lets every mistake end
in one sentence and the right exit code (0 done, 1 failed, 2 wrong request, 130
interrupted). Nothing heavy is imported before the request is known to be right.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .presets import check_preset, choices, departures, keeps_options, methods, presets, text_of, typed_values
from .runs import taking_back
from .sweeps import combinations, folder_names, varied
from .types import RunError, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Command -> function that runs it, imported only when needed.
_TARGETS = {
    "demo": "probers.demo:run",
    "datagen": "probers.datagen.run:run",
    "train": "probers.train.run:run",
    "rag": "probers.rag.answer:run",
    "compare": "probers.rag.compare:run",
    "testbed": "probers.datagen.testbed.run:run",
}
#: Command -> function (what each job varied, folders) -> the table that a sweep ends in.
_TABLES = {"train": "probers.train.sweep:compare_runs"}
#: What a folder of head=adaptive holds: its figures have no place in the table of probers.
_NO_PROBER = "adaptive.safetensors"
#: Short forms: what the user types -> the key it sets.
_ALIASES = {"model": "model.name"}
_FLAGS = """\
Flags:
  --help       this text
  --cfg job    print the resolved configuration and stop
  -m           run every combination of comma-separated values (key=a,b) and compare them"""


def demo() -> None:
    """Console script ``probers-demo``."""
    main("demo")


def datagen() -> None:
    """Console script ``probers-datagen``."""
    main("datagen")


def train() -> None:
    """Console script ``probers-train``."""
    main("train")


def rag() -> None:
    """Console script ``probers-rag``."""
    main("rag")


def compare() -> None:
    """Console script ``probers-compare``."""
    main("compare")


def testbed() -> None:
    """Console script ``probers-testbed``."""
    main("testbed")


def main(command: str, argv: Sequence[str] | None = None) -> None:
    """Run a command with ``argv`` (default: the process's) and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _main(command, arguments)
    except KeyboardInterrupt:
        code = _fail(
            f"probers-{command}: interrupted; what was finished is kept, the same command goes on from there",
            130,
        )
    except BrokenPipeError:  # the reader of our output went away (`| head`)
        sys.stderr.close()
        code = 1
    except (UserError, RunError, OSError) as error:
        message, code = _told(error)
        _fail(f"probers-{command}: {message}", code)
    sys.exit(code)


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def _main(command: str, arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(help_text(command))
        return 0
    flags = {a for a in arguments if a in ("-m", "--multirun")}
    overrides = normalise([a for a in arguments if a not in flags])
    show = _take_cfg_flag(overrides)
    jobs = combinations(overrides) if flags else [overrides]
    if len(jobs) > 1:
        jobs = _with_folders(command, jobs)
    configs = [compose(command, job) for job in jobs]
    if show:
        from omegaconf import OmegaConf

        for config in configs:
            print(OmegaConf.to_yaml(config, resolve=True), end="")
        return 0
    target = _load(command)
    if len(jobs) > 1:
        return _run_all(command, target, jobs, configs)
    with taking_back():
        target(configs[0])
    return 0


def _with_folders(command: str, jobs: list[list[str]]) -> list[list[str]]:
    """The jobs of a sweep, each with a suffix to the name of its default folder where there is such a key."""
    if "suffix" not in compose(command, []):
        return jobs
    typed = {part.partition("=")[0] for part in jobs[0]}
    if typed & {"suffix", "out"}:
        return jobs
    names = folder_names(varied(jobs))
    return [[*job, f"suffix={_quote(name)}"] for job, name in zip(jobs, names, strict=True)]


def _run_all(
    command: str, target: Callable[[DictConfig], Any], jobs: list[list[str]], configs: list[DictConfig]
) -> int:
    """Run the jobs of a sweep, going on after one that fails, and compare those that did not.

    Returns:
        The worst exit code of a job.
    """
    names = [[part for part in job if not part.startswith("suffix=")] for job in varied(jobs)]
    done: list[tuple[list[str], Path]] = []
    worst = 0
    for name, config in zip(names, configs, strict=True):
        print(f"== {' '.join(name)}", flush=True)
        try:
            with taking_back():
                folder = target(config)
        except (UserError, RunError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            message, code = _told(error)
            worst = max(worst, _fail(f"probers-{command}: {' '.join(name)}: {message}", code))
            continue
        if isinstance(folder, Path):
            done.append((name, folder))
    done = [(name, folder) for name, folder in done if not (folder / _NO_PROBER).exists()]
    if command in _TABLES and done:
        print(_imported(_TABLES[command])([name for name, _ in done], [folder for _, folder in done]))
    return worst


def _told(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else ""), 1
    return str(error), 2 if isinstance(error, UserError) else 1


def _load(command: str) -> Callable[[DictConfig], Any]:
    return _imported(_TARGETS[command])


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def run(command: str, overrides: Sequence[str]) -> Any:
    """Run a command inside this process, as ``probers-demo`` does; returns what it returns."""
    with taking_back():
        return _load(command)(compose(command, normalise(list(overrides))))


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
        return f"{key}={_quote(value)}"
    try:
        OverridesParser.create().parse_override(f"{key}={value}")
    except HydraException:
        return f"{key}={_quote(value)}"
    return f"{key}={value}"


def _quote(text: str) -> str:
    escaped = re.sub(r"(\\+)(?='|$)", r"\1\1", text).replace("'", r"\'")
    return f"'{escaped}'"


def _take_cfg_flag(overrides: list[str]) -> bool:
    """Remove ``--cfg job`` from the arguments; whether it was there."""
    for flag in ("--cfg", "-c"):
        if flag in overrides:
            index = overrides.index(flag)
            if overrides[index + 1 : index + 2] != ["job"]:
                raise UserError(f"{flag} takes the word 'job': {flag} job")
            del overrides[index : index + 2]
            return True
    return False


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


def help_text(command: str) -> str:
    """The help of a command: its configuration file, whose comments explain every key."""
    configs = resources.files("probers.configs")
    lines = configs.joinpath(f"{command}.yaml").read_text(encoding="utf-8").splitlines()
    about = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    body = lines[len(about) :]
    groups = sorted(
        {m[1] for line in body if (m := re.match(r"\s+- (?:override /|/)?(\w+)(?:@\w+)?: ", line))}
    )
    # The defaults list is Hydra's business; its choices are shown in words below.
    if "defaults:" in body:
        start = body.index("defaults:")
        end = start + 1
        while end < len(body) and (body[end].startswith((" ", "-")) or not body[end].strip()):
            end += 1
        body = body[:start] + body[end:]
    parts = [f"Usage: probers-{command} [key=value ...]", ""]
    parts += [line.lstrip("# ") for line in about]
    parts += ["", "Keys with their defaults:", *(f"  {line}".rstrip() for line in body if line.strip())]
    for group in groups:
        if group == "experiment":  # names only: each is a whole configuration
            parts += ["", f"experiment=NAME, one of: {', '.join(presets(command))}"]
            if methods(command):
                parts += [f"  with method=NAME, one of: {', '.join(methods(command))}"]
            continue
        names = choices(group)
        if names == ["default"]:  # a plain block of keys that several commands share
            text = configs.joinpath(group).joinpath("default.yaml").read_text(encoding="utf-8")
            parts += ["", *(f"  {group}.{line}" for line in text.splitlines())]
        elif names:
            parts += ["", f"{group}=NAME, one of: {', '.join(names)}"]
            for name in names if len(names) < 30 else []:
                text = text_of(group, name)
                keys = [x for x in text.splitlines() if x.strip() and "_target_" not in x]
                parts += [f"  {group}={name}", *(f"    {line}" for line in keys)]
    return "\n".join([*parts, "", _FLAGS])
