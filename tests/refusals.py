"""Errors by their stable codes, and by the names and values that their messages must contain."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from probers.types import ProbersError, UserError


@contextmanager
def refused(
    code: str, *names: str, kind: type[ProbersError] = UserError
) -> Iterator[pytest.ExceptionInfo[ProbersError]]:
    """Expect an error of a kind and code whose one-line message contains every name."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert caught.value.code == code, f"{caught.value.code}: {message}"
    assert not [name for name in names if name not in message], message
    assert "\n" not in message
