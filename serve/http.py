"""HTTP/1.1 of the server: uvicorn with h11, refusals in OpenAI's form, time limits for its clients.

uvicorn's other parser, httptools, drops the body of a request that offers an upgrade (``Upgrade: h2c``, as
Java's standard client does), and reads a body that comes in a packet of its own as another request.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import h11
import uvicorn
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from probers.types import ProbersError, UserError

_SECONDS = 60.0  # most seconds for the head of a request, and for a client to read a piece
_LINGER = 2.0  # seconds for a refused client to close the connection
log = logging.getLogger(__name__)


def config(app: ASGIApp, **options: Any) -> uvicorn.Config:
    """Configure uvicorn for this server."""
    # Without a class for web sockets their offer is passed over too, and the request is answered as it is.
    return uvicorn.Config(app, http=Protocol, ws="none", log_level="warning", access_log=False, **options)


def new_id() -> str:
    """Make the name of a request, for its answer (``x-request-id``) and its log lines."""
    return f"req_{uuid.uuid4().hex}"


class Protocol(H11Protocol):
    """Connection by h11, of both backends."""

    _waiting: asyncio.TimerHandle | None = None  # for the rest of a head, or for a refused client to leave
    _unread: asyncio.TimerHandle | None = None  # for a client to read
    _refused = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        if self._refused:
            return
        begun = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if begun and self._waiting is None:
            self._waiting = self.loop.call_later(_SECONDS, self.transport.close)
        elif not begun:
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: a client may offer an upgrade with each request."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 cannot read, with its reason, and close the connection."""
        reason = str(sys.exc_info()[1] or msg).rstrip(".")
        name, error = new_id(), ApiError(400, f"the request is no valid HTTP ({reason}): send it again")
        log.warning("%s: %s", name, error.message)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = to_json(error.body())
            headers = {
                "content-type": "application/json", "content-length": str(len(body)),
                "x-request-id": name, "connection": "close",
            }  # fmt: skip
            head = h11.Response(status_code=400, headers=list(headers.items()), reason=b"Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        # To close while data comes in would reset the connection, and the client would not read the answer.
        self._refused = True
        self._stop_waiting()
        self._waiting = self.loop.call_later(_LINGER, self.transport.close)
        self.transport.write_eof()


@dataclass(eq=False)
class ApiError(Exception):
    """Error in OpenAI's form, with HTTP's ``status`` and ``headers``, and the wrong field as ``param``.

    A refused client may retry after ``retry`` seconds.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException | None) -> ApiError:
        """Convert one of this package's errors, or say of another why a body could not be read."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, ProbersError):
            return cls(400 if isinstance(error, UserError) else 500, str(error))
        if isinstance(error, UnicodeDecodeError):
            problem = f"the body is not valid UTF-8 (byte {error.start}): encode it so"
        elif isinstance(error, RecursionError):
            problem = "the body is nested too deeply: send one with fewer levels"
        elif isinstance(error, ValueError):  # Python reads no numbers of more than 4300 digits
            problem = "the body has a number with too many digits: send a shorter one"
        else:
            problem = "the body could not be read: send it again"
        return cls(400, problem)

    @classmethod
    def of_validation(cls, errors: Sequence[Mapping[str, Any]], *before: str) -> ApiError:
        """Describe the first mistake in a request's body; ``before`` are fields around what was checked."""
        first = errors[0]
        if first["type"] == "json_invalid":
            return cls(400, f"the body is not JSON: {first['ctx']['error']}")
        field, _ = _place(first, before)
        if first["type"] == "extra_forbidden":
            param = _named(field)
            return cls(400, f"Unrecognized request argument supplied: {param}", param)
        # A value of none of several forms has mistakes of each: the likeliest form holds for the longest.
        firsts = dict[tuple[str, ...], Sequence[str | int]]()
        for error in errors:
            place, forms = _place(error, before)
            if place[:1] == field[:1]:
                firsts.setdefault(forms, place)
        param = _named(max(firsts.values(), key=lambda place: [str(part).zfill(9) for part in place]))
        said = dict.fromkeys(error["msg"] for error in errors if _named(_place(error, before)[0]) == param)
        return cls(400, f"{param or 'the body'}: {' or '.join(said)}", param or None)

    def body(self) -> dict[str, Any]:
        """Make the body of the response."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        headers = {**self.headers, **({} if self.retry is None else {"Retry-After": str(self.retry)})}
        return Response(to_json(self.body()), self.status, headers, media_type="application/json")


def _place(error: Mapping[str, Any], before: Sequence[str]) -> tuple[Sequence[str | int], tuple[str, ...]]:
    """Return the place of a mistake in the body, and the forms that pydantic tried there.

    It names them in between, as in ``("stop", "list[constrained-str]", 0)``.
    """
    parts = [part for part in (*before, *error["loc"]) if part != "body"]
    key = len(parts) - 1 if error["type"] in ("extra_forbidden", "missing") else None  # whatever its name
    forms = {i for i, p in enumerate(parts) if isinstance(p, str) and i != key and _FORM.search(p)}
    return [p for i, p in enumerate(parts) if i not in forms], tuple(str(parts[i]) for i in sorted(forms))


def _named(place: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


#: Names that pydantic has for forms of a value, none of which is a field.
_FORM = re.compile(r"[^\w]|^(?:str|int|float|bool|none)$")
