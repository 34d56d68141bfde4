"""Answer of vLLM to one request, whole or streamed, to which the prober's field is added."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeAlias, TypeVar

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest

from probers.model.vllm import KEY

from ..answers import pieces, rounded, usage
from ..on_high import FINISH, OnHigh
from .choice import FORCED, ForeignChoice
from .feed import Scored, ScoreFeed

T = TypeVar("T")
Asked: TypeAlias = CompletionRequest | ChatCompletionRequest
_DATA = "data: "


def _event(chunk: dict[str, Any]) -> str:
    return f"{_DATA}{json.dumps(chunk, ensure_ascii=False)}\n\n"


class ScoredResponse:
    """Answer to one HTTP request, with the prober's field added; entities are found on ``thread``."""

    def __init__(
        self, feed: ScoreFeed, tokenizer: Any, thread: Executor, request: Asked, acting: OnHigh
    ) -> None:
        self._feed, self._tokenizer, self._thread, self._acting = feed, tokenizer, thread, acting
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
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

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
        message = entry.get("message") or entry.get("delta") or entry
        text = message.get("content" if self._chat else "text") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        self._prompt = body.get("prompt_token_ids") or self._prompt  # for a chat
        prompt = entry.get("prompt_token_ids") or self._prompt
        if entry["index"] not in self._choices:
            self._choices[entry["index"]] = ForeignChoice(self._acting, self._tokenizer, prompt)
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
