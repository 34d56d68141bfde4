"""The package's errors in tests: kind, stable code, and the names and values in the message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from probers.types import Code, ProbersError


@contextmanager
def raises(
    kind: type[ProbersError], code: Code | None, *named: str
) -> Iterator[pytest.ExceptionInfo[ProbersError]]:
    """Expect one line with a code (None for any) that holds every name and value; yields the error."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert code in (None, caught.value.code), f"{caught.value.code}: {message}"
    assert "\n" not in message and all(name in message for name in named), message
