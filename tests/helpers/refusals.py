"""Errors by their stable code and the options, files and values that the message names; interruptions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from probers.cli import main as cli
from probers.cli.runs import RunFolder, taking_back
from probers.types import Code, ProbersError, UserError


@contextmanager
def fails(
    code: Code | None, *named: object, kind: type[ProbersError] = UserError
) -> Iterator[pytest.ExceptionInfo[ProbersError]]:
    """Expect an error with this code (None for any), whose one-line message names each of ``named``."""
    with pytest.raises(kind) as caught:
        yield caught
        pytest.fail(f"nothing is refused: {code} {named}")
    message = str(caught.value)
    assert code in (None, caught.value.code), f"{caught.value.code}: {message}"
    assert "\n" not in message
    for each in named:
        assert str(each) in message, message


@contextmanager
def interrupted(owner: object, name: str, after: int) -> Iterator[None]:
    """Interrupt a function of a module or class after so many calls, and with it the body."""
    original, calls = getattr(owner, name), count()

    def call(*given: object, **options: object) -> object:
        if next(calls) == after:
            raise KeyboardInterrupt
        return original(*given, **options)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, call)
        yield


def interruptions(run: Callable[[], object], owner: object, name: str, after: int) -> Iterator[int]:
    """Run until the run ends, interrupting it each time that a function has been called so often."""
    for number in range(60):
        try:
            with interrupted(owner, name, after):
                run()
        except pytest.fail.Exception:  # nothing was interrupted
            return
        yield number
    raise AssertionError("the run never ended")


def exits(command: str, typed: Sequence[str]) -> Any:
    """The exit code of a command as it is typed."""
    with pytest.raises(SystemExit) as ended:
        cli.main(command, list(typed))
    return ended.value.code


def claimed(out: Path, command: str, config: dict[str, Any]) -> str:
    """Claim a run's folder, for another process to call; what the refusal says, "" where there is none."""
    try:
        with taking_back():
            RunFolder(out, command, config).claim()
    except UserError as error:
        return str(error)
    return ""
