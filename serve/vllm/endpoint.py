"""Completions and chat completions of vLLM with ``choices[i].hallucination`` (docs/serving.md).

A plug-in of vLLM (``vllm.endpoint_plugins``): its routes replace vLLM's own, call them, and add to their
answers. A chunk of a stream waits one step, until its tokens are scored; with ``on_high`` the text waits
until it is judged. Some texts are not scored, and their ``hallucination`` is null: texts of other LoRA
adapters than the prober's, texts after pictures, beam search, ``echo``, and texts that a parser has changed
beyond taking them apart.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ValidationError
from starlette.datastructures import State
from transformers import AutoTokenizer
from uvicorn.config import HTTP_PROTOCOLS
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.openai.chat_completion.api_router import create_chat_completion
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.api_router import create_completion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.utils.api_utils import validate_json_request
from vllm.lora.request import LoRARequest
from vllm.renderers.chat_utils import load_chat_template

from probers.data.records import half_in
from probers.data.texts import TextSource
from probers.model.passages import request as scored_request
from probers.model.tokens import appended, encode_continuation, encode_prompts, marker_of, token_offsets
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.prober import Prober
from probers.prober.response import Scored as ScoredAnswer
from probers.prober.scoring import readable
from probers.prober.token_scores import text_needs
from probers.prompts import form_with, turn_ends
from probers.types import EndToken, ProbersError, UserError

from ..answers import as_events, usage
from ..http import ApiError
from ..on_high import OnHigh, headers
from ..protocol import Hallucination
from ..scoring import FORMS, Form, scored
from .answer import Asked, ScoredResponse
from .feed import ScoreFeed
from .prober import ServedProber, adapter_of


async def _check_unicode(raw: Request) -> None:
    """Refuse strings that are no Unicode (HTTPException): vLLM fails at them."""
    if b"\\u" in await raw.body():
        with suppress(ValueError, RecursionError):  # vLLM tells what is no JSON
            if (place := half_in(await raw.json())) is not None:
                problem = f"{place or 'a field'} holds half of a pair of surrogates: send valid Unicode"
                raise HTTPException(400, problem)


class Scores:
    """Plug-in with the scores; ``VLLM_PLUGINS`` must name it."""

    name = "probers"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """Replace vLLM's two routes, and the parser that loses bodies (:mod:`probers.serve.http`)."""
        HTTP_PROTOCOLS["auto"] = "probers.serve.http:Protocol"
        checked = [Depends(validate_json_request), Depends(_check_unicode)]
        app.post("/v1/completions", dependencies=checked)(completions)
        app.post("/v1/chat/completions", dependencies=checked)(chat_completions)
        for form in FORMS:
            if form.path.startswith("/v1/"):  # the only paths for which vLLM asks for the key
                app.post(form.path, dependencies=checked)(scores_of(form))

    async def init_state(self, engine_client: EngineClient | None, state: State, args: Namespace) -> None:
        """Load the prober to assess whole texts (UserError: the server has none)."""
        if engine_client is not None:
            state.probers = Assessing(engine_client, load_chat_template(args.chat_template))


class Assessing:
    """Prober, tokenizer and feed of scores of the server."""

    def __init__(self, engine: EngineClient, template: str | None = None) -> None:
        self._served = ServedProber.of(engine.vllm_config.additional_config)
        self._bank: Prober = self._served.load()
        self.feed, self._context = ScoreFeed(engine), int(engine.model_config.max_model_len)
        self.tokenizer: Any = engine.renderer.get_tokenizer()
        # vLLM's tokenizer is a pool of copies, whose template cannot be replaced by that of --chat-template.
        config = engine.model_config
        self._reading: Any = AutoTokenizer.from_pretrained(
            config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
        )
        self._reading.chat_template = template or self._reading.chat_template
        # One thread: the recogniser of entities is not thread-safe, and vLLM's loop must not wait.
        self.thread = ThreadPoolExecutor(1, "probers")

    def use(self, adapters: Iterable[LoRARequest]) -> None:
        """Find the prober's adapter among the server's, for the last tokens of its texts."""
        path = adapter_of(self._bank)
        self.feed.adapter = next((each for each in adapters if each.lora_path == path), None)

    def unmarked(self, request: Asked) -> None:
        """Take what the tokenizer puts after a text off the prompts (ApiError: they are no Unicode).

        vLLM would let the model continue after it. Prompts become tokens.
        """
        if not request.add_special_tokens or not appended(self.tokenizer):
            return
        if isinstance(request, ChatCompletionRequest):
            why = f"would put {marker_of(self.tokenizer)} after the chat: leave it out"
            raise ApiError(400, f"add_special_tokens {why}", "add_special_tokens")
        given: Any = request.prompt
        texts = [given] if isinstance(given, str) else given
        if texts and all(isinstance(text, str) for text in texts):
            try:
                ids = [list(each.ids) for each in encode_prompts(self.tokenizer, texts, start=True)]
            except UserError as error:
                raise ApiError(400, str(error), "prompt") from None
            request.prompt = ids[0] if isinstance(given, str) else ids

    def end_turns(self, request: Asked) -> None:
        """Let a chat end where the template's next turn begins."""
        if not isinstance(request, ChatCompletionRequest) or request.ignore_eos:
            return
        for end in turn_ends(self.tokenizer):
            if isinstance(end, EndToken):
                request.stop_token_ids = [*(request.stop_token_ids or ()), end.id]
            else:
                given = request.stop or []
                request.stop = [*([given] if isinstance(given, str) else given), end]

    def check_name(self, name: str | None, served: Any) -> None:
        """Refuse a request for another model than the prober's (ApiError)."""
        adapter = self.feed.adapter
        known = [each.name for each in served.base_model_paths] if adapter is None else [adapter.lora_name]
        if name is not None and name not in known:
            message = f"the model {name!r} is not scored here: ask for {known[0]!r}"
            raise ApiError(404, message, "model", "model_not_found")

    def score(
        self, row: Mapping[str, Any], loop: asyncio.AbstractEventLoop, *,
        threshold: float | None = None, unit: str | None = None,
    ) -> ScoredAnswer:  # fmt: skip
        """Score an answer that exists already, by one request of vLLM (UserError: a row that cannot be read).

        It runs on another thread than ``loop``, vLLM's.
        """
        source, tokenizer = TextSource([row], usual=self._bank.columns), self._reading
        texts = readable(source, list(source.all()), self._bank, tokenizer)
        assess = Assessor(self._bank, threshold, unit)
        # vLLM writes one more token after those that it reads.
        lm = SimpleNamespace(tokenizer=tokenizer, context=self._context - 1)
        form = form_with(self._bank.spec.prompt)
        asked = scored_request(lm, texts[0], form, texts[0].dataset, text_needs(self._bank))
        (prompt,) = encode_prompts(tokenizer, [asked.prompt], start=True)
        text = encode_continuation(tokenizer, prompt, asked.continuation)
        if len(prompt.ids) + len(text) > lm.context:
            return ScoredAnswer(texts[0].id, asked.prompt, texts[0].answer, None)
        known = asyncio.run_coroutine_threadsafe(self.feed.read(prompt.ids, text), loop).result()
        raw, offsets = token_offsets(tokenizer, text, prompt.ids)
        record = WrittenText(asked.prompt, raw, offsets, *known)
        response = self.thread.submit(assess, record).result()
        if asked.left_out:
            response = response.model_copy(update={"left_out": asked.left_out})
        return ScoredAnswer(texts[0].id, asked.prompt, texts[0].answer, response)

    def acting(self, request: Asked) -> OnHigh:
        """Read the action that the request wants on its scores (ApiError: it cannot be done)."""
        extra = request.model_extra or {}
        if extra.get("retrieval") is not None:
            message = "retrieval is not offered by backend=vllm: leave it out, or use backend=transformers"
            raise ApiError(400, message, "retrieval")
        try:
            options = Hallucination.model_validate(extra.get("hallucination") or {})
        except ValidationError as error:
            raise ApiError.of_validation(error.errors(), "hallucination") from None
        if options.on_high != "warn" and (request.use_beam_search or request.echo):
            message = "on_high needs scores, which texts of beam search and echo do not have: leave one out"
            raise ApiError(400, message, "hallucination.on_high")
        return OnHigh.of(options, self._bank, self._served.abstention, greedy=request.temperature == 0)


async def completions(request: CompletionRequest, raw_request: Request) -> Any:
    """Answer ``POST /v1/completions``."""
    return await _answered(request, raw_request, create_completion)


async def chat_completions(request: ChatCompletionRequest, raw_request: Request) -> Any:
    """Answer ``POST /v1/chat/completions``."""
    return await _answered(request, raw_request, create_chat_completion)


async def _answered(request: Asked, raw: Request, stock: Callable[..., Awaitable[Any]]) -> Any:
    state: Assessing = raw.app.state.probers
    try:
        acting = state.acting(request)
        await asyncio.to_thread(state.unmarked, request)
        state.use(raw.app.state.openai_serving_models.lora_requests.values())
    except ApiError as error:
        return error.response()
    if request.use_beam_search or request.echo:
        return await stock(request, raw)
    state.end_turns(request)
    # With stop strings the text of a stream lags behind its tokens, and vLLM's parsers, which read both,
    # repeat and cut it.
    parsed = isinstance(request, ChatCompletionRequest) and raw.app.state.openai_serving_chat.parser_cls
    if acting.holds or (request.stream and request.stop and parsed):
        return await _held(request, raw, stock, acting)
    return await _once(request, raw, stock, acting)


async def _once(request: Asked, raw: Request, stock: Callable[..., Awaitable[Any]], acting: OnHigh) -> Any:
    """Answer by one request of vLLM."""
    state = raw.app.state.probers
    response = ScoredResponse(state.feed, state.tokenizer, state.thread, request, acting)
    answer = None
    try:
        answer = await stock(request, raw)
        if isinstance(answer, StreamingResponse):
            return StreamingResponse(response.streamed(answer.body_iterator), media_type=answer.media_type)
        if answer is None or answer.status_code != 200:  # None: the client is gone
            return answer
        body = await response.whole(json.loads(answer.body))
        fields = {name: value for name, value in answer.headers.items() if name != "content-length"}
        return JSONResponse(body, headers={**fields, **headers(body["choices"])})
    finally:
        if not isinstance(answer, StreamingResponse):
            response.release()


async def _held(request: Asked, raw: Request, stock: Callable[..., Awaitable[Any]], acting: OnHigh) -> Any:
    """Answer in one piece, as nothing may be sent before all is known; retry draws text after text."""
    draws = list[dict[str, Any]]()
    for draw in range(acting.draws if acting.action == "retry" else 1):
        seed = None if request.seed is None else request.seed + draw
        single = request.model_copy(update={"stream": False, "stream_options": None, "seed": seed}, deep=True)
        answer = await _once(single, raw, stock, acting)
        if answer is None or answer.status_code != 200:
            return answer
        draws.append(json.loads(answer.body))
        if not any((choice["hallucination"] or {}).get("fires") for choice in draws[-1]["choices"]):
            break
    body = draws[0]
    each = zip(*(draw["choices"] for draw in draws), strict=True)
    body["choices"] = [acting.chosen(drawn, [_tokens(choice) for choice in drawn])[1] for drawn in each]
    if len(draws) > 1:
        written = sum(_tokens(choice) for choice in body["choices"])
        body["usage"] |= usage(body["usage"]["prompt_tokens"], written)
    summary = headers(body["choices"])
    if not request.stream:
        return JSONResponse(body, headers=summary)
    with_usage = bool(request.stream_options and request.stream_options.include_usage)
    events = as_events(body, with_usage=with_usage)
    return StreamingResponse(events, media_type="text/event-stream", headers=summary)


def _tokens(choice: dict[str, Any]) -> int:
    """Count the tokens of a whole choice; 0 if it is not scored."""
    return len((choice["hallucination"] or {"token_scores": ()})["token_scores"])


def scores_of(form: type[Form]) -> Callable[..., Awaitable[Any]]:
    """Make the function that answers requests of a form for scores of answers that exist already."""

    async def answer(request: Form, raw_request: Request) -> Any:
        state, loop = raw_request.app.state, asyncio.get_running_loop()

        def score(row: Mapping[str, Any], **how: Any) -> ScoredAnswer:
            return state.probers.score(row, loop, **how)  # type: ignore[no-any-return]

        try:
            state.probers.use(state.openai_serving_models.lora_requests.values())
            state.probers.check_name(getattr(request, "model", None), state.openai_serving_models)
            return await asyncio.to_thread(scored, request, score)
        except (ApiError, ProbersError) as error:
            return ApiError.of(error).response()

    answer.__annotations__ |= {"request": form, "raw_request": Request}  # which FastAPI reads
    return answer
