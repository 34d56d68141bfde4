"""Application of the server: routes, listings, errors, the page, and the guard before them."""

from __future__ import annotations

import asyncio
import hmac
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probers.types import ProbersError

from .answers import as_json
from .endpoint import Endpoint, Served
from .protocol import ApiError, ChatRequest, CompletionRequest
from .retrieval import Replay, replay

#: Security policy of the page: it loads only its own files and runs no inline script.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_BODY = 4_000_000  # most bytes of a request
_TOO_LARGE = f"the body has more than {_BODY} bytes: send a shorter one"


def make_app(served: Served) -> FastAPI:
    """Make the application; the scheduler runs as long as it does."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        served.scheduler.start()
        yield
        await asyncio.to_thread(served.scheduler.stop)

    app = FastAPI(title="probers-serve", lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, served=served)
    _add_listings(app, served)
    endpoint = Endpoint(served)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    @app.post("/v1/replay")
    def replayed(request: Replay) -> Response:
        return Response(as_json(replay(request)), media_type="application/json")

    page = Path(str(files("probers.serve") / "page"))
    app.mount("/page", StaticFiles(directory=page))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(page / "index.html", headers={"Content-Security-Policy": _POLICY})

    async def failed(request: HttpRequest, error: Any) -> Response:
        if isinstance(error, HTTPException):
            api_error = ApiError(error.status_code, str(error.detail))
        elif isinstance(error, RequestValidationError):
            api_error = ApiError.of_validation(error.errors())
        else:
            api_error = ApiError.of(error) if isinstance(error, ProbersError) else error
        retry = {} if api_error.retry is None else {"Retry-After": str(api_error.retry)}
        given = getattr(error, "headers", None) or {}
        return JSONResponse(api_error.body(), api_error.status, headers={**given, **retry})

    for kind in (ApiError, ProbersError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, failed)
    return app


def _add_listings(app: FastAPI, served: Served) -> None:
    tokenizer = served.scheduler.lm.tokenizer
    entry = {
        "id": served.name, "object": "model", "created": 0, "owned_by": "probers", "prober": served.prober,
        "triggers": served.retrieving.triggers if served.retrieving else [],
        "chat": bool(getattr(tokenizer, "chat_template", None)), "corpus": served.corpus,
    }  # fmt: skip

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        served.check_name(name)
        return entry

    @app.get("/health")
    async def health() -> dict[str, str]:
        if served.scheduler.error is not None:
            raise ApiError(503, str(served.scheduler.error))
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        page = generate_latest(served.scheduler.metrics.registry)
        return Response(page, media_type="text/plain; version=0.0.4")


class Guard:
    """Guard that refuses requests without key, too large or not JSON, and drops clients that do not read."""

    def __init__(self, app: ASGIApp, served: Served) -> None:
        self._app, self._served = app, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = str(scope["path"])
        counted = path if path.startswith("/v1/") and path.count("/") < 4 else "other"
        requests = self._served.scheduler.metrics.requests
        # One scope for all pieces of a response: a timeout for each costs as much as the piece.
        reading, read = anyio.CancelScope(), 0

        async def limited() -> Message:  # requests need not tell the length of their body
            nonlocal read
            event = await receive()
            read += len(event.get("body", b""))
            if read > _BODY:
                raise ApiError(413, _TOO_LARGE)
            return event

        async def sending(event: Message) -> None:
            if event["type"] == "http.response.start":
                requests.labels(counted, str(event["status"])).inc()
            reading.deadline = anyio.current_time() + self._served.patience
            await send(event)
            reading.deadline = math.inf

        headers = {name.lower(): value for name, value in scope["headers"]}
        if (error := self._refused(path, str(scope["method"]), headers)) is not None:
            await JSONResponse(error.body(), error.status)(scope, receive, sending)
            return
        with reading:  # the status is already sent; hanging up is all it can do
            await self._app(scope, limited, sending)

    def _refused(self, path: str, method: str, headers: Mapping[bytes, bytes]) -> ApiError | None:
        key = self._served.api_key
        if key is not None and (path.startswith("/v1/") or path in ("/metrics", "/openapi.json")):
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                message = "this server needs a key: send Authorization: Bearer KEY"
                return ApiError(401, message, code="invalid_api_key")
        if method == "POST":
            # Pages of other sites can make a browser send anything but JSON.
            if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
                return ApiError(415, "send the body as Content-Type: application/json")
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > _BODY:
                return ApiError(413, _TOO_LARGE)
        return None
