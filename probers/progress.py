"""Progress of a process, reported to listeners: a launcher shows it for all its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Told how many units more are done, what they are called, and which share of the work is done in all.
Listener = Callable[[int, str, float], None]

_LISTENERS: list[Listener] = []


def tell(more: int, unit: str, share: float) -> None:
    """Say that ``more`` units are done, and which ``share`` (0 to 1) of all that the running bar counts."""
    for listener in _LISTENERS:
        listener(more, unit, share)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have a listener told within the block."""
    _LISTENERS.append(listener)
    try:
        yield
    finally:
        _LISTENERS.remove(listener)
