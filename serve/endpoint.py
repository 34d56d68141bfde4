"""Endpoint for both kinds of requests, whose texts the scheduler writes: a whole response or a stream."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse

from probers.model.decode import Request as Wanted
from probers.model.language_model import Sampling
from probers.model.tokens import Prompt, encode_prompts, token_offsets
from probers.prompts import chat_text, turn_ends
from probers.types import UserError
from probers.words.thinking import Thinking

from .answers import Choice, Frame, as_events, as_json, sse, usage_of
from .continuous import LiveText
from .http import ApiError
from .on_high import OnHigh, headers
from .protocol import ChatRequest, Request
from .scheduler import Scheduler
from .settings import Serve

if TYPE_CHECKING:
    from probers.prober.prober import Prober

    from .retrieval import Retrieving

_POLL = 0.5  # seconds between checks of whether a waiting client is still there
_MOST_TEXTS = 64  # most texts of one request
_FRESH = {"Cache-Control": "no-store"}
_GONE = ApiError(499, "the client is gone")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Served:
    """Parts and options of a server.

    Attributes:
        name: name of the model in requests.
        prober: entry of the prober in the list of models.
        scorer: prober of finished answers; None is the one that scores what the server writes, which also
            judges answers without passages where ``scorer`` reads passages. ``scorer_name`` is its name.
        thinking: marks around the model's thinking; None for a model that does not think.
        abstention: sentence of ``on_high=abstain``, unless the request has its own.
        max_tokens: most tokens per text. Without a limit of its own, a completion gets 16, as with OpenAI,
            and a chat gets all of them.
        patience: seconds that a client may take to read a piece before it is dropped.
    """

    scheduler: Scheduler
    name: str
    prober: Mapping[str, Any] | None = None
    scorer: Prober | None = None
    scorer_name: str | None = None
    retrieving: Retrieving | None = None
    corpus: str | None = None
    thinking: Thinking | None = None
    abstention: str = Serve.abstention
    api_key: str | None = None
    log_requests: bool = False
    max_tokens: int = 1024
    patience: float = 60

    def check_name(self, model: str) -> None:
        """Refuse a request for another model (ApiError)."""
        if model != self.name:
            message = f"the model {model!r} does not exist here: ask for {self.name!r}"
            raise ApiError(404, message, "model", "model_not_found")


class _Wakes:
    """Setter of a loop's events from another thread, with one call (a system call) to the loop per step."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Event] = deque()

    def __call__(self, loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
        self._waiting.append(event)
        if len(self._waiting) == 1:  # an earlier call that has not run yet sets the others
            loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        while self._waiting:
            self._waiting.popleft().set()


class Endpoint:
    """Endpoint of requests for text."""

    def __init__(self, served: Served) -> None:
        self._served, self._lm, self._wakes = served, served.scheduler.lm, _Wakes()

    async def __call__(self, request: Request, http: HttpRequest) -> Response:
        served, began = self._served, time.perf_counter()
        if served.log_requests:
            body = json.dumps(request.model_dump(exclude_none=True), ensure_ascii=True)
            log.warning("%s: %s", http.state.request_id, body)
        served.check_name(request.model)

        def end() -> None:
            latency = served.scheduler.metrics.latency.labels(http.scope["route"].path)
            latency.observe(time.perf_counter() - began)

        frame, acting = Frame(request.kind, served.name), self._acting(request)
        if request.retrieval is not None:
            if served.retrieving is None:
                raise ApiError(400, "this server has no corpus: start it with corpus=FILE", "retrieval")
            self._limit(request)
            answering = await served.retrieving.answer(request, frame, http.is_disconnected)
            if request.stream:
                return _stream(answering.chunks(with_usage=request.with_usage), end)
            whole = await answering.whole()
        elif request.stream and not (acting and acting.holds):
            begun = await self._begin(request, frame, began, acting)
            return _stream(self._chunks(request, frame, *begun, http.state.request_id), end)
        else:
            whole = await self._whole(request, frame, began, acting, http)
        end()
        summary = headers(whole["choices"])
        if request.stream:
            events = as_events(whole, with_usage=request.with_usage)
            return StreamingResponse(events, media_type="text/event-stream", headers={**_FRESH, **summary})
        return Response(as_json(whole), media_type="application/json", headers=summary)

    def _acting(self, request: Request) -> OnHigh | None:
        """Return the action on the scores; None on a server without a prober."""
        options, bank = request.hallucination, self._served.scheduler.bank
        acts = options is not None and options.on_high != "warn"
        if bank is None:
            if acts:
                message = "this server has no prober: start it with one, or leave on_high out"
                raise ApiError(400, message, "hallucination.on_high")
            return None
        if acts and request.retrieval is not None:
            message = "on_high and retrieval both act on the score: ask for one of them"
            raise ApiError(400, message, "hallucination.on_high")
        return OnHigh.of(options, bank, self._served.abstention, greedy=_sampling(request) is None)

    async def _begin(
        self, request: Request, frame: Frame, began: float, acting: OnHigh | None, *,
        draw: int = 0, only: Sequence[int] | None = None,
    ) -> tuple[list[Choice], asyncio.Event]:  # fmt: skip
        """Submit the texts of a request, ``only`` some in a later ``draw``; the event is set as they grow."""
        scheduler, shown = self._served.scheduler, draw > 0
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        at_once = request.stream or (acting is not None and acting.action in ("stop", "abstain"))

        def tell() -> None:
            nonlocal shown
            if not shown and any(text.shown for text in texts):
                shown = True
                scheduler.metrics.first.observe(time.perf_counter() - began)
            if at_once or all(text.over for text in texts):
                self._wakes(loop, changed)

        # The tokenizer is slow for long prompts.
        texts = await asyncio.to_thread(self._texts, request, tell, draw)
        places = range(len(texts)) if only is None else only
        texts = [texts[place] for place in places]
        scheduler.submit(texts)
        thinking = self._served.thinking if isinstance(request, ChatRequest) else None
        more = self._lm.tokenizer, request.alternatives, acting, thinking
        each = zip(places, texts, strict=True)
        return [Choice(frame, index, text, *more) for index, text in each], changed

    async def _written(self, choices: Sequence[Choice], changed: asyncio.Event, http: HttpRequest) -> None:
        """Wait until texts are finished (RunError: one failed; ApiError: the client is gone)."""
        texts = [choice.text for choice in choices]
        try:
            while not all(text.over for text in texts):
                with anyio.move_on_after(_POLL):
                    await changed.wait()
                if changed.is_set():
                    changed.clear()
                    for choice in choices:
                        choice.look()
                elif await http.is_disconnected():
                    raise _GONE
        finally:
            for text in texts:
                text.cancelled = True  # no effect on finished texts
        for text in texts:
            if text.error is not None:
                raise text.error

    async def _whole(
        self, request: Request, frame: Frame, began: float, acting: OnHigh | None, http: HttpRequest
    ) -> dict[str, Any]:
        choices, changed = await self._begin(request, frame, began, acting)
        await self._written(choices, changed, http)
        bodies = [choice.whole() for choice in choices]
        if acting is not None and acting.action == "retry":
            draws = [[pair] for pair in zip(bodies, choices, strict=True)]
            for draw in range(1, acting.draws):
                high = [i for i, pairs in enumerate(draws) if pairs[-1][0]["hallucination"]["fires"]]
                if not high:
                    break
                if await http.is_disconnected():
                    raise _GONE
                again, changed = await self._begin(request, frame, began, acting, draw=draw, only=high)
                await self._written(again, changed, http)
                for place, choice in zip(high, again, strict=True):
                    draws[place].append((choice.whole(), choice))
            for i, pairs in enumerate(draws):
                counts = [choice.written for _, choice in pairs]
                place, bodies[i] = acting.chosen([body for body, _ in pairs], counts)
                choices[i] = pairs[place][1]
        self._observe(bodies)
        return frame.whole(bodies, usage_of(choices))

    async def _chunks(
        self, request: Request, frame: Frame, choices: Sequence[Choice], changed: asyncio.Event, name: str
    ) -> AsyncIterator[bytes]:
        try:
            for chunk in frame.opening(request.choices):
                yield chunk
            while not all(choice.finished for choice in choices):
                await changed.wait()
                changed.clear()
                for choice in choices:
                    if choice.text.error is not None and not choice.finished:
                        log.error("%s: %s", name, choice.text.error)
                        yield sse(ApiError.of(choice.text.error).body())
                        return
                    if not choice.finished and (news := choice.news()) is not None:
                        self._observe([news] if choice.finished else [])
                        yield frame.chunks(news)
            if request.with_usage:
                yield frame.chunk(usage=usage_of(choices))
            yield sse("[DONE]")
        finally:
            for choice in choices:
                choice.text.cancelled = True

    def _observe(self, choices: Sequence[Mapping[str, Any]]) -> None:
        for choice in choices:
            if (p_wrong := choice.get("hallucination", {}).get("p_wrong")) is not None:
                self._served.scheduler.metrics.scores.observe(p_wrong)

    def _texts(self, request: Request, changed: Callable[[], None], draw: int = 0) -> list[LiveText]:
        """Make the texts of a request (ApiError: they do not fit the model or the server's limits).

        Every ``draw`` has its own random numbers.
        """
        limit, sampling = self._limit(request), _sampling(request, draw)
        context, wanted = self._lm.context, list[tuple[Prompt, int]]()
        try:
            prompts = self._prompts(request)
        except UserError as error:
            raise ApiError(400, str(error), request.asks) from None
        for prompt in prompts:
            room = limit if context is None else context - len(prompt.ids)
            if room < 1 or (request.most is not None and room < limit):
                why = f"This model's maximum context length is {context} tokens, but the prompt has "
                why += f"{len(prompt.ids)} and {limit} are to be written: shorten the prompt or max_tokens"
                raise ApiError(400, why, request.asks, "context_length_exceeded")
            wanted += [(prompt, min(limit, room))] * request.choices
        if len(wanted) > _MOST_TEXTS:
            message = f"the request is for {len(wanted)} texts: ask for {_MOST_TEXTS} or fewer"
            raise ApiError(400, message, "n")
        streams = [None] * len(wanted) if sampling is None else sampling.streams([p.ids for p, _ in wanted])
        turn = turn_ends(self._lm.tokenizer) if isinstance(request, ChatRequest) else ()
        stops = self._lm.stops([*request.stops, *turn])
        return [
            LiveText(
                Wanted(prompt, most, None, stream), self._lm.tokenizer, stops, sampling,
                alternatives=request.alternatives or 0, changed=changed,
            )
            for (prompt, most), stream in zip(wanted, streams, strict=True)
        ]  # fmt: skip

    def _limit(self, request: Request) -> int:
        most, wanted = self._served.max_tokens, request.most
        if wanted is not None and wanted > most:
            problem = f"{request.most_by}={wanted} is above this server's {most}: ask for fewer"
            raise ApiError(400, problem, request.most_by)
        return wanted or (most if isinstance(request, ChatRequest) else 16)

    def _prompts(self, request: Request) -> list[Prompt]:
        tokenizer = self._lm.tokenizer
        if isinstance(request, ChatRequest):
            turns, more = request.turns(str(getattr(tokenizer, "chat_template", None) or ""))
            texts: list[str | list[int]] = [chat_text(tokenizer, turns, "this is a chat", **more)]
        else:
            texts = request.prompts
        prompts = list[Prompt]()
        for number, text in enumerate(texts):
            if isinstance(text, str):
                prompts += encode_prompts(tokenizer, [text], [str(number)])
            else:
                self._lm.check_tokens(text, f"prompt {number}")
                written, offsets = token_offsets(tokenizer, text)
                prompts.append(Prompt(f"prompt {number}", written, tuple(text), offsets))
        return prompts


def _sampling(request: Request, draw: int = 0) -> Sampling | None:
    temperature = 1.0 if request.temperature is None else request.temperature
    if temperature == 0:
        return None
    seed = abs(request.seed) if request.seed is not None else secrets.randbits(63)
    return Sampling(max(temperature, 1e-3), 0, request.top_p or 1.0, seed + draw)


def _stream(chunks: AsyncIterator[bytes], end: Callable[[], None]) -> Response:
    async def timed() -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
            end()

    return StreamingResponse(timed(), media_type="text/event-stream", headers=_FRESH)
