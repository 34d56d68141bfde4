"""What stands before the endpoints: the key, the form and size of bodies, and clients that do not read."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .protocol import ApiError


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for.

    Attributes:
        max_tokens: per text; those of a request that says nothing are 16 of a completion, as OpenAI's, and
            all of them of a chat.
        body: bytes of a request.
        send: seconds that a client may take to read a piece before it is given up.
    """

    max_tokens: int = 1024
    body: int = 4_000_000
    send: float = 60


class Guard:
    """Keeps out who has no key, bodies that are too large or no JSON, and clients that do not read."""

    def __init__(self, app: ASGIApp, api_key: str | None, limits: Limits, metrics: Metrics) -> None:
        self._app, self._key, self._limits, self._metrics = app, api_key, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])
        counted = path if path.startswith("/v1/") and path.count("/") < 4 else "other"
        metrics, limits = self._metrics, self._limits

        # One for all pieces of a response: a timeout of each costs as much as making it.
        reading = anyio.CancelScope()

        async def sending(event: Message) -> None:
            if event["type"] == "http.response.start":
                metrics.requests.labels(counted, str(event["status"])).inc()
            reading.deadline = anyio.current_time() + limits.send
            await send(event)
            reading.deadline = math.inf

        headers = {name.lower(): value for name, value in scope["headers"]}
        error = self._refused(path, str(scope["method"]), headers)
        if error is not None:
            await JSONResponse(error.body(), error.status)(scope, receive, sending)
            return
        with reading:  # it has its status already: all that is left is to hang up
            await self._app(scope, _limited(receive, limits.body), sending)

    def _refused(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        key, limits = self._key, self._limits
        if key is not None and (path.startswith("/v1/") or path in ("/metrics", "/openapi.json")):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                return ApiError(401, "this server asks for a key: send Authorization: Bearer KEY",
                                code="invalid_api_key")  # fmt: skip
        if method == "POST":
            # A page elsewhere can have a browser send anything but JSON without being asked.
            if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
                return ApiError(415, "send the body as Content-Type: application/json")
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > limits.body:
                return _too_large(limits.body)
        return None


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body has more than {most} bytes: send a shorter one")


def _limited(receive: Receive, most: int) -> Receive:
    """Of a body without a length, no more than that."""
    read = 0

    async def counting() -> Message:
        nonlocal read
        event = await receive()
        read += len(event.get("body", b""))
        if read > most:
            raise _too_large(most)
        return event

    return counting
