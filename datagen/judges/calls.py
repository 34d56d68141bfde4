"""Calls of a judge: each is sent once, on disk before it is used, and within the budget."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from probers.checksums import Journal
from probers.cli.openai_client import Body, Server, pause
from probers.files import digest
from probers.types import RunError, count

if TYPE_CHECKING:
    import openai


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
                    raise RunError(self._spent(full, max(estimate, self._dearest)), "limit")
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

    def _spent(self, name: str, tokens: int) -> str:
        more = f", and the next call needs about {tokens:,} tokens" if name == "max_tokens" else ""
        return (
            f"judge.{name}={self._limits[name]} is reached: {count(self.calls, 'call')} and {self.tokens:,} "
            f"tokens are spent{more}; {self._where} has the replies, and the same command with a higher "
            f"judge.{name} goes on from there"
        )


log = logging.getLogger(__name__)

#: Characters per token, and tokens of a short reply, for estimates.
_CHARACTERS, _REPLY = 4, 100
#: Statuses below 500 after which the same request may succeed.
_AGAIN = (408, 409, 429)


class _Message(Body):
    content: str | None = None
    refusal: str | None = None


class _Choice(Body):
    message: _Message


class _Usage(Body):
    total_tokens: int | None = Field(None, ge=0)


class Completion(Body):
    """Response of ``/v1/chat/completions``; ``usage`` is by the server's count."""

    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class Reply(NamedTuple):
    """Reply of the server; ``refused`` if the server's model declined to answer."""

    text: str
    refused: bool


@dataclass
class Calls:
    """Chat requests of one system message, each sent once and kept in a file before its reply is used.

    A kill loses no reply that had come back, and the same request costs nothing from then on. Timeouts and
    failures are not kept. Requests that the server refuses do not count; an attempt without an answer counts,
    since the server may have worked on it.

    Attributes:
        path: file of the replies, which several judges may share.
        budget: limits of calls and tokens, including earlier runs in the same folder.
        parallel: requests at a time.
        timeout: seconds without an answer before an attempt counts as failed.
        retries: further attempts after a timeout or a failure that may pass.
        sent: number of calls of this run that count.
        replayed: number of requests of this run with replies from earlier.
        estimated: number of replies of this run whose tokens the server did not report.
    """

    server: Server
    model: str
    system: str
    path: Path
    budget: Budget
    parallel: int
    timeout: float
    retries: int
    sent: int = field(default=0, init=False)
    replayed: int = field(default=0, init=False)
    estimated: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._client = self.server.client(max_retries=0, timeout=self.timeout)
        # Parameters that servers may refuse; these are then left out for the rest of the run.
        self._optional: dict[str, Any] = {"temperature": 0, "response_format": {"type": "json_object"}}
        self._asker = digest(json.dumps([self.model, self.system]))
        self._lock = threading.Lock()
        self._answered = False

    @cached_property
    def _known(self) -> dict[str, Reply]:
        """Map the hash of each request to its reply; at first read and count the replies of the file."""
        replies = {}
        for record in Journal(self.path).resume():
            if record.get("asker") == self._asker:
                self.budget.add(record["tokens"])
                replies[record["request"]] = Reply(record["reply"], record["refused"])
        return replies

    def all(self, contents: Sequence[str]) -> list[Reply | None]:
        """Ask with each of the user messages; None if all attempts timed out.

        Raises:
            UserError: the server refuses the request, the key or the model.
            RunError: a limit is reached (code "limit"), or the server fails or cannot be reached. Requests
                in flight are awaited and kept.
        """
        new = self.new(contents)
        self.replayed += len(set(contents)) - len(new)
        if new:
            self._ask(new)
        return [self._known.get(self._key(content)) for content in contents]

    def new(self, contents: Sequence[str]) -> dict[str, str]:
        """Collect the contents without a reply yet, by the hash of their request."""
        requests = {self._key(content): content for content in contents}
        return {key: content for key, content in requests.items() if key not in self._known}

    def _ask(self, requests: Mapping[str, str]) -> None:
        self.budget.start()
        pool = ThreadPoolExecutor(self.parallel)
        try:
            futures = [pool.submit(self._one, key, content) for key, content in requests.items()]
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            self.budget.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)  # requests in flight are paid for and kept
        for future in futures:
            error = None if future.cancelled() else future.exception()
            if error is not None and not isinstance(error, Stopped):
                raise error

    def _key(self, content: str) -> str:
        return digest(json.dumps([self.model, self._messages(content)]), 32)

    def _messages(self, content: str) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": content}]

    def _one(self, key: str, content: str) -> None:
        try:
            with self.server.telling():
                self._attempt(key, content)
        except BaseException:
            self.budget.stop()  # before this thread takes the next request
            raise

    def _attempt(self, key: str, content: str) -> None:
        import openai

        attempt = 0
        while True:
            optional = dict(self._optional)
            try:
                return self._send(key, content, optional)
            except openai.APIError as error:
                may_name = getattr(error, "status_code", 0) in (400, 422)
                refused = [n for n in optional if may_name and n in f"{error.message} {error.body}"]
                for name in refused:
                    if self._optional.pop(name, None) is not None:
                        log.info("%s does not take %s: going on without", self.server.name, name)
                if refused:
                    continue
                if attempt == self.retries or not self._passes(error):
                    if isinstance(error, openai.APITimeoutError) and not _unreached(error):
                        return
                    raise
                self.budget.pause(pause(error, attempt))
                attempt += 1

    def _send(self, key: str, content: str, optional: Mapping[str, Any]) -> None:
        import openai

        messages: Any = self._messages(content)
        size = len(self.system) + len(content)
        reserved = size // _CHARACTERS + _REPLY
        self.budget.take(reserved)
        spent: int | None = reserved
        try:
            create: Any = self._client.chat.completions.with_raw_response.create
            answer = self.server.read(Completion, create(model=self.model, messages=messages, **optional))
            message = answer.choices[0].message
            # A file in UTF-8 cannot hold half of a surrogate pair.
            text = (message.content or "").encode("utf-8", "replace").decode()
            counted = answer.usage.total_tokens if answer.usage else None
            spent = counted or (size + len(text)) // _CHARACTERS + 1
            reply = Reply(text, bool(message.refusal) or not text.strip())
            record = {
                "request": key, "asker": self._asker, "model": self.model, "reply": text,
                "refused": reply.refused, "tokens": spent, "estimated": not counted,
            }  # fmt: skip
            with self._lock:
                Journal(self.path).append([record])
                self._known[key] = reply
                self.estimated += not counted
                self._answered = True
        except openai.APIStatusError:
            spent = None
            raise
        finally:
            with self._lock:
                self.sent += spent is not None
            self.budget.settle(reserved, spent)

    def _passes(self, error: openai.APIError) -> bool:
        """Tell whether another attempt may succeed; a server that is not there at first stays away."""
        import openai

        if isinstance(error, openai.APIStatusError):
            return error.status_code in _AGAIN or error.status_code >= 500
        return isinstance(error, openai.APIConnectionError) and (self._answered or not _unreached(error))


def _unreached(error: openai.APIError) -> bool:
    return type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")
