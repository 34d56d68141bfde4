"""Errors by their stable code, and by the options, files and values that the message names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from probers.types import Code, ProbersError, UserError


@contextmanager
def fails(code: Code, *named: object, kind: type[ProbersError] = UserError) -> Iterator[None]:
    """Expect an error with this code, whose one-line message names each of ``named``."""
    with pytest.raises(kind) as caught:
        yield
    message = str(caught.value)
    assert caught.value.code == code, message
    assert "\n" not in message
    for each in named:
        assert str(each) in message, message
