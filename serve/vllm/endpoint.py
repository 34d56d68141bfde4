"""The completions and chat completions of vLLM with ``choices[i].hallucination`` (docs/serving.md).

A plug-in of vLLM (``vllm.endpoint_plugins``): its routes replace vLLM's own, call them, and add to their
answers. A chunk of a stream waits until its tokens are scored, that is one step. Not scored, with
``hallucination`` null, are texts of LoRA adapters and behind pictures, beam search, ``echo``, and texts
changed by a parser of reasoning or tool calls.
"""

from __future__ import annotations

import asyncio
import json
import re
from argparse import Namespace
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import State
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request

from probers.bank.assessment import Assessor
from probers.bank.bank import ProbeBank
from probers.engine.vllm import KEY
from probers.types import UserError

from ..answers import ForeignChoice
from .feed import Scored, ScoreFeed
from .prober import ServedProber

_Asked: TypeAlias = CompletionRequest | ChatCompletionRequest
_DATA = "data: "


class Scores:
    """The plug-in; ``VLLM_PLUGINS`` must name it."""

    name = "probers"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Replace vLLM's two routes."""
        checked = [Depends(validate_json_request)]
        app.post("/v1/completions", dependencies=checked)(completions)
        app.post("/v1/chat/completions", dependencies=checked)(chat_completions)

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Load the prober to assess whole texts (UserError: the server has none)."""
        if engine_client is not None:
            state.probers = _Assessing(engine_client)


class _Assessing:
    """The server's prober, tokenizer and feed of scores."""

    def __init__(self, engine: EngineClient) -> None:
        self._bank: ProbeBank = ServedProber.of(engine.vllm_config.additional_config).load()
        self.feed = ScoreFeed(engine)
        self.tokenizer: Any = engine.renderer.get_tokenizer()
        self._assess = Assessor(self._bank)
        # One thread: the recogniser of entities is not thread-safe, and vLLM's loop must not wait.
        self.thread = ThreadPoolExecutor(1, "probers")

    def assessor(self, threshold: float | None) -> Assessor:
        """An assessor with the request's threshold."""
        return self._assess if threshold is None else Assessor(self._bank, threshold)


async def completions(request: CompletionRequest, raw_request: Request) -> Any:
    """``POST /v1/completions``."""
    return await _answered(request, raw_request, create_completion)


async def chat_completions(request: ChatCompletionRequest, raw_request: Request) -> Any:
    """``POST /v1/chat/completions``."""
    return await _answered(request, raw_request, create_chat_completion)


async def _answered(request: _Asked, raw: Request, stock: Callable[..., Awaitable[Any]]) -> Any:
    try:
        threshold = _threshold(request)
    except UserError as error:
        told = {"message": str(error), "type": "BadRequestError", "param": None, "code": 400}
        return JSONResponse({"error": told}, status_code=400)
    if request.use_beam_search or request.echo:
        return await stock(request, raw)
    response = _Response(raw.app.state.probers, request, threshold)
    answer = None
    try:
        answer = await stock(request, raw)
        if isinstance(answer, StreamingResponse):
            return StreamingResponse(response.streamed(answer.body_iterator), media_type=answer.media_type)
        if answer.status_code != 200:
            return answer
        body = await response.whole(json.loads(answer.body))
        kept = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return JSONResponse(body, headers=kept)
    finally:
        if not isinstance(answer, StreamingResponse):
            response.release()


def _threshold(request: _Asked) -> float | None:
    extra = request.model_extra or {}
    if extra.get("retrieval") is not None:
        told = "retrieval is not offered by backend=vllm: leave it out, or use backend=transformers"
        raise UserError(told, "unsupported")
    given = extra.get("hallucination") or {}
    threshold = given.get("threshold") if isinstance(given, dict) else given
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise UserError('hallucination must be {"threshold": a number}')
    return threshold


class _Response:
    """An answer to one HTTP request, with the prober's field added."""

    def __init__(self, assessing: _Assessing, request: _Asked, threshold: float | None) -> None:
        self._assessing, self._feed = assessing, assessing.feed
        self._assess = assessing.assessor(threshold)
        self._scored: Scored = self._feed.open()
        self._per_prompt = request.n or 1
        self._choices: dict[int, ForeignChoice] = {}
        self._prompt: list[int] = []
        self._chat = isinstance(request, ChatCompletionRequest)
        # vLLM returns the tokens on request; fields that the client did not ask for are removed again.
        self._unasked = set() if request.return_token_ids else {"token_ids", "prompt_token_ids"}
        if request.logprobs is None or request.logprobs is False:
            self._unasked.add("logprobs")
            request.logprobs = True if self._chat else 0
        request.return_token_ids = True
        request.vllm_xargs = {**(request.vllm_xargs or {}), KEY: self._scored.key}

    def release(self) -> None:
        """Forget the scores; the answer is complete or its client gone."""
        self._feed.release(self._scored)

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Complete an answer without streaming."""
        for told in body["choices"]:
            choice = self._take(body, told)
            told["hallucination"] = await self._finished(body["id"], told["index"], choice)
        return self._without(body, null=True)

    async def streamed(self, events: AsyncIterable[Any]) -> AsyncIterator[str]:
        """Complete an answer in server-sent events."""
        try:
            async for event in events:
                text = event.decode() if isinstance(event, bytes) else event
                if not text.startswith(_DATA + "{"):
                    yield text
                    continue
                chunk = json.loads(text.removeprefix(_DATA))
                for told in chunk.get("choices", ()):
                    await self._tell(chunk, told)
                yield f"{_DATA}{json.dumps(self._without(chunk), ensure_ascii=False)}\n\n"
        finally:
            self.release()

    async def _tell(self, chunk: dict[str, Any], told: dict[str, Any]) -> None:
        index, choice = told["index"], self._take(chunk, told)
        if told.get("finish_reason"):
            told["hallucination"] = await self._finished(chunk["id"], index, choice)
        elif told.get("token_ids") and await self._scores(chunk["id"], index, choice):
            end = choice.settled()
            await self._feed.until(lambda: len(choice.scores or ()) >= end)
            told["hallucination"] = choice.chunk(end)

    def _take(self, body: dict[str, Any], told: dict[str, Any]) -> ForeignChoice:
        """Read a choice of an answer or chunk."""
        message = told.get("message") or told.get("delta") or told
        text = message.get("content" if self._chat else "text") or ""
        self._prompt = body.get("prompt_token_ids") or self._prompt  # of a chat
        prompt = told.get("prompt_token_ids") or self._prompt
        if told["index"] not in self._choices:
            self._choices[told["index"]] = ForeignChoice(self._assess, self._assessing.tokenizer, prompt)
        logprobs = told.get("logprobs") or {}
        values = logprobs.get("token_logprobs") or [e["logprob"] for e in logprobs.get("content") or ()]
        choice = self._choices[told["index"]]
        choice.add(text, told.get("token_ids") or (), values)
        return choice

    async def _scores(self, answer: str, index: int, choice: ForeignChoice) -> bool:
        """Find the text's scores, if it is scored; its name is known once it was begun."""
        if choice.scores is None:
            await self._feed.until(lambda: self._name(answer, index) is not None, certain=True)
            name = self._name(answer, index)
            choice.scores = None if name is None else self._scored.texts[name]
            choice.distances = None if name is None else self._scored.distances.get(name)
        return choice.scores is not None

    def _name(self, answer: str, index: int) -> str | None:
        """Find the text's id of vLLM: place among n, id of the answer, place of the prompt."""
        prompt, child = divmod(index, self._per_prompt)
        before = f"{child}_" if self._per_prompt > 1 else ""
        place = "" if self._chat else f"-{prompt}"
        form = re.compile(f"{before}{re.escape(answer)}{place}(-[0-9a-f]{{8}})?")
        return next((name for name in self._scored.texts if form.fullmatch(name)), None)

    async def _finished(self, answer: str, index: int, choice: ForeignChoice) -> dict[str, Any] | None:
        if (kept := choice.kept()) is None or not await self._scores(answer, index, choice):
            return None
        scores, name = choice.scores, self._name(answer, index)
        assert scores is not None and name is not None
        await self._feed.until(lambda: len(scores) >= kept or name in self._scored.ended)
        if kept and len(scores) == kept - 1:
            await self._feed.close(self._scored, name, choice.prompt, choice.ids[:kept])
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._assessing.thread, choice.whole, kept)

    def _without(self, body: dict[str, Any], null: bool = False) -> dict[str, Any]:
        """Remove the fields that the client did not ask for; in a whole answer they become null."""
        for part in (body, *body.get("choices", ())):
            for name in part.keys() & self._unasked:
                del part[name]
                if null:
                    part[name] = None
        return body
