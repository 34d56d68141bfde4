"""Entry points of the console scripts: arguments in, exit code out; and sweeps.

Hydra composes the configuration, but does not run the job: composing here keeps
the working directory untouched, leaves no files behind, and lets every mistake end
in one sentence and the right exit code (0 done, 1 failed, 2 wrong request, 130
interrupted). Nothing heavy is imported before the request is known to be right.
"""

from __future__ import annotations

import itertools
import logging
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from ..files import digest
from ..options import shown
from ..types import ProbersError, RunError, UserError
from .compose import COMMANDS, compose, normalise, quote, request
from .console import console, printable
from .presets import notes
from .runs import taking_back

if TYPE_CHECKING:
    from .settings import Settings

log = logging.getLogger(__name__)

_LONGEST = 100  # characters of a folder's name; file systems allow 255 bytes


def combinations(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the comma-separated values among Hydra overrides, none of them twice.

    What is no override at all stays as it is, for the command to refuse it in its own words.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException:
        return [list(overrides)]
    axes: list[list[str]] = []
    for override in parsed:
        key = override.get_key_element()
        if override.is_sweep_override():
            try:
                axes.append([f"{key}={value}" for value in override.sweep_string_iterator()])
            except HydraException as error:  # glob() has nothing to choose among
                raise UserError(
                    f"{shown(str(override.input_line))} names no values: write them out, as in {key}=a,b"
                ) from error
        else:
            axes.append([str(override.input_line)])
    return [list(job) for job in dict.fromkeys(itertools.product(*axes))]


def varied(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of each job the overrides that are not the same in all of them."""
    places = [i for i in range(len(jobs[0])) if len({job[i] for job in jobs}) > 1]
    return [[job[i] for i in places] for job in jobs]


def folder_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """A folder name for each job, of what it varies: ``head=linear,seed=1``.

    Readable as far as file systems allow, different for different jobs, and the same in
    another sweep over the same keys.
    """
    names = []
    for text in map(",".join, jobs):
        name = re.sub(r"[^\w.=,+-]+", "_", text)
        if name != text or len(name) > _LONGEST:
            # What was replaced or cut may have been all that told two jobs apart.
            name = f"{name[:_LONGEST]}-{digest(text, 6)}"
        names.append(name)
    return names


#: What runs a command in parts where ``launch`` is given, from the command's name and configuration.
_LAUNCHER = "probers.launch.run.run"
#: Command -> function (what each job varied, folders) -> the table that a sweep ends in.
_TABLES = {"train": "probers.train.report.compare_runs"}


def main(command: str, argv: Sequence[str] | None = None) -> None:
    """Run a command with ``argv`` (default: the process's) and exit with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with console():
            code = _main(command, arguments)
    except KeyboardInterrupt:
        code = _fail(f"probers-{command}: interrupted; finished work is kept, the same command resumes", 130)
    except BrokenPipeError:  # the reader of our output went away (`| head`)
        sys.stderr.close()
        code = 1
    except (UserError, RunError, OSError) as error:
        message, code = told(error)
        _fail(f"probers-{command}: {message}", code)
    sys.exit(code)


#: The console scripts.
demo, datagen, train, rag, compare, score, serve, check, merge = (
    partial(main, command) for command in COMMANDS
)


def _fail(message: str, code: int) -> int:
    print(printable(" ".join(message.splitlines())), file=sys.stderr)
    return code


def _main(command: str, arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        from .help import help_text

        print(help_text(command))
        return 0
    flags = {a for a in arguments if a in ("-m", "--multirun")}
    arguments = [a for a in arguments if a not in flags]
    show = _take_cfg_flag(arguments)
    overrides = normalise(command, arguments)
    jobs = combinations(overrides) if flags else [overrides]
    if len(jobs) > 1:
        jobs = _with_folders(command, jobs)
    configs = [request(command, job) for job in jobs]
    if show:
        from omegaconf import OmegaConf

        for job in jobs:
            print(OmegaConf.to_yaml(compose(command, job), resolve=True), end="")
        return 0
    targets = [_target(command, config) for config in configs]
    # The same of many jobs is told once.
    noted = [note for job, config in zip(jobs, configs, strict=True) for note in notes(job, config)]
    for note in dict.fromkeys(noted):
        log.info("note: %s", note)
    if len(jobs) > 1:
        return _run_all(command, targets, jobs, configs)
    with taking_back():
        targets[0](configs[0])
    return 0


def _target(command: str, settings: Settings) -> Callable[[Settings], Any]:
    """What does as asked: the command itself, or what launches its parts."""
    launched = getattr(settings, "launch", None) is not None
    return partial(resolve_name(_LAUNCHER), command) if launched else load(command)


def _with_folders(command: str, jobs: list[list[str]]) -> list[list[str]]:
    """The jobs of a sweep, each with a suffix to the name of its default folder where there is such a key."""
    if "suffix" not in compose(command, []):
        return jobs
    typed = {part.partition("=")[0] for part in jobs[0]}
    if typed & {"suffix", "out"}:
        return jobs
    names = folder_names(varied(jobs))
    return [[*job, f"suffix={quote(name)}"] for job, name in zip(jobs, names, strict=True)]


def _run_all(
    command: str,
    targets: Sequence[Callable[[Settings], Any]],
    jobs: list[list[str]],
    configs: list[Settings],
) -> int:
    """Run the jobs of a sweep, going on after one that fails, and compare those that did not.

    Returns:
        The worst exit code of a job.
    """
    names = [[part for part in job if not part.startswith("suffix=")] for job in varied(jobs)]
    done: list[tuple[list[str], Path]] = []
    worst = 0
    for name, target, config in zip(names, targets, configs, strict=True):
        log.info("== %s", " ".join(name))
        try:
            with taking_back():
                folder = target(config)
        except (UserError, RunError, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            message, code = told(error)
            worst = max(worst, _fail(f"probers-{command}: {' '.join(name)}: {message}", code))
            continue
        if isinstance(folder, Path) and getattr(config, "part", None) is None:
            done.append((name, folder))
    if command in _TABLES and done:
        table = resolve_name(_TABLES[command])([name for name, _ in done], [folder for _, folder in done])
        if table:
            log.info(table)
    return worst


def told(error: Exception) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else ""), 1
    code = f" [{error.code}]" if isinstance(error, ProbersError) else ""
    return f"{error}{code}", 2 if isinstance(error, UserError) else 1


def load(command: str) -> Callable[..., Any]:
    """What runs a command, from its settings."""
    return resolve_name(f"probers.{COMMANDS[command][1]}")  # type: ignore[no-any-return]


def run(command: str, overrides: Sequence[str]) -> Any:
    """Run a command inside this process, as ``probers-demo`` does; returns what it returns."""
    config = request(command, normalise(command, overrides))
    with taking_back():
        return _target(command, config)(config)


def _take_cfg_flag(arguments: list[str]) -> bool:
    """Remove ``--cfg job`` from the arguments; whether it was there."""
    for flag in ("--cfg", "-c"):
        if flag in arguments:
            index = arguments.index(flag)
            if arguments[index + 1 : index + 2] != ["job"]:
                raise UserError(f"{flag} takes the word 'job': {flag} job")
            del arguments[index : index + 2]
            return True
    return False
