"""Errors by their stable code, and by the options, files and values that the message names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from probers.types import Code, ProbersError, UserError


@contextmanager
def fails(
    code: Code | None, *named: object, kind: type[ProbersError] = UserError
) -> Iterator[pytest.ExceptionInfo[ProbersError]]:
    """Expect an error with this code (None for any), whose one-line message names each of ``named``."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert code in (None, caught.value.code), f"{caught.value.code}: {message}"
    assert "\n" not in message
    for each in named:
        assert str(each) in message, message
