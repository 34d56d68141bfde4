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
import re
from argparse import Namespace
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias, TypeVar

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
from probers.model.vllm import KEY
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.prober import Prober
from probers.prober.response import Scored as ScoredAnswer
from probers.prober.scoring import readable
from probers.prober.token_scores import text_needs
from probers.prompts import form_with, turn_ends
from probers.types import EndToken, ProbersError, UserError

from ..answers import as_events, pieces, rounded, usage
from ..http import ApiError
from ..on_high import FINISH, OnHigh, headers
from ..protocol import Hallucination
from ..scoring import FORMS, Form, scored
from .choice import FORCED, ForeignChoice
from .feed import Scored, ScoreFeed
from .prober import ServedProber, adapter_of

T = TypeVar("T")
_Asked: TypeAlias = CompletionRequest | ChatCompletionRequest
_DATA = "data: "


def _event(chunk: dict[str, Any]) -> str:
    return f"{_DATA}{json.dumps(chunk, ensure_ascii=False)}\n\n"


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
            state.probers = _Assessing(engine_client, load_chat_template(args.chat_template))


class _Assessing:
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

    def unmarked(self, request: _Asked) -> None:
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

    def acting(self, request: _Asked) -> OnHigh:
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


async def _answered(request: _Asked, raw: Request, stock: Callable[..., Awaitable[Any]]) -> Any:
    try:
        acting = raw.app.state.probers.acting(request)
        await asyncio.to_thread(raw.app.state.probers.unmarked, request)
        raw.app.state.probers.use(raw.app.state.openai_serving_models.lora_requests.values())
    except ApiError as error:
        return JSONResponse(error.body(), error.status)
    if request.use_beam_search or request.echo:
        return await stock(request, raw)
    if acting.holds:
        return await _held(request, raw, stock, acting)
    return await _once(request, raw, stock, acting)


async def _once(request: _Asked, raw: Request, stock: Callable[..., Awaitable[Any]], acting: OnHigh) -> Any:
    """Answer by one request of vLLM."""
    response = _Response(raw.app.state.probers, request, acting)
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


async def _held(request: _Asked, raw: Request, stock: Callable[..., Awaitable[Any]], acting: OnHigh) -> Any:
    """Answer if nothing may be sent before everything is decided; retry draws one text after the other."""
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
            known = error if isinstance(error, ApiError) else ApiError.of(error)
            return JSONResponse(known.body(), known.status)

    answer.__annotations__ |= {"request": form, "raw_request": Request}  # which FastAPI reads
    return answer


class _Response:
    """Answer to one HTTP request, with the prober's field added."""

    def __init__(self, assessing: _Assessing, request: _Asked, acting: OnHigh) -> None:
        self._assessing, self._feed, self._acting = assessing, assessing.feed, acting
        self._scored: Scored = self._feed.open()
        self._per_prompt = request.n or 1
        self._choices: dict[int, ForeignChoice] = {}
        self._prompt: list[int] = []
        self._chat = isinstance(request, ChatCompletionRequest)
        self._with_usage = bool(request.stream_options and request.stream_options.include_usage)
        self._forced = self._chat and getattr(request, "tool_choice", None) not in (None, "none", "auto")
        prompt: Any = None if self._chat else request.prompt
        several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
        self._expected = self._per_prompt * (len(prompt) if several else 1)
        self._over = set[int]()  # choices ended by their score
        # vLLM returns the tokens on request; fields that the client did not ask for are then removed.
        self._unasked = set() if request.return_token_ids else {"token_ids", "prompt_token_ids"}
        if request.logprobs is None or request.logprobs is False:
            self._unasked.add("logprobs")
            request.logprobs = True if self._chat else 0
        if self._chat and not request.ignore_eos:
            for end in turn_ends(assessing.tokenizer):
                if isinstance(end, EndToken):
                    request.stop_token_ids = [*(request.stop_token_ids or ()), end.id]
                else:
                    given = request.stop or []
                    request.stop = [*([given] if isinstance(given, str) else given), end]
        request.return_token_ids = True
        request.vllm_xargs = {**(request.vllm_xargs or {}), KEY: self._scored.key}

    def release(self) -> None:
        """Forget the scores; the answer is complete or its client gone."""
        self._feed.release(self._scored)

    async def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        """Complete an answer without streaming."""
        prompt, discarded = body["usage"]["prompt_tokens"], 0
        for place, entry in enumerate(body["choices"]):
            choice = self._take(body, entry)
            entry["hallucination"] = await self._finished(body["id"], entry["index"], choice)
            scored, high = entry["hallucination"] is not None, choice.judgement.high
            abstained = self._acting.abstained(entry, high, len(choice.ids)) if scored else None
            if abstained is not None:
                discarded += len(choice.ids)
                body["choices"][place] = abstained
            elif high is not None:
                count = choice.billed()
                discarded += len(choice.ids) - count
                part, name = (entry["message"], "content") if self._chat else (entry, "text")
                part[name] = (part[name] or "")[: high.start]
                entry["finish_reason"] = FINISH
                for fields, names in ((entry.get("logprobs") or {}, choice.entries), (entry, ("token_ids",))):
                    fields |= {name: fields[name][:count] for name in names if fields.get(name)}
        if discarded:
            body["usage"] |= usage(prompt, body["usage"]["completion_tokens"] - discarded)
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
                entries = [entry for entry in chunk.get("choices", ()) if entry["index"] not in self._over]
                for entry in entries:
                    await self._tell(chunk, entry)
                if self._over:
                    if chunk.get("choices") and not entries:
                        continue
                    chunk["choices"] = entries
                    if chunk.get("usage"):
                        chunk["usage"] |= self._usage()
                chunk = self._without(chunk)
                parts = list(pieces(entries[0])) if len(entries) == 1 else []
                for choices in [[part] for part in parts] or [entries]:
                    yield _event({**chunk, "choices": choices} if entries else chunk)
                if len(self._over) == self._expected:
                    if self._with_usage:
                        yield _event({**chunk, "choices": [], "usage": self._usage()})
                    yield f"{_DATA}[DONE]\n\n"
                    return  # aborts the texts that vLLM still writes
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()
            self.release()

    def _usage(self) -> dict[str, Any]:
        """Compute the usage of the texts as returned; the prompt of several counts once."""
        prompts = {index // self._per_prompt: len(each.prompt) for index, each in self._choices.items()}
        return usage(sum(prompts.values()), sum(choice.billed() for choice in self._choices.values()))

    async def _tell(self, chunk: dict[str, Any], entry: dict[str, Any]) -> None:
        index, choice = entry["index"], self._take(chunk, entry)
        if entry.get("finish_reason"):
            entry["hallucination"] = await self._finished(chunk["id"], index, choice)
        elif entry.get("token_ids") and await self._scores(chunk["id"], index, choice):
            end = choice.settled()
            await self._feed.until(lambda: len(choice.scores or ()) >= end)
            start, end = choice.chunked, await self._aside(choice.look, end)
            entry["hallucination"] = choice.chunk(end)
            if choice.judgement.high is None:
                self._hold(entry, choice, start, end)
        if choice.judgement.high is not None:
            self._over.add(index)
            entry["finish_reason"], count = FINISH, choice.count_tokens() or 0
            self._hold(entry, choice, choice.chunked, choice.billed())
            entry["hallucination"] = await self._aside(choice.whole, count)
        elif entry.get("finish_reason"):
            self._hold(entry, choice, choice.chunked, len(choice.ids))

    async def _aside(self, work: Callable[..., T], *given: Any) -> T:
        """Run the finding of entities on its own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._assessing.thread, work, *given)

    def _hold(self, entry: dict[str, Any], choice: ForeignChoice, start: int, end: int) -> None:
        """Send only the judged part of a chunk: tokens from ``start`` to ``end`` and their text."""
        if self._acting.action != "stop" or choice.scores is None:
            return
        field = entry.get("hallucination")
        judged = field is not None and "not_scored" not in field
        part, name = (entry["delta"], "content") if self._chat else (entry, "text")
        piece = choice.release(everything=bool(entry.get("finish_reason")) and not judged)
        if piece or part.get(name):
            part[name] = piece
        if entry.get("logprobs") is not None:
            entry["logprobs"] = {field: values[start:end] for field, values in choice.entries.items()}
        if entry.get("token_ids") is not None:
            entry["token_ids"] = choice.ids[start:end]

    def _take(self, body: dict[str, Any], entry: dict[str, Any]) -> ForeignChoice:
        """Read a choice of an answer or chunk."""
        message = entry.get("message") or entry.get("delta") or entry
        text = message.get("content" if self._chat else "text") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        self._prompt = body.get("prompt_token_ids") or self._prompt  # for a chat
        prompt = entry.get("prompt_token_ids") or self._prompt
        if entry["index"] not in self._choices:
            self._choices[entry["index"]] = ForeignChoice(self._acting, self._assessing.tokenizer, prompt)
        logprobs = entry.get("logprobs") or {}
        values = logprobs.get("token_logprobs") or [e["logprob"] for e in logprobs.get("content") or ()]
        choice = self._choices[entry["index"]]
        for field, entries in logprobs.items():
            if isinstance(entries, list):
                choice.entries.setdefault(field, []).extend(entries)
        choice.add(text, entry.get("token_ids") or (), values, reasoning)
        return choice

    async def _scores(self, answer: str, index: int, choice: ForeignChoice) -> bool:
        """Find the text's scores, if it is scored; its name is known once the text has begun."""
        if choice.scores is None:
            await self._feed.until(lambda: self._name(answer, index) is not None, certain=True)
            if (name := self._name(answer, index)) is not None:
                choice.scores, choice.distances = self._scored.texts[name], self._scored.distances.get(name)
        return choice.scores is not None

    def _name(self, answer: str, index: int) -> str | None:
        """Find the text's id of vLLM: place among n, id of the answer, place of the prompt."""
        prompt, child = divmod(index, self._per_prompt)
        before = f"{child}_" if self._per_prompt > 1 else ""
        place = "" if self._chat else f"-{prompt}"
        form = re.compile(f"{before}{re.escape(answer)}{place}(-[0-9a-f]{{8}})?")
        return next((name for name in self._scored.texts if form.fullmatch(name)), None)

    async def _finished(self, answer: str, index: int, choice: ForeignChoice) -> dict[str, Any] | None:
        if self._forced:
            return choice.not_scored(FORCED)
        if (count := choice.count_tokens()) is None or not await self._scores(answer, index, choice):
            return None
        scores, name = choice.scores, self._name(answer, index)
        assert scores is not None and name is not None
        await self._feed.until(lambda: len(scores) >= count or name in self._scored.ended)
        if count and len(scores) == count - 1:
            await self._feed.close(self._scored, name, choice.prompt, choice.ids[:count])

        await self._aside(partial(choice.look, count, over=True))
        return await self._aside(choice.whole, count)

    def _without(self, body: dict[str, Any], null: bool = False) -> dict[str, Any]:
        """Round our numbers, and remove fields that nobody asked for; in a whole answer they become null."""
        for choice in body.get("choices", ()):
            if "hallucination" in choice:
                choice["hallucination"] = rounded(choice["hallucination"])
        for part in (body, *body.get("choices", ())):
            for name in part.keys() & self._unasked:
                if null:
                    part[name] = None
                else:
                    del part[name]
        return body
