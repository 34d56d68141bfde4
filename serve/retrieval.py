"""Retrieval on demand for requests: the loop of :mod:`probers.rag`, as a stream of events.

:func:`replay` tells where a trigger would have fired on a recorded text, by the same rules.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

import anyio
import numpy as np
from pydantic import BaseModel

from probers.cli.components import Component, choices
from probers.model.tokens import encode_prompts
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.response import ScoredSpan
from probers.prober.token_scores import text_needs, text_scores
from probers.prompts import PromptTemplate
from probers.rag.build import for_engine
from probers.rag.completions import ServedGeneration
from probers.rag.loop import RAG
from probers.rag.protocol import QueryFormulator, State, Trigger, as_trigger
from probers.rag.triggers.uncertainty import sentences
from probers.types import Decision, Passage, ProbersError, Question, Retriever, Round, RunError, UserError
from probers.words import tokens_of

from .answers import Frame, sse, usage
from .http import ApiError
from .protocol import ChatRequest, Hallucination, Request, Retrieval
from .scheduler import Cancelled, Scheduler, SharedLM


@dataclass(frozen=True)
class Retrieving:
    """Endpoint of requests that the loop answers.

    ``options`` are defaults of ``k``, ``max_new_tokens``, ``max_retrievals`` and ``answer_tokens``, ``query``
    is the default formulation.
    """

    scheduler: Scheduler
    retriever: Retriever
    prompt: PromptTemplate
    options: Mapping[str, int]
    query: QueryFormulator

    @property
    def triggers(self) -> list[str]:
        """List the triggers that this server can run."""
        names = []
        for name in choices("trigger"):
            with suppress(UserError, RunError):
                if not self._trigger(Retrieval(trigger=name)).reads_answer:
                    names.append(name)
        return names

    async def answer(self, request: Request, frame: Frame, gone: Callable[[], Awaitable[bool]]) -> Answering:
        """Begin to answer the request's question (ApiError, UserError: an unfit trigger or query)."""
        _refuse(request)
        question, lm = Question("question", _question(request)), SharedLM(self.scheduler)
        scoring, bank = request.hallucination or Hallucination(), self.scheduler.bank
        assess = None if bank is None else Assessor(bank, scoring.threshold, scoring.unit)
        rag = await asyncio.to_thread(self._loop, request, lm)
        return Answering(rag, lm, question, frame, gone, assess)

    def _trigger(self, wanted: Retrieval) -> Trigger:
        options = {} if wanted.threshold is None else {"threshold": wanted.threshold}
        part = Component.of("trigger", wanted.trigger, **options)
        if getattr(part.kind, "reads_answer", False):
            why = "judges finished answers by further ones, and a server streams one: choose another"
            raise UserError(f"trigger={wanted.trigger} {why}", "unsupported")
        if part.options.get("bank", 0) is not None:
            return as_trigger(part.make())
        if self.scheduler.bank is None:
            raise UserError("the trigger needs a prober, but the server has none: choose another", "conflict")
        return as_trigger(part.make(bank=self.scheduler.bank))

    def _loop(self, request: Request, lm: SharedLM) -> RAG:
        wanted = request.retrieval
        assert wanted is not None
        with _named("retrieval.query"):
            query = self.query if wanted.query is None else Component.of("query", wanted.query).make()
        with _named("retrieval.trigger"):
            trigger = self._trigger(wanted)
        given = {"k": wanted.k, "max_retrievals": wanted.max_retrievals, "max_new_tokens": request.most}
        options = {**self.options, **{name: value for name, value in given.items() if value is not None}}
        return RAG(lm, self.retriever, trigger, query, prompt=self.prompt, draft=0, **options)


@contextmanager
def _named(param: str) -> Iterator[None]:
    """Name the field of the request that an error is about."""
    try:
        yield
    except UserError as error:
        raise ApiError(400, f"{param}: {error}", param) from error


def _refuse(request: Request) -> None:
    """Refuse options that the loop cannot follow, as it writes one greedy answer."""
    unsupported = {
        "n": request.choices > 1, "stop": bool(request.stops), "logprobs": request.alternatives is not None,
        "temperature": bool(request.temperature), "top_p": request.top_p not in (None, 1),
    }  # fmt: skip
    if isinstance(request, ChatRequest):
        unsupported |= {
            "tools": bool(request.tools) and request.tool_choice != "none",
            "reasoning_effort": request.reasoning_effort is not None,
            "chat_template_kwargs": bool(request.chat_template_kwargs),
        }
    for name, wanted in unsupported.items():
        if wanted:
            message = f"{name} does not go with retrieval, which writes one greedy answer: leave {name} out"
            raise ApiError(400, message, name)


def _question(request: Request) -> str:
    if isinstance(request, ChatRequest):
        questions = [message.text for message in request.messages if message.role == "user"][-1:]
    else:
        questions = [text for text in request.prompts if isinstance(text, str)]
    if len(questions) != 1 or not questions[0].strip():
        raise ApiError(400, "with retrieval the prompt must be one question in words", request.asks)
    return " ".join(questions[0].split())


class Answering:
    """Answer to one question: the loop runs on its own thread, and its steps become events."""

    def __init__(
        self, rag: RAG, lm: SharedLM, question: Question, frame: Frame, gone: Callable[[], Awaitable[bool]],
        assess: Assessor | None,
    ) -> None:  # fmt: skip
        self._rag, self._lm, self._question, self._frame, self._gone = rag, lm, question, frame, gone
        self._assess = assess
        self._tell: Callable[[str | dict[str, Any]], object]
        self._accepted = ""
        self._passages: Sequence[Passage] = ()

    async def chunks(self, *, with_usage: bool) -> AsyncIterator[bytes]:
        """Stream the response."""
        frame, used = self._frame, None
        for chunk in frame.opening(1):
            yield chunk
        try:
            async for event in self._events():
                if isinstance(event, str):
                    yield frame.chunk(frame.choice(0, event))
                elif event["type"] == "end":
                    more = {name: event[name] for name in ("hallucination", "retrieval")}
                    used = event["usage"]
                    yield frame.chunks(frame.choice(0, "", event["finish"], **more))
                else:
                    yield frame.chunk(frame.choice(0, "", retrieval=event))
        except ApiError as error:
            yield sse(error.body())
            return
        if with_usage and used is not None:
            yield frame.chunk(usage=used)
        yield sse("[DONE]")

    async def whole(self) -> dict[str, Any]:
        """Make the whole response."""
        text, events = "", list[dict[str, Any]]()
        async for event in self._events():
            if isinstance(event, str):
                text += event
            elif event["type"] == "end":
                more = {"hallucination": event["hallucination"]}
                more["retrieval"] = {**event["retrieval"], "events": events}
                choice = self._frame.choice(0, text, event["finish"], whole=True, **more)
                return self._frame.whole([choice], event["usage"])
            elif event["type"] != "draft" or "scores" in event:  # not for every word of a draft
                events.append(event)
        raise ApiError(500, "the loop ended without an answer")

    async def _events(self) -> AsyncIterator[str | dict[str, Any]]:
        """Relay text and events from the loop's thread; the last is an event of type "end"."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | dict[str, Any] | None]()
        self._tell = lambda what: loop.call_soon_threadsafe(queue.put_nowait, what)
        running = asyncio.ensure_future(asyncio.to_thread(self._run))
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while True:
                with anyio.move_on_after(1) as waiting:
                    event = await queue.get()
                if waiting.cancelled_caught:
                    if await self._gone():
                        return
                    continue
                if event is None:
                    break
                yield event
            try:
                running.result()
            except ProbersError as error:
                raise ApiError.of(error) from None
        finally:
            self._lm.gone.set()
            running.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _run(self) -> None:
        answer = self._rag(self._question, self)
        self._accept(answer.text)  # includes inserted words
        prompt = self._rag.prompt.question(answer.question, [p.text for p in self._passages])
        (encoded,) = encode_prompts(self._lm.tokenizer, [prompt])
        prompt_tokens, written = len(encoded.ids), answer.counters.tokens
        self._tell({
            "type": "end", "finish": "length" if self._lm.stop == "length" else "stop",
            "hallucination": self._assessed(prompt, answer.text),
            "retrieval": {"answer": answer.answer, "retrievals": answer.counters.retrievals},
            "usage": usage(prompt_tokens, written),
        })  # fmt: skip

    def _assessed(self, prompt: str, text: str) -> dict[str, Any] | None:
        """Assess the whole answer behind the passages shown last."""
        bank = self._lm.scheduler.bank
        if bank is None or self._assess is None or not text.strip():
            return None
        try:
            (scored,) = self._lm.score([prompt], [text], needs=text_needs(bank))
        except UserError:  # no tokens of the model read as this text, joined from several
            return None
        assert scored.state is not None
        return self._assess(WrittenText.of(scored, *text_scores(bank, scored.state))).wire()

    def text(self, question: Question, text: str) -> None:
        """Send the growing text; called on the scheduler's thread."""
        self._tell({"type": "draft", "text": text})

    def round(self, question: Question, done: Round, passages: Sequence[Passage], left_out: int) -> None:
        """Send the events of a finished round."""
        if self._lm.gone.is_set():
            raise Cancelled
        if done.text:
            self._tell(self._draft(done))
        if (decision := done.decision) is not None:
            self._tell({
                "type": "judged", "trigger": self._rag.trigger.name, "score": decision.score,
                "threshold": decision.threshold, "fire": decision.fire, "position": decision.position,
                "token_scores": list(decision.token_scores),
            })  # fmt: skip
        if done.accepted:
            self._accept((self._accepted + done.accepted).lstrip())  # the answer's text begins without space
        if done.query is not None:
            if len(done.text) > len(done.accepted):
                self._tell({"type": "discarded", "text": done.text[len(done.accepted) :]})
            shown = [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in passages]
            self._tell({"type": "query", "query": done.query})
            self._tell({"type": "passages", "passages": shown, "left_out": left_out})
            self._passages = passages

    def _accept(self, text: str) -> None:
        if text.startswith(self._accepted) and len(text) > len(self._accepted):
            self._tell(text[len(self._accepted) :])
            self._accepted = text

    def _draft(self, done: Round) -> dict[str, Any]:
        text = self._lm.last
        event: dict[str, Any] = {"type": "draft", "text": done.text, "offsets": done.tokens}
        if text is None or (count := text.row.length) != len(done.tokens):
            return event
        event |= {"entropies": text.entropies[:count], "logprobs": text.logprobs[:count]}
        if self._assess is not None:
            prompt = text.request.prompt.text
            record = WrittenText(prompt, done.text, done.tokens, text.scores[:count])
            assessed = self._assess(record).wire()
            event |= {"scores": assessed["token_scores"], "p_wrong": assessed["token_p_wrong"]}
            event |= {name: assessed[name] for name in ("score", "spans")}
        return event


#: What a trigger needs of a response: the field, and its name in messages.
_NEEDS = {
    "probing": ("score", "prober's score of this text"), "entropy": ("entropies", "entropies of the tokens"),
    "flare": ("logprobs", "probabilities of the tokens"), "dtr": ("logprobs", "probabilities of the tokens"),
}  # fmt: skip


class Replay(BaseModel):
    """``POST /v1/replay``: a trigger with its options, and a text with what a response says of its tokens.

    ``score`` and ``spans`` are the prober's of the whole text. The first sentence of a ``fresh`` text was
    written from passages fetched right there, and is not judged.
    """

    trigger: Literal["probing", "entropy", "flare", "dtr", "fixed_sentence", "never"]
    options: dict[Literal["threshold", "scope", "reduction", "variant"], float | str | None] = {}
    text: str
    offsets: list[tuple[int, int]]
    p_wrong: list[float | None] = []
    logprobs: list[float | None] = []
    entropies: list[float | None] = []
    score: float | None = None
    spans: list[ScoredSpan] = []
    fresh: bool = False

    def generation(self) -> ServedGeneration:
        """Make the generation that the trigger judges (ApiError: the response lacks what it needs)."""
        if self.trigger in _NEEDS:
            field, name = _NEEDS[self.trigger]
            values, n = getattr(self, field), len(self.offsets)
            known = field in self.model_fields_set
            if not (known if field == "score" else len(values) == n and None not in values):
                raise ApiError(400, f"the response does not carry the {name}", field)
        logprobs, entropies = (
            np.array([math.nan if value is None else value for value in values], dtype=np.float32)
            for values in (self.logprobs, self.entropies)
        )
        ids, places = (-1,) * len(self.offsets), tuple(self.offsets)
        return ServedGeneration(
            "", (), (), ids, self.text, places, logprobs, entropies, "eos", score=self.score, threshold=0.0
        )


def replay(recorded: Replay) -> dict[str, Any]:
    """Decide on a recorded text.

    Returns:
        ``fire``, ``score`` (None: nothing that the prober judges), ``whole`` (the whole text is discarded),
        ``kept`` (characters that stay), ``tokens`` that fired, ``values`` of all tokens for display, and
        ``judged``, the parts with a score of their own.
    """
    written, probing = recorded.generation(), recorded.trigger == "probing"
    trigger = for_engine("recorded", Component.of("trigger", recorded.trigger, **recorded.options)).make()
    state = State(Question("text", "?"), None, None, (0, 0), fresh=recorded.fresh)  # type: ignore[arg-type]
    decision: Decision = trigger(written, state)
    values = np.array(decision.token_scores)
    judged = [asdict(span) for span in recorded.spans] if probing else []
    if recorded.trigger == "flare" or recorded.options.get("scope") == "sentence":
        reduce = np.max if {"max", "paper"} & set(trigger.record.values()) else np.mean
        parts = sentences(written)[1 if recorded.fresh else 0 :]
        scores = (float(reduce(values[list(part.tokens)])) for part in parts)
        places = zip(parts, scores, strict=True)
        judged = [{"start": part.start, "end": part.end, "score": score} for part, score in places]
    judged = [part | {"fires": part["score"] > decision.threshold} for part in judged]
    hits = [tokens_of(recorded.offsets, part["start"], part["end"]) for part in judged if part["fires"]]
    nothing = probing and recorded.score is None and bool(recorded.offsets)
    whole = decision.fire and decision.position is None
    remaining = recorded.text if decision.position is None else recorded.text[: decision.position].rstrip()
    return {
        "fire": decision.fire, "score": None if nothing else decision.score,
        "whole": whole, "kept": 0 if whole else len(remaining),
        "tokens": sorted({i for tokens in hits for i in tokens}) if probing else decision.tokens,
        "values": recorded.p_wrong if probing else decision.token_scores, "judged": judged,
    }  # fmt: skip
