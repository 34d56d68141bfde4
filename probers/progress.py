"""Progress bars: one for each piece of work, or a single numbered one for a whole of several stages.

A piece of work makes a :class:`Bar`. While a :class:`Whole` runs, it is not drawn and moves the whole's bar
instead, so that a command of many stages shows one bar, which only ever advances.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from contextvars import ContextVar, Token
from functools import cache
from typing import Any

from tqdm import tqdm

#: Share of what is left of a stage that the next piece of work in it covers: more pieces may follow.
_NEXT = 0.8
_FORMAT = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {desc}"

_running: ContextVar[Whole | None] = ContextVar("running", default=None)


@cache
def warn_once(message: str) -> None:
    """Log a warning, once."""
    logging.getLogger(__name__).warning(message)


def running() -> bool:
    """Tell whether a whole shows the one bar, beside which no other should be drawn."""
    return _running.get() is not None


class Bar(tqdm):  # type: ignore[misc]
    """Bar of one piece of work, with the arguments of tqdm; it moves the bar of a running whole."""

    _whole: Whole | None = None

    def __init__(self, *given: Any, **options: Any) -> None:
        whole = _running.get()
        if whole is not None:
            options["file"] = io.StringIO()
        super().__init__(*given, **options)
        if whole is not None and not self.disable:
            self._whole, (self._begun, self._span) = whole, whole.piece()
            self._move()

    def update(self, n: float | None = 1) -> bool | None:
        shown = super().update(n)
        self._move()
        return shown

    def close(self) -> None:
        super().close()
        self._move()

    def _move(self) -> None:
        if self._whole is not None and self.total:
            self._whole.move(self._begun + self._span * min(1.0, self.n / self.total))


class Whole:
    """One bar over named stages of known relative length.

    Used as a context manager; :meth:`stage` begins the next stage. A whole within a stage of another one
    moves the outer bar. ``stages`` maps names to lengths, in any unit and order.
    """

    def __init__(self, stages: Mapping[str, float]) -> None:
        self._stages = stages
        self._length = sum(stages.values()) or 1.0
        self._done = self._share = 0.0  # lengths of finished stages, and the running stage's share
        self._stage: str | None = None
        self._number = 0

    def __enter__(self) -> Whole:
        self._outer: Whole | None = _running.get()
        self._token: Token[Whole | None] = _running.set(self)
        if self._outer is None:
            self._bar = tqdm(total=1.0, bar_format=_FORMAT, dynamic_ncols=True, mininterval=0.3)
        else:
            self._begun, self._span = self._outer.piece()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        _running.reset(self._token)
        if kind is None:
            self._done, self._share, self._stage = self._length, 0.0, None
            self._draw()
        if self._outer is None:
            self._bar.close()

    def stage(self, name: str) -> None:
        """End the running stage and begin another; one that was not announced is not shown."""
        if name not in self._stages:
            return
        self._done += self._stages.get(self._stage or "", 0.0)
        self._stage, self._share = name, 0.0
        self._number += 1
        self.describe("")
        self._draw()

    def describe(self, inner: str) -> None:
        """Show the running stage, with the stage ``inner`` of a whole within it."""
        text = f"{self._number}/{len(self._stages)} {self._stage}" + (f": {inner}" if inner else "")
        if self._outer is None:
            self._bar.set_description_str(text, refresh=True)
        else:
            self._outer.describe(text)

    def piece(self) -> tuple[float, float]:
        """Return begin and length of the next piece of work within the running stage, as shares of it."""
        return self._share, _NEXT * (1 - self._share)

    def move(self, share: float) -> None:
        """Set the share of the running stage that is done; it never falls."""
        self._share = max(self._share, min(1.0, share))
        self._draw()

    def _draw(self) -> None:
        length = self._stages.get(self._stage or "", 0.0)
        done = min(1.0, (self._done + self._share * length) / self._length)
        if self._outer is not None:
            self._outer.move(self._begun + self._span * done)
        elif done > self._bar.n:
            self._bar.update(done - self._bar.n)
