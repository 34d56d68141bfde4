"""The completions and chat completions of vLLM with ``choices[i].hallucination`` (docs/serving.md).

A plug-in of vLLM (``vllm.endpoint_plugins``): its routes stand in place of vLLM's own, call these, and add
to what they answer. A chunk of a stream waits until its tokens are scored, that is one step. Not scored,
``hallucination`` being null: texts of LoRA adapters and behind pictures, beam search, ``echo``, and texts
that a parser of reasoning or tool calls has changed.
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

from .choice import Choice
from .feed import Scored, ScoreFeed
from .prober import Settings

_Asked: TypeAlias = CompletionRequest | ChatCompletionRequest
_DATA = "data: "


class Scores:
    """The plug-in; named in ``VLLM_PLUGINS`` to be loaded."""

    name = "probers"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Put the two routes in place of vLLM's."""
        checked = [Depends(validate_json_request)]
        app.post("/v1/completions", dependencies=checked)(completions)
        app.post("/v1/chat/completions", dependencies=checked)(chat_completions)

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Load the prober for what it says of whole texts.

        Raises:
            UserError: the server has none.
        """
        if engine_client is not None:
            state.probers = _Said(engine_client)


class _Said:
    """What the server's prober says of texts."""

    def __init__(self, engine: EngineClient) -> None:
        self.bank: ProbeBank = Settings.of(engine.vllm_config.additional_config).load()
        self.feed = ScoreFeed(engine)
        self.tokenizer: Any = engine.renderer.get_tokenizer()
        self._assess = Assessor(self.bank)
        # One thread: the recogniser of entities is not made for several, and vLLM's loop must not wait.
        self._thread = ThreadPoolExecutor(1, "probers")

    async def whole(self, choice: Choice, kept: int, threshold: float | None) -> dict[str, Any]:
        """All that is said of a finished text."""
        assess = self._assess if threshold is None else Assessor(self.bank, threshold)
        return await asyncio.get_running_loop().run_in_executor(self._thread, choice.whole, kept, assess)


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
        raise UserError("retrieval is not offered by backend=vllm: leave it out, or use backend=transformers")
    said = extra.get("hallucination") or {}
    threshold = said.get("threshold") if isinstance(said, dict) else said
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        raise UserError('hallucination must be {"threshold": a number}')
    return threshold


class _Response:
    """An answer to one HTTP request, to which the prober's part is added."""

    def __init__(self, said: _Said, request: _Asked, threshold: float | None) -> None:
        self._said, self._threshold = said, threshold
        self._scored: Scored = said.feed.open()
        self._per_prompt = request.n or 1
        self._choices: dict[int, Choice] = {}
        self._prompt: list[int] = []
        self._chat = isinstance(request, ChatCompletionRequest)
        # vLLM's own answer has what is needed where it is asked for; what the client did not ask for goes.
        self._unasked = [] if request.return_token_ids else ["token_ids", "prompt_token_ids"]
        if request.logprobs is None or request.logprobs is False:
            self._unasked.append("logprobs")
            request.logprobs = True if self._chat else 0
        request.return_token_ids = True
        request.vllm_xargs = {**(request.vllm_xargs or {}), KEY: self._scored.key}

    def release(self) -> None:
        """The answer is complete, or nobody waits for it any more."""
        self._said.feed.release(self._scored)

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """An answer that is not streamed."""
        for told in body["choices"]:
            choice = self._take(body, told)
            told["hallucination"] = await self._finished(body["id"], told["index"], choice)
        return self._without(body, null=True)

    async def streamed(self, events: AsyncIterable[Any]) -> AsyncIterator[str]:
        """An answer in server-sent events."""
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
            await self._said.feed.until(lambda: len(choice.scores or ()) >= end)
            told["hallucination"] = choice.chunk(end)

    def _take(self, body: dict[str, Any], told: dict[str, Any]) -> Choice:
        """Read what an answer or chunk says of a choice."""
        message = told.get("message") or told.get("delta") or told
        text = message.get("content" if self._chat else "text") or ""
        self._prompt = body.get("prompt_token_ids") or self._prompt  # of a chat
        prompt = told.get("prompt_token_ids") or self._prompt
        new = told["index"] not in self._choices
        if new:
            self._choices[told["index"]] = Choice(self._said.bank, self._said.tokenizer, prompt)
        logprobs = told.get("logprobs") or {}
        values = logprobs.get("token_logprobs") or [e["logprob"] for e in logprobs.get("content") or ()]
        choice = self._choices[told["index"]]
        choice.add(text, told.get("token_ids") or (), values)
        return choice

    async def _scores(self, answer: str, index: int, choice: Choice) -> bool:
        """Whether the text is scored; its name is known once it was begun."""
        if choice.scores is None:
            await self._said.feed.until(lambda: self._name(answer, index) is not None, certain=True)
            name = self._name(answer, index)
            choice.scores = None if name is None else self._scored.texts[name]
            choice.distances = None if name is None else self._scored.distances.get(name)
        return choice.scores is not None

    def _name(self, answer: str, index: int) -> str | None:
        """The id that vLLM gave the text: its place in n before that of the answer, the prompt's behind."""
        prompt, child = divmod(index, self._per_prompt)
        before = f"{child}_" if self._per_prompt > 1 else ""
        place = "" if self._chat else f"-{prompt}"
        form = re.compile(f"{before}{re.escape(answer)}{place}(-[0-9a-f]{{8}})?")
        return next((name for name in self._scored.texts if form.fullmatch(name)), None)

    async def _finished(self, answer: str, index: int, choice: Choice) -> dict[str, Any] | None:
        if (kept := choice.kept()) is None or not await self._scores(answer, index, choice):
            return None
        scores, name = choice.scores, self._name(answer, index)
        assert scores is not None and name is not None
        await self._said.feed.until(lambda: len(scores) >= kept or name in self._scored.ended)
        if kept and len(scores) == kept - 1:
            await self._said.feed.close(self._scored, name, choice.prompt, choice.ids[:kept])
        return await self._said.whole(choice, kept, self._threshold)

    def _without(self, body: dict[str, Any], null: bool = False) -> dict[str, Any]:
        """An answer or chunk without what the client did not ask for; where it is whole, as null."""
        for part in (body, *body.get("choices", ())):
            for name in self._unasked:
                if name in part:
                    if null:
                        part[name] = None
                    else:
                        del part[name]
        return body
