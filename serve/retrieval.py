"""Retrieval on demand for requests: the loop of :mod:`probers.rag`, as a stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probers.cli.components import Component, choices
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.online.scores import text_needs, text_scores
from probers.prompts import PromptTemplate
from probers.rag.loop import RAG
from probers.rag.protocol import QueryFormulator, Trigger, as_trigger
from probers.types import Passage, ProbersError, Question, Retriever, Round, RunError, UserError

from .answers import Frame, finish_reason, sse, usage
from .protocol import ApiError, ChatRequest, Hallucination, Request
from .protocol import Retrieval as Wanted
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
        found = []
        for name in choices("trigger"):
            try:
                trigger = self._trigger(Wanted(trigger=name))
            except (UserError, RunError):
                continue
            if not trigger.reads_answer:
                found.append(name)
        return found

    async def answer(self, request: Request, frame: Frame, gone: Callable[[], Awaitable[bool]]) -> Answering:
        """Begin to answer the request's question (ApiError, UserError: an unfit trigger or query)."""
        _refuse(request)
        question, lm = Question("question", _question(request)), SharedLM(self.scheduler)
        asked, bank = request.hallucination or Hallucination(), self.scheduler.bank
        assess = None if bank is None else Assessor(bank, asked.threshold, asked.unit)
        rag = await asyncio.to_thread(self._loop, request, lm)
        return Answering(rag, lm, question, frame, gone, assess)

    def _trigger(self, wanted: Wanted) -> Trigger:
        options = {} if wanted.threshold is None else {"threshold": wanted.threshold}
        part = Component.of("trigger", wanted.trigger, **options)
        if getattr(part.kind, "reads_answer", False):
            told = (
                f"trigger={wanted.trigger} judges finished answers by further ones, and a server streams one"
            )
            raise UserError(f"{told}: choose another", "unsupported")
        if part.options.get("bank", 0) is not None:
            return as_trigger(part.make())
        if self.scheduler.bank is None:
            told = "this trigger needs a prober, but the server has none: choose another"
            raise UserError(told, "conflict")
        return as_trigger(part.make(bank=self.scheduler.bank))

    def _loop(self, request: Request, lm: SharedLM) -> RAG:
        wanted = request.retrieval
        assert wanted is not None
        query = self.query if wanted.query is None else Component.of("query", wanted.query).make()
        asked = {"k": wanted.k, "max_retrievals": wanted.max_retrievals, "max_new_tokens": request.most}
        options = {**self.options, **{name: value for name, value in asked.items() if value is not None}}
        return RAG(lm, self.retriever, self._trigger(wanted), query, prompt=self.prompt, draft=0, **options)


def _refuse(request: Request) -> None:
    """Refuse options that the loop cannot follow, as it writes one greedy answer."""
    chances = request.logprobs is not None and request.logprobs is not False
    asked = {
        "n": request.choices > 1, "stop": bool(request.stops), "logprobs": chances,
        "temperature": bool(request.temperature), "top_p": request.top_p not in (None, 1),
    }  # fmt: skip
    if isinstance(request, ChatRequest):
        asked |= {
            "tools": bool(request.tools) and request.tool_choice != "none",
            "reasoning_effort": request.reasoning_effort is not None,
            "chat_template_kwargs": bool(request.chat_template_kwargs),
        }
    for name, wanted in asked.items():
        if wanted:
            told = f"{name} does not go with retrieval, which writes one greedy answer: leave {name} out"
            raise ApiError(400, told, name)


def _question(request: Request) -> str:
    if isinstance(request, ChatRequest):
        asked = [message.text for message in request.messages if message.role == "user"][-1:]
    else:
        asked = [text for text in request.prompts if isinstance(text, str)]
    if len(asked) != 1 or not asked[0].strip():
        raise ApiError(400, "with retrieval the prompt must be one question in words", "prompt")
    return " ".join(asked[0].split())


class Answering:
    """Answer to one question: the loop runs on its own thread, and its steps become events."""

    def __init__(
        self, rag: RAG, lm: SharedLM, question: Question, frame: Frame, gone: Callable[[], Awaitable[bool]],
        assess: Assessor | None,
    ) -> None:  # fmt: skip
        self._assess = assess
        self._rag, self._lm, self._question, self._frame, self._gone = rag, lm, question, frame, gone
        self._tell: Callable[[str | dict[str, Any]], object]
        self._accepted = ""
        self._passages: Sequence[Passage] = ()

    async def chunks(self, *, with_usage: bool) -> AsyncIterator[bytes]:
        """Stream the response."""
        frame, used = self._frame, None
        for chunk in frame.opening(1):
            yield chunk
        try:
            async for each in self._told():
                if isinstance(each, str):
                    yield frame.chunk(frame.choice(0, each))
                elif each["type"] == "end":
                    more, used = {name: each[name] for name in ("hallucination", "retrieval")}, each["usage"]
                    yield frame.chunk(frame.choice(0, "", each["finish"], **more))
                else:
                    yield frame.chunk(frame.choice(0, "", retrieval=each))
        except ApiError as error:
            yield sse(error.body())
            return
        if with_usage and used is not None:
            yield frame.chunk(usage=used)
        yield sse("[DONE]")

    async def whole(self) -> dict[str, Any]:
        """Make the whole response."""
        text, events = "", list[dict[str, Any]]()
        async for each in self._told():
            if isinstance(each, str):
                text += each
            elif each["type"] == "end":
                more = {"hallucination": each["hallucination"]}
                more["retrieval"] = {**each["retrieval"], "events": events}
                choice = self._frame.choice(0, text, each["finish"], whole=True, **more)
                return self._frame.whole([choice], each["usage"])
            elif each["type"] != "draft" or "scores" in each:  # not for every word of a draft
                events.append(each)
        raise ApiError(500, "the loop ended without an answer")

    async def _told(self) -> AsyncIterator[str | dict[str, Any]]:
        """Relay text and events from the loop's thread; the last is an event of type "end"."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | dict[str, Any] | None]()
        self._tell = lambda what: loop.call_soon_threadsafe(queue.put_nowait, what)
        running = asyncio.ensure_future(asyncio.to_thread(self._run))
        running.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while True:
                try:
                    found = await asyncio.wait_for(queue.get(), 1)
                except TimeoutError:
                    if await self._gone():
                        return
                    continue
                if found is None:
                    break
                yield found
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
        asked, written = len(self._lm.tokenizer(prompt)["input_ids"]), answer.counters.tokens
        self._tell({
            "type": "end", "finish": finish_reason(self._lm.stop),
            "hallucination": self._assessed(prompt, answer.text),
            "retrieval": {"answer": answer.answer, "retrievals": answer.counters.retrievals},
            "usage": usage(asked, written),
        })  # fmt: skip

    def _assessed(self, prompt: str, text: str) -> dict[str, Any] | None:
        """Assess the whole answer behind the passages shown last."""
        bank = self._lm.scheduler.bank
        if bank is None or self._assess is None or not text.strip():
            return None
        try:
            (made,) = self._lm.score([prompt], [text], needs=text_needs(bank))
        except UserError:  # no tokens of the model read as this text, joined from several
            return None
        assert made.state is not None
        return self._assess(WrittenText.of(made, *text_scores(bank, made.state))).wire()

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
        """Describe the round's text with the records of its tokens."""
        text = self._lm.last
        event: dict[str, Any] = {"type": "draft", "text": done.text, "offsets": done.tokens}
        if text is None or text.row.kept != len(done.tokens):
            return event
        kept = text.row.kept
        event |= {"entropies": text.entropies[:kept], "logprobs": text.logprobs[:kept]}
        if self._assess is not None:
            prompt = text.request.prompt.text
            record = WrittenText(prompt, done.text, done.tokens, text.scores[:kept])
            made = self._assess(record).wire()
            event |= {"scores": made["token_scores"], "p_wrong": made["token_p_wrong"]}
            event |= {name: made[name] for name in ("score", "spans")}
        return event
