"""OpenAI's client for any server of its API: it waits, checks responses, tells failures in one sentence."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from json import JSONDecodeError
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError, model_validator

from ..options import check_extra
from ..types import Code, RunError, UserError, first_line

if TYPE_CHECKING:
    from openai import OpenAI

log = logging.getLogger(__name__)

_LONGEST = 200  # characters shown of a server's message
#: Seconds before another attempt: the first, the longest, and the longest that a server may request.
_PAUSE, _LONGEST_PAUSE, _LONGEST_ASKED = 0.5, 8.0, 120.0
#: Statuses of a server that is busy, loading its model, or away behind a proxy: they pass with time.
_PASSING = (408, 409, 429, 502, 503, 504)
_ATTEMPTS = 7  # with a server that fails by itself (500)
_QUIET = 30.0  # seconds without any answer before a line says so
#: Messages of servers about a prompt beyond the context: llama.cpp, OpenAI and vLLM, llama-cpp-python.
_BEYOND = re.compile(r"context[ _](length|window|size)", re.IGNORECASE)
_Body = TypeVar("_Body", bound=BaseModel)
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")


class NotThere(UserError):
    """Error of status 404."""


class TooLong(UserError):
    """Error of a prompt that the server's context has no room for."""


class Unreadable(RunError):
    """Error of a response that is not one of OpenAI's API; the next one may be."""


class Body(BaseModel):
    """Part of a response; null stands for an absent field."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given


def api_key() -> str | None:
    """Return the key of the environment's OPENAI_API_KEY; UserError for one that no header can carry."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        message = "OPENAI_API_KEY holds characters that a request cannot carry"
        raise UserError(f"{message}: copy the key again, on one line of plain letters", "bad-value")
    return key or None


@dataclass(frozen=True, slots=True)
class Server:
    """A server of OpenAI's API, as messages name it.

    Attributes:
        option: option that chose it, such as "engine".
        url: its address, to which ``/v1`` is added where it has no path.
        fewer: option that lowers the number of concurrent requests.
    """

    option: str
    url: str
    fewer: str

    @property
    def name(self) -> str:
        """The server as the user typed it."""
        return f"{self.option}={self.url}"

    @property
    def address(self) -> str:
        """The address under which the API's paths stand."""
        return self.url.rstrip("/") + ("" if urlsplit(self.url).path.strip("/") else "/v1")

    def client(self, **options: Any) -> OpenAI:
        """Make the client, with :func:`api_key`; UserError without openai."""
        check_extra(self.name, "remote", "openai")
        import openai

        return openai.OpenAI(base_url=self.address, api_key=api_key() or "-", **options)

    def read(self, kind: type[_Body], raw: Any) -> _Body:
        """Check a raw response (:class:`Unreadable`)."""
        try:
            return kind.model_validate(json.loads(raw.content))  # takes half a surrogate pair too
        except ValidationError as error:
            problem = error.errors()[0]
            why = f"{'.'.join(map(str, problem['loc'])) or 'no JSON object'}: {problem['msg']}"
        except (ValueError, RecursionError):
            why = "no JSON"
        message = f"{self.name} does not answer as OpenAI's API does ({why}): correct the address"
        raise Unreadable(message, "server")

    def patiently(self, send: Callable[[float], _Answer], *, seconds: float, known: bool) -> _Answer:
        """Send a request until it is answered, with the seconds that are left of ``seconds``.

        A server that is busy or loading is waited for, as long as it asks (Retry-After); one that cannot be
        reached too, if it is ``known`` to have answered before.
        """
        import openai

        end, attempt = time.monotonic() + seconds, 0
        with self.telling(seconds):
            while True:
                try:
                    return send(max(end - time.monotonic(), 0.01))
                except openai.APIError as error:
                    delay = pause(error, attempt)
                    if not _passes(error, attempt, known) or time.monotonic() + delay >= end:
                        raise
                time.sleep(delay)
                attempt += 1
        raise AssertionError("a request is answered or fails")

    def all(
        self, send: Callable[[_Request], _Answer], requests: Sequence[_Request], at_once: int, seconds: float
    ) -> list[_Answer]:
        """Send requests side by side; the first error is raised once those in flight have ended.

        The threads are daemons: an interrupt ends the command at once, also over a server that hangs.
        """
        waiting: SimpleQueue[tuple[int, _Request]] = SimpleQueue()
        answers, errors = dict[int, _Answer](), list[BaseException]()
        for each in enumerate(requests):
            waiting.put(each)

        def work() -> None:
            with suppress(Empty):
                while not errors:
                    place, request = waiting.get_nowait()
                    try:
                        answers[place] = send(request)
                    except BaseException as error:  # raised where it is waited for
                        errors.append(error)

        threads = [Thread(target=work, daemon=True) for _ in requests[:at_once]]
        for thread in threads:
            thread.start()
        quiet = "waiting for %s: no answer for %.0f s; a request is given up after %s_timeout=%g s"
        try:
            for thread in threads:
                before = -1
                while thread.is_alive():
                    if len(answers) == before and quiet:
                        log.warning(quiet, self.name, _QUIET, self.option, seconds)
                        quiet = ""
                    before = len(answers)
                    thread.join(_QUIET)
        except BaseException as error:  # an interrupt: nothing more is sent
            errors.append(error)
            raise
        if errors:
            raise errors[0]
        return [answers[place] for place in range(len(requests))]

    @contextmanager
    def telling(self, seconds: float | None = None) -> Iterator[None]:
        """Turn a refusal (UserError) or failure (RunError) of the server into one sentence."""
        import openai

        kind: type[UserError | RunError] = UserError
        code: Code = "server"
        try:
            yield
            return
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            another = "another" if api_key() else "a"
            problem = f"asks for {another} key: set OPENAI_API_KEY ({_reply(error)})"
        except openai.NotFoundError as error:
            kind, problem = NotThere, f"has no such model or address, which ends in /v1 ({_reply(error)})"
        except openai.RateLimitError as error:
            kind, remedy = RunError, f"run it later, or with a smaller {self.fewer}"
            problem = f"is too busy: {remedy} ({_reply(error)})"
        except openai.APITimeoutError:
            kind, code = RunError, "timeout"
            problem = f"has not answered in {seconds or 0:g} s: see whether it runs, or give it longer"
        except openai.APIConnectionError as error:
            kind, code, why = RunError, "network", first_line(error.__cause__ or error)
            problem = f"cannot be reached: start the server or correct the address ({why})"
        except openai.APIStatusError as error:
            kind = RunError if error.status_code >= 500 else UserError
            if error.status_code < 500 and _BEYOND.search(f"{error.message} {error.body}"):
                kind, code = TooLong, "too-long"
            problem = f"answers with status {error.status_code}: {_reply(error)}"
        except (openai.APIError, JSONDecodeError, UnicodeDecodeError) as error:
            kind, problem = Unreadable, f"does not answer as OpenAI's API does: {first_line(error)}"
        raise kind(_hidden(f"{self.name} {problem}"), code)


def _passes(error: Any, attempt: int, known: bool) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in _PASSING or (error.status_code >= 500 and attempt + 1 < _ATTEMPTS)
    return isinstance(error, openai.APIConnectionError) and known


def pause(error: BaseException, attempt: int) -> float:
    """Choose the seconds before another attempt: as the server asks, else twice as long each time."""
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", {})
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            seconds = float(headers[name]) * unit
            if 0 <= seconds <= _LONGEST_ASKED:
                return seconds
    return float(min(_PAUSE * 2**attempt, _LONGEST_PAUSE))


def _reply(error: Any) -> str:
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return " ".join(str(message or error.body or error.message).split())[:_LONGEST]


def _hidden(message: str) -> str:
    """Remove the key from a message: some servers repeat it."""
    key = api_key()
    return message if key is None or len(key) < 4 else message.replace(key, "***")
