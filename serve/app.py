"""Application of the server: routes, listings, errors, the page, and the guard before them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from probers.cli.components import choices
from probers.prober.response import Scored
from probers.prober.token_scores import reads_passages
from probers.types import ProbersError, first_line

from .answers import as_json
from .endpoint import Endpoint, Served
from .http import ApiError, new_id
from .protocol import ChatRequest, CompletionRequest
from .retrieval import Replay, replay
from .scheduler import SharedLM
from .scoring import FORMS, Form, ScoreRequest, scored

#: Security policy of the page: it loads only its own files and runs no inline script.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

#: Paths that need the key besides those of /v1.
_GUARDED = ("/metrics", "/openapi.json")
_BODY = 4_000_000  # most bytes of a request
_HEADERS = 200  # most headers of one
_SHOWN = 100  # characters of a client's text in a message
_TOO_LARGE = f"the body has more than {_BODY} bytes: send a shorter one"

log = logging.getLogger(__name__)


def make_app(served: Served) -> FastAPI:
    """Make the application; the scheduler runs as long as it does."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        served.scheduler.start()
        yield
        await asyncio.to_thread(served.scheduler.stop)

    app = FastAPI(title="probers-serve", lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, served=served, routes=app.routes)
    _add_listings(app, served)
    endpoint = Endpoint(served)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    for form in FORMS:
        app.post(form.path)(_scoring(served, form))

    @app.post("/v1/replay")
    def replayed(request: Replay) -> Response:
        return Response(as_json(replay(request)), media_type="application/json")

    page = Path(str(files("probers.serve") / "page"))
    app.mount("/page", StaticFiles(directory=page))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(page / "index.html", headers={"Content-Security-Policy": _POLICY})

    async def failed(request: HttpRequest, error: Any) -> Response:
        if isinstance(error, RequestValidationError):
            api_error = ApiError.of_validation(error.errors())
        elif isinstance(error, HTTPException) and error.status_code != 400:
            api_error = ApiError(error.status_code, str(error.detail), headers=error.headers or {})
        else:  # also a body that FastAPI cannot read, and one too deep for a chat template
            api_error = ApiError.of(error.__cause__ if isinstance(error, HTTPException) else error)
        if api_error.status >= 500:
            log.error("%s: %s", request.state.request_id, api_error.message)
        return api_error.response()

    for kind in (ApiError, ProbersError, HTTPException, RequestValidationError, RecursionError):
        app.add_exception_handler(kind, failed)
    return app


def _scoring(served: Served, form: type[Form]) -> Callable[[Form], Response]:
    """Make the function that answers requests of a form by the server's prober of finished answers."""

    def score(row: Mapping[str, Any], **how: Any) -> Scored:
        bank = served.scheduler.bank
        prober, alone = served.scorer or bank, form is ScoreRequest and not row["passages"]
        if alone and bank is not None and reads_passages(served.scorer or bank):
            prober = bank
        if prober is None:
            message = "this server has no prober that scores finished answers: start it with prober="
            raise ApiError(400, message, code="no_prober")
        return prober.score(SharedLM(served.scheduler), [row], **how)[0]

    def answer(request: Form) -> Response:
        if (model := getattr(request, "model", None)) is not None:
            served.check_name(model)
        return scored(request, score)

    answer.__annotations__["request"] = form  # which FastAPI reads
    return answer


def _add_listings(app: FastAPI, served: Served) -> None:
    tokenizer = served.scheduler.lm.tokenizer
    entry = {
        "id": served.name, "object": "model", "created": 0, "owned_by": "probers", "prober": served.prober,
        "scorer": served.scorer_name, "triggers": served.retrieving.triggers if served.retrieving else [],
        "queries": choices("query") if served.retrieving else [],
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
    """Guard before the routes: it refuses what none of them should see, and drops clients that do not go on.

    It names each request (``x-request-id``) and counts it by its route.
    """

    def __init__(self, app: ASGIApp, served: Served, routes: Sequence[BaseRoute]) -> None:
        self._app, self._served, self._routes = app, served, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = scope.setdefault("state", {})["request_id"] = new_id()
        counted, refused = self._look_up(scope)
        # One scope for all pieces of a request and response: a timeout for each costs as much as the piece.
        waiting, read, complete, status = anyio.CancelScope(), 0, False, 0

        async def reading() -> Message:  # requests need not tell the length of their body
            nonlocal read, complete
            if complete:
                return await receive()
            waiting.deadline = anyio.current_time() + self._served.patience
            event = await receive()
            waiting.deadline = math.inf
            read, complete = read + len(event.get("body", b"")), not event.get("more_body", False)
            if read > _BODY:
                raise ApiError(413, _TOO_LARGE)
            return event

        async def sending(event: Message) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                self._served.scheduler.metrics.requests.labels(counted, str(status)).inc()
                event["headers"] = [*event.get("headers", ()), (b"x-request-id", name.encode())]
            waiting.deadline = anyio.current_time() + self._served.patience
            await send(event)
            waiting.deadline = math.inf

        error = refused or self._refused(scope)
        if error is None:
            try:
                with waiting:
                    await self._app(scope, reading, sending)
            except Exception as failure:  # a mistake of ours
                log.exception("%s: %s", name, first_line(failure))
                error = ApiError(500, "the server failed at this request, and its log says why: try again")
            if waiting.cancelled_caught and not complete:
                error = ApiError(408, "the rest of the body did not come: send it again")
        if error is not None and not status:  # after the status, hanging up is all it can do
            await error.response()(scope, receive, sending)

    def _look_up(self, scope: Scope) -> tuple[str, ApiError | None]:
        """Find the route's path, for counting, and the error of a request for which there is none."""
        method, path = str(scope["method"]), str(scope["path"])
        for tried in (path, path.rstrip("/")):  # the application redirects from the former to the latter
            matches = [(route.matches({**scope, "path": tried})[0], route) for route in self._routes]
            match, route = max(matches, key=lambda pair: pair[0].value)
            template = str(getattr(route, "path", tried))
            if match is Match.FULL:
                return template, None
            if match is Match.PARTIAL:
                allowed = ", ".join(sorted(getattr(route, "methods", None) or ()))
                message = f"{method} {path} is not offered: send {allowed}"
                return template, ApiError(405, message, headers={"Allow": allowed})
        offered = sorted(
            f"{method} {route.path_format}"
            for route in self._routes if isinstance(route, APIRoute) and route.path.startswith("/v1/")
            for method in route.methods or ()
        )  # fmt: skip
        message = f"{method} {path[:_SHOWN]} is not offered: this server has {', '.join(offered)}"
        if any(each.endswith(f" /v1{path}") for each in offered):
            message = f"{method} {path} is not offered: let the client's base address end with /v1"
        return "other", ApiError(404, message, code="unknown_url")

    def _refused(self, scope: Scope) -> ApiError | None:
        path, key = str(scope["path"]), self._served.api_key
        if len(scope["headers"]) > _HEADERS:
            return ApiError(431, f"the request has {len(scope['headers'])} headers: send at most {_HEADERS}")
        headers: dict[bytes, bytes] = {name.lower(): value for name, value in scope["headers"]}
        if key is not None and (path.startswith("/v1/") or path in _GUARDED):
            scheme, _, given = headers.get(b"authorization", b"").strip().partition(b" ")
            if not given or scheme.lower() != b"bearer":
                message = "this server needs a key: send Authorization: Bearer KEY"
                return ApiError(401, message, code="invalid_api_key")
            if not hmac.compare_digest(given.strip(), key.encode()):
                message = "the key is not this server's: send the one that it was started with"
                return ApiError(401, message, code="invalid_api_key")
        if scope["method"] == "POST":
            # Pages of other sites can make a browser send anything but JSON.
            if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
                return ApiError(415, "send the body as Content-Type: application/json")
            coding = headers.get(b"content-encoding", b"identity").decode("latin-1")
            if coding.strip().lower() not in ("", "identity"):
                return ApiError(415, f"the body has Content-Encoding {coding[:_SHOWN]!r}: send it as it is")
            length = headers.get(b"content-length", b"0")
            if length.isdigit() and int(length) > _BODY:
                return ApiError(413, _TOO_LARGE)
        return None
