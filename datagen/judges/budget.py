"""Budget of a judge: calls and tokens spent, and those of requests in flight."""

from __future__ import annotations

import threading

from probers.types import RunError, count


class Stopped(Exception):
    """Error after another request has failed: no more requests are sent."""


class Budget:
    """Calls and tokens of a judge, counted by several threads; no call begins beyond the limits.

    A call counts once it is answered, or may have been; its tokens count as the server reports them. Until
    then a request in flight counts with its estimated tokens, or with those of the dearest call so far if
    these are more; with a limit of tokens the first call goes alone. So ``max_tokens`` is exceeded only by a
    call that is dearer than its estimate and than all calls before it.

    Attributes:
        calls: number of calls that count.
        tokens: number of their tokens.
    """

    def __init__(self, max_calls: int | None, max_tokens: int | None, where: str) -> None:
        self.calls = self.tokens = 0
        self._limits, self._where = {"max_calls": max_calls, "max_tokens": max_tokens}, where
        self._flying = self._reserved = self._dearest = 0
        self._stopped = False
        self._changed = threading.Condition()

    def add(self, tokens: int) -> None:
        """Count a call of an earlier run."""
        self.calls += 1
        self.tokens += tokens
        self._dearest = max(self._dearest, tokens)

    def take(self, estimate: int) -> None:
        """Begin a call of so many tokens; wait while requests in flight leave no room.

        Raises:
            RunError: the limits leave no room for it.
            Stopped: after :meth:`stop`.
        """
        with self._changed:
            while not self._stopped and (full := self._full(estimate)):
                if not self._flying:
                    raise RunError(self._told(full, max(estimate, self._dearest)), "limit")
                self._changed.wait()
            if self._stopped:
                raise Stopped
            self._flying += 1
            self._reserved += estimate

    def settle(self, reserved: int, spent: int | None) -> None:
        """End a call that :meth:`take` began, with its tokens or None if the server refused it."""
        with self._changed:
            self._flying -= 1
            self._reserved -= reserved
            if spent is not None:
                self.add(spent)
            self._changed.notify_all()

    def start(self) -> None:
        """Let calls begin, also after :meth:`stop`."""
        self._stopped = False

    def stop(self) -> None:
        """Let no further call begin."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait before another attempt (Stopped)."""
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, seconds):
                raise Stopped

    def _full(self, estimate: int) -> str | None:
        """Name the option that forbids another call, or delays it until the first call's tokens are known."""
        most_calls, most_tokens = self._limits["max_calls"], self._limits["max_tokens"]
        if most_calls is not None and self.calls + self._flying >= most_calls:
            return "max_calls"
        if most_tokens is None:
            return None
        flying = max(self._reserved, self._flying * self._dearest)
        passed = self.tokens + flying + max(estimate, self._dearest) > most_tokens
        return "max_tokens" if passed or (self._flying and not self.calls) else None

    def _told(self, name: str, tokens: int) -> str:
        more = f", and the next call needs about {tokens:,} tokens" if name == "max_tokens" else ""
        return (
            f"judge.{name}={self._limits[name]} is reached: {count(self.calls, 'call')} and {self.tokens:,} "
            f"tokens are spent{more}; {self._where} has the replies, and the same command with a higher "
            f"judge.{name} goes on from there"
        )
