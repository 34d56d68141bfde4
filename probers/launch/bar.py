"""One bar over all parts of a run, from what their workers say of how far they are."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from types import TracebackType

from tqdm import tqdm

from ..data.partition import Partition
from .parts import Parts
from .worker import read_state, state_file

_OFTEN, _SELDOM = 0.5, 30.0  # seconds between two pictures of the bar, on a terminal and in a file
_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total} parts [{elapsed}{postfix}]"


class PartsBar:
    """Shows how many parts are done, and how many units a second all workers do together.

    Args:
        parts: the run.
        left: those that are not finished.
    """

    def __init__(self, parts: Parts, left: Iterable[Partition]) -> None:
        self._parts, self._left = parts, list(left)
        self._done = dict.fromkeys(self._left, 0)
        self._made, self._since, self._shown = 0, time.monotonic(), 0.0
        for part in self._left:
            state_file(parts, part).unlink(missing_ok=True)
        self._bar = tqdm(
            total=parts.count, initial=parts.count - len(self._left), desc=f"probers-{parts.command}",
            bar_format=_FORMAT, dynamic_ncols=True,
        )  # fmt: skip

    def __enter__(self) -> PartsBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._bar.close()

    def look(self) -> None:
        """Read how far the parts are that are not finished."""
        reached, unit = 0.0, ""
        for part in self._left:
            state = read_state(state_file(self._parts, part))
            # A part that was begun again counts anew, and what it makes again was work too.
            self._made += max(0, state["done"] - self._done[part])
            self._done[part] = state["done"]
            reached, unit = reached + min(1.0, state["share"]), state["unit"] or unit
        now = time.monotonic()
        if unit:
            rate = self._made / max(1e-9, now - self._since)
            self._bar.set_postfix_str(f"{self._made} {unit}, {rate:.2f}/s", refresh=False)
        self._bar.n = self._parts.count - len(self._left) + reached
        if now - self._shown > (_OFTEN if sys.stderr.isatty() else _SELDOM):
            self._shown = now
            self._bar.refresh()

    def finished(self, part: Partition, where: str) -> None:
        """A part is done; says so in a line."""
        self.look()
        self._left.remove(part)
        self.say(f"part {part} is done ({where})")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)
        self.look()
