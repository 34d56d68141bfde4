"""The server: OpenAI's two endpoints, the list of models, the page, health and counts (docs/serving.md)."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from probers.bank.assessment import Assessor
from probers.engine.decode import Request as Wanted
from probers.engine.language_model import Sampling
from probers.engine.tokens import Prompt, encode_prompts, token_offsets
from probers.prompts import chat_text
from probers.types import RunError, UserError

from .answers import Choice, Frame, as_json, sse, usage_of
from .guard import Guard, Limits
from .metrics import Clock, Metrics
from .protocol import ApiError, ChatRequest, CompletionRequest, Request, busy
from .scheduler import Busy, Scheduler, ScoredText

if TYPE_CHECKING:
    from .retrieval import Retrieving

#: The page loads nothing but its own files, and runs no script that stands in it.
_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_POLL = 0.5  # seconds between looks whether a client that waits is still there


@dataclass(slots=True)
class Served:
    """What the endpoints share.

    Attributes:
        name: what requests call the model.
        prober: what the list of models says of the prober; None without one.
        retrieving: runs the loop; None without a corpus.
    """

    scheduler: Scheduler
    metrics: Metrics
    name: str
    prober: Mapping[str, Any] | None = None
    retrieving: Retrieving | None = None
    corpus: str | None = None
    api_key: str | None = None
    log_requests: bool = False
    limits: Limits = field(default_factory=Limits)


def make_app(served: Served) -> FastAPI:
    """The server's application; its scheduler runs as long as it does."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        served.scheduler.start()
        yield
        await asyncio.to_thread(served.scheduler.stop)

    app = FastAPI(title="probers-serve", lifespan=running, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, api_key=served.api_key, limits=served.limits, metrics=served.metrics)
    _tell_errors(app)
    _add_listings(app, served)
    endpoint = _Endpoint(served)

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, http: HttpRequest) -> Response:
        return await endpoint(request, http)

    page = Path(str(files("probers.serve") / "page"))
    app.mount("/page", StaticFiles(directory=page))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(page / "index.html", headers={"Content-Security-Policy": _POLICY})

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
        if name != served.name:
            raise _no_model(name, served.name)
        return entry

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(served.metrics.page(), media_type="text/plain; version=0.0.4")


def _tell_errors(app: FastAPI) -> None:
    """Have every error told in OpenAI's form."""

    def told(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
        retry = {} if error.retry is None else {"Retry-After": str(error.retry)}
        return JSONResponse(error.body(), error.status, headers={**(headers or {}), **retry})

    @app.exception_handler(ApiError)
    async def known(request: HttpRequest, error: ApiError) -> Response:
        return told(error)

    @app.exception_handler(UserError)
    async def refused(request: HttpRequest, error: UserError) -> Response:
        return told(ApiError(400, str(error)))

    @app.exception_handler(RunError)
    async def failed(request: HttpRequest, error: RunError) -> Response:
        return told(ApiError(500, str(error)))

    @app.exception_handler(HTTPException)
    async def http(request: HttpRequest, error: HTTPException) -> Response:
        return told(ApiError(error.status_code, str(error.detail)), error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: HttpRequest, error: RequestValidationError) -> Response:
        return told(_of_validation(error.errors()))


def _of_validation(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first thing that is wrong with a request's body."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['ctx']['error']}")
    place = [str(part) for part in first["loc"] if part != "body"]
    param = ".".join(place) or None
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"Unrecognized request argument supplied: {param}", param=param)
    # What each of several forms lacks names the form: the field alone is the user's word.
    named = place[0] if place else "the body"
    return ApiError(400, f"{named}: {first['msg']}", param=param)


def _no_model(name: str, served: str) -> ApiError:
    return ApiError(404, f"the model {name!r} does not exist here: ask for {served!r}", param="model",
                    code="model_not_found")  # fmt: skip


class _Wakes:
    """Sets events from another thread than their loop's: all of a step with one call to the loop.

    Each call is a system call, and has the loop take turns with the thread that writes.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Event] = deque()

    def __call__(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        self._waiting.append(event)
        if len(self._waiting) == 1:  # else a call that was not answered yet finds it
            loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        while self._waiting:
            self._waiting.popleft().set()


class _Endpoint:
    """Answers requests for text."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._lm = served.scheduler.lm
        self._wakes = _Wakes()

    async def __call__(self, request: Request, http: HttpRequest) -> Response:
        served = self._served
        if served.log_requests:
            print(json.dumps(request.model_dump(exclude_none=True), ensure_ascii=True), file=sys.stderr)
        if request.model != served.name:
            raise _no_model(request.model, served.name)
        clock = Clock(served.metrics, http.url.path)
        if request.retrieval is not None:
            if served.retrieving is None:
                raise ApiError(400, "this server has no corpus: start it with corpus=FILE", param="retrieval")
            frame = Frame(request.kind, served.name)
            made = await served.retrieving.answer(request, frame, http.is_disconnected)
            if request.stream:
                return _stream(made.chunks(), clock)
            whole = await made.whole()
            clock.end()
            return _json(whole)
        return await self._plain(request, http, clock)

    async def _plain(self, request: Request, http: HttpRequest, clock: Clock) -> Response:
        served = self._served
        changed, loop = asyncio.Event(), asyncio.get_running_loop()

        def tell() -> None:
            if any(text.ready for text in texts):
                clock.token()
            if request.stream or all(text.over for text in texts):
                self._wakes(loop, changed)

        # Long prompts take the tokenizer a while.
        texts = await asyncio.to_thread(self._texts, request, tell)
        frame = Frame(request.kind, served.name)
        choices = [
            Choice(frame, index, text, request.alternatives, self._assessor(request))
            for index, text in enumerate(texts)
        ]
        try:
            served.scheduler.submit(texts)
        except Busy:
            raise busy() from None
        if request.stream:
            return _stream(self._chunks(request, frame, choices, changed), clock)
        try:
            while not changed.is_set():
                with anyio.move_on_after(_POLL):
                    await changed.wait()
                if not changed.is_set() and await http.is_disconnected():
                    break
        finally:
            for text in texts:
                text.cancelled = True  # of no account for those that are over
        clock.end()
        for text in texts:
            if text.error is not None:
                raise text.error
        told = [choice.whole(self._lm.tokenizer) for choice in choices]
        self._observe(told)
        return _json(frame.whole(told, usage_of(texts)))

    async def _chunks(
        self, request: Request, frame: Frame, choices: Sequence[Choice], changed: asyncio.Event
    ) -> AsyncIterator[bytes]:
        tokenizer, texts = self._lm.tokenizer, [choice.text for choice in choices]
        try:
            for chunk in frame.opening(request.choices):
                yield sse(chunk)
            while not all(choice.finished for choice in choices):
                await changed.wait()
                changed.clear()
                for choice in choices:
                    if choice.text.error is not None and not choice.finished:
                        yield sse(ApiError(500, str(choice.text.error)).body())
                        return
                    told = None if choice.finished else choice.news(tokenizer)
                    if told is not None:
                        self._observe([told] if choice.finished else [])
                        yield sse(frame.chunk([told]))
            if request.with_usage:
                yield sse(frame.chunk([], usage_of(texts)))
            yield sse("[DONE]")
        finally:
            for text in texts:
                text.cancelled = True

    def _observe(self, told: Sequence[Mapping[str, Any]]) -> None:
        for each in told:
            chance = each.get("hallucination", {}).get("p_wrong")
            if chance is not None:
                self._served.metrics.scores.observe(chance)

    def _assessor(self, request: Request) -> Assessor | None:
        bank = self._served.scheduler.bank
        asked = request.hallucination
        return None if bank is None else Assessor(bank, None if asked is None else asked.threshold)

    def _texts(self, request: Request, changed: Callable[[], None]) -> list[ScoredText]:
        """The texts that a request wants written.

        Raises:
            ApiError: they do not fit the model or the server's limits.
        """
        limit = self._limit(request)
        prompts = [self._fitting(prompt, limit, request.max_tokens) for prompt in self._prompts(request)]
        sampling = self._sampling(request)
        wanted = [prompt for prompt in prompts for _ in range(request.choices)]
        if len(wanted) > 64:
            raise ApiError(400, f"{len(wanted)} texts are asked for at once: ask for 64 or fewer", param="n")
        streams = [None] * len(wanted) if sampling is None else sampling.streams([p.ids for p, _ in wanted])
        stops = self._lm.stops(request.stops)
        return [
            ScoredText(
                Wanted(prompt, most, None, stream), self._lm.tokenizer, stops, sampling,
                alternatives=request.alternatives or 0, changed=changed,
            )
            for (prompt, most), stream in zip(wanted, streams, strict=True)
        ]  # fmt: skip

    def _limit(self, request: Request) -> int:
        most = self._served.limits.max_tokens
        chat = isinstance(request, ChatRequest)
        asked = request.max_tokens
        if isinstance(request, ChatRequest):
            asked = request.max_completion_tokens or asked
        if asked is not None and asked > most:
            raise ApiError(400, f"max_tokens={asked} is above this server's {most}", param="max_tokens")
        return asked or (most if chat else 16)

    def _fitting(self, prompt: Prompt, limit: int, asked: int | None) -> tuple[Prompt, int]:
        """A prompt and the tokens that may follow it: all that are asked for, or what the context leaves."""
        context = self._lm.context
        room = limit if context is None else context - len(prompt.ids)
        if room < 1 or (asked is not None and room < limit):
            raise ApiError(
                400,
                f"This model's maximum context length is {context} tokens, and {len(prompt.ids)} in the "
                f"prompt with {limit} to write are more: shorten the prompt or max_tokens",
                param="prompt", code="context_length_exceeded",
            )  # fmt: skip
        return prompt, min(limit, room)

    def _prompts(self, request: Request) -> list[Prompt]:
        tokenizer = self._lm.tokenizer
        if isinstance(request, ChatRequest):
            turns = [{"role": message.role, "content": message.text} for message in request.messages]
            texts: list[str | list[int]] = [chat_text(tokenizer, turns, "this is a chat")]
        else:
            texts = request.prompts
        found = []
        for number, text in enumerate(texts):
            if isinstance(text, str):
                _check_text(text)
                found += encode_prompts(tokenizer, [text], [str(number)])
            else:
                found.append(self._of_ids(text, number))
        return found

    def _of_ids(self, ids: Sequence[int], number: int) -> Prompt:
        size = self._lm.model.get_input_embeddings().num_embeddings
        if max(ids) >= size:
            raise ApiError(400, f"the token {max(ids)} is not one of the model's {size}", param="prompt")
        text, offsets = token_offsets(self._lm.tokenizer, ids)
        return Prompt(f"prompt {number}", text, tuple(ids), offsets)

    def _sampling(self, request: Request) -> Sampling | None:
        temperature = 1.0 if request.temperature is None else request.temperature
        if temperature == 0:
            return None
        seed = abs(request.seed) if request.seed is not None else secrets.randbits(63)
        return Sampling(max(temperature, 1e-3), 0, request.top_p or 1.0, seed)


def _json(value: Mapping[str, Any]) -> Response:
    return Response(as_json(value), media_type="application/json")


def _stream(chunks: AsyncIterator[bytes], clock: Clock) -> Response:
    async def timed() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
            clock.end()

    headers = {"Cache-Control": "no-store"}
    return StreamingResponse(timed(), media_type="text/event-stream", headers=headers)


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        told = "the prompt holds half a pair of surrogates, which is no text"
        raise ApiError(400, told, param="prompt") from None
