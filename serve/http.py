"""HTTP/1.1 of the server: uvicorn with h11, refusals in OpenAI's form, time limits for its clients.

uvicorn's other parser, httptools, drops the body of a request that offers an upgrade (``Upgrade: h2c``, as
Java's standard client does), and reads a body that comes in a packet of its own as another request.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from typing import Any

import h11
import uvicorn
from pydantic_core import to_json
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .protocol import ApiError

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
