"""Entry points of the console scripts: arguments in, exit code out; sweeps, and terminal output.

Hydra composes the configuration but does not run the job, so that no files appear in the working directory,
and every mistake ends in one sentence and the right exit code (0 done, 1 failed, 2 wrong request, 130
interrupted). Nothing heavy is imported before the request has been checked.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from ..types import HALVES, STEERING, ProbersError, UserError
from .command_lines import folder_names
from .compose import (
    COMMANDS,
    FREE,
    check_world,
    combinations,
    compose,
    key_value,
    normalise,
    quote,
    request,
    settings_of,
)
from .presets import note_on
from .runs import taking_back
from .settings import Settings

log = logging.getLogger(__name__)

#: Command -> function (varied options of each job, folders) -> the table at the end of a sweep.
_TABLES = dict.fromkeys(("train", "search"), "probers.train.report.compare_runs")
#: Control and direction characters, except line ends, tabs and colours.
_STEERING = re.compile(f"(?!\x1b\\[[0-9]{{1,2}}m|[\\n\\t])[{STEERING}]")


def printable(text: str) -> str:
    """Remove characters that control a terminal: names and texts come from models and files."""
    return _STEERING.sub("", text)


class Console(logging.Handler):
    """Handler that writes records below WARNING to standard output, others to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr if record.levelno >= logging.WARNING else sys.stdout
        # A bar that is being drawn makes room for the line.
        tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
        try:
            with nullcontext() if tqdm is None else tqdm.external_write_mode(file=stream):
                stream.write(f"{printable(self.format(record))}\n")
                stream.flush()
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)


@contextmanager
def console() -> Iterator[None]:
    """Show the package's log records (INFO and above) on the terminal while a command runs."""
    logger, handler = logging.getLogger("probers"), Console()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def varied(jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Keep the overrides of each job that differ between jobs."""
    places = [i for i in range(len(jobs[0])) if len({job[i] for job in jobs}) > 1]
    return [[job[i] for i in places] for job in jobs]


def main(command: str, argv: Sequence[str] | None = None) -> None:
    """Run a command with ``argv`` (default: the process's) and exit with its code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in ASCII, Latin-1 or cp1252 it lacks some characters
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = list(map(_utf8, sys.argv[1:] if argv is None else argv))
        with console():
            code = _main(command, arguments)
    except KeyboardInterrupt:
        kept = "finished work is kept, the same command resumes"
        if command in ("train", "search"):
            kept = "the same command resumes from the last checkpoint, one each save_every seconds"
        code = _fail(f"probers-{command}: interrupted; {kept}", 130)
    except BrokenPipeError:  # the reader of the output went away (`| head`)
        sys.stderr.close()
        code = 1
    except (ProbersError, OSError) as error:
        message, code = described(error)
        _fail(f"probers-{command}: {message}", code)
    sys.exit(code)


def _utf8(argument: str) -> str:
    """Read an argument as UTF-8 where the locale has another encoding, such as ASCII.

    UserError for an option other than a text's where the names of files cannot hold it.
    """
    with suppress(UnicodeError):
        argument = os.fsencode(argument).decode()
    if HALVES.search(argument):
        message = f"{argument!r} holds bytes that are not UTF-8, or half of a pair of surrogates"
        raise UserError(f"{message}: give valid Unicode", "argument")
    encoding, text = sys.getfilesystemencoding(), FREE.fullmatch(argument.partition("=")[0])
    if not text and argument != argument.encode(encoding, "replace").decode(encoding):
        message = f"{argument!r} holds characters that no file's name has in this locale ({encoding})"
        raise UserError(f"{message}: set PYTHONUTF8=1", "argument")
    return argument


#: The console scripts.
demo, datagen, train, search, rag, compare, score, serve, check, import_, export, judge, merge = (
    partial(main, command) for command in COMMANDS
)


def _fail(message: str, code: int) -> int:
    print(printable(" ".join(message.splitlines())), file=sys.stderr)
    return code


def _main(command: str, arguments: list[str]) -> int:
    if help_flags := {"-h", "--help"} & set(arguments):
        from .help import help_text

        topic = arguments[arguments.index(help_flags.pop()) + 1 :]
        print(help_text(command, *topic[:1]))
        return 0
    if "--version" in arguments:
        print(f"probers-{command} {resolve_name('probers:__version__')}")
        return 0
    several = {"-m", "--multirun"} & set(arguments)
    arguments = [a for a in arguments if a not in several]
    show = _take_cfg_flag(arguments)
    overrides = normalise(command, arguments)
    jobs = combinations(overrides) if several else [overrides]
    names = varied(jobs)
    if len(jobs) > 1:
        jobs = _with_folders(command, jobs)
    requests = [request(command, job) for job in jobs]
    for job, settings in zip(jobs, requests, strict=True):
        check_world(job, settings)
    if show:
        from omegaconf import OmegaConf

        for job in jobs:
            config = compose(command, settings_of(command).accepted(job))
            print(OmegaConf.to_yaml(config, resolve=True), end="")
        return 0
    targets = [_target(command, settings) for settings in requests]
    notes = [note_on(dict(map(key_value, job)), each) for job, each in zip(jobs, requests, strict=True)]
    for note in filter(None, dict.fromkeys(notes)):
        log.info("note: %s", note)
    if len(jobs) > 1:
        return _run_all(command, targets, names, requests)
    with taking_back():
        targets[0](requests[0])
    return 0


def _target(command: str, settings: Settings) -> Callable[[Settings], Any]:
    launched = getattr(settings, "launch", None) is not None
    return partial(resolve_name("probers.cli.launch.run"), command) if launched else load(command)


def _with_folders(command: str, jobs: list[list[str]]) -> list[list[str]]:
    """Return the jobs of a sweep, each with a folder below ``out`` or a suffix; parts share theirs."""
    typed, differing = dict(map(key_value, jobs[0])), varied(jobs)
    keys, out = {key_value(option)[0] for option in differing[0]}, typed.get("out", "null")
    if "suffix" in typed or "out" in keys or keys == {"part"}:
        return jobs
    names = folder_names([[o for o in job if key_value(o)[0] != "part"] for job in differing])
    if out != "null":
        others = [[o for o in job if key_value(o)[0] != "out"] for job in jobs]
        return [[*job, f"out={quote(f'{out}/{name}')}"] for job, name in zip(others, names, strict=True)]
    if "suffix" not in compose(command, []):
        return jobs
    return [[*job, f"suffix={quote(name)}"] for job, name in zip(jobs, names, strict=True)]


def _run_all(
    command: str, targets: Sequence[Callable[[Settings], Any]], names: list[list[str]],
    requests: list[Settings],
) -> int:  # fmt: skip
    """Run the jobs of a sweep, also after a failure, and compare the others; return the worst code."""
    done: list[tuple[list[str], Path]] = []
    worst = 0
    for name, target, settings in zip(names, targets, requests, strict=True):
        log.info("== %s", " ".join(name))
        try:
            with taking_back():
                folder = target(settings)
        except BrokenPipeError:
            raise
        except (ProbersError, OSError) as error:
            message, code = described(error)
            worst = max(worst, _fail(f"probers-{command}: {' '.join(name)}: {message}", code))
            continue
        if isinstance(folder, Path) and getattr(settings, "part", None) is None:
            done.append((name, folder))
    if command in _TABLES and done:
        table = resolve_name(_TABLES[command])([name for name, _ in done], [folder for _, folder in done])
        if table:
            log.info(table)
    return worst


def described(error: Exception) -> tuple[str, int]:
    """Return the message of an error, and the exit code."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}" + (f" ({error.filename})" if error.filename else ""), 1
    code = f" [{error.code}]" if isinstance(error, ProbersError) else ""
    return f"{error}{code}", 2 if isinstance(error, UserError) else 1


def load(command: str) -> Callable[..., Any]:
    """Import the function that runs a command from its settings."""
    return resolve_name(f"probers.{COMMANDS[command][1]}")  # type: ignore[no-any-return]


def run(command: str, overrides: Sequence[str]) -> Any:
    """Run a command inside this process, as ``probers-demo`` does; return its result."""
    settings = request(command, normalise(command, overrides))
    with taking_back():
        return _target(command, settings)(settings)


def _take_cfg_flag(arguments: list[str]) -> bool:
    for flag in ("--cfg", "-c"):
        if flag in arguments:
            index = arguments.index(flag)
            if arguments[index + 1 : index + 2] != ["job"]:
                raise UserError(f"{flag} takes the word 'job': {flag} job")
            del arguments[index : index + 2]
            return True
    return False
