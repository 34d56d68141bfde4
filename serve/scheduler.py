"""Thread of generation, on which all passes of the model and all scores run.

Other threads submit :class:`.continuous.LiveText`. All are written together in one
:class:`.continuous.ContinuousBatch`. :class:`SharedLM` is the same model for the loop of retrieval.
"""

from __future__ import annotations

import heapq
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from torch import Tensor

from probers.model.causal_lm import CausalLM
from probers.model.decode import Request
from probers.model.kv_cache import BlockCache
from probers.model.language_model import Decoding, GenerationRequest, ScoreRequest, Scoring
from probers.model.pooling import token_vectors
from probers.prober.prober import Prober
from probers.prober.token_scores import GrowingScores, GrowingSentences, pools_sentences
from probers.types import AttentionRows, Feature, Generation, RunError, StopReason, first_line

from .continuous import ContinuousBatch, LiveText
from .http import ApiError

T = TypeVar("T")
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
log = logging.getLogger(__name__)


class Cancelled(Exception):
    """Error of a call whose client is gone."""


class Metrics:
    """Counts of one server for Prometheus, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kinds: Any = Counter, Gauge, Histogram
        counter, gauge, histogram = (partial(k, namespace="probers", registry=self.registry) for k in kinds)
        self.requests = counter("requests_total", "Requests by path and status", ("path", "status"))
        self.prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts")
        self.cached_tokens = counter("cached_tokens_total", "Tokens of prompts that were not read again")
        self.tokens = counter("generated_tokens_total", "Tokens written")
        self.texts = counter("texts_total", "Texts by how they ended", ("stop",))
        self.rows = gauge("running_texts", "Texts that are being written")
        self.queue = gauge("waiting_texts", "Texts whose prompts wait to be read")
        rows, shares = (1, 2, 4, 8, 16, 32, 64), tuple(i / 10 for i in range(1, 11))
        self.batch = histogram("batch_rows", "Texts running at a pass of the model", buckets=rows)
        self.scores = histogram("p_wrong", "P(wrong) of answers", buckets=shares)
        self.first = histogram("first_token_seconds", "From request to its first token", buckets=_SECONDS)
        self.latency = histogram("request_seconds", "From request to its end", ("path",), buckets=_SECONDS)

    def ended(self, text: LiveText) -> None:
        """Count a finished text."""
        how = "error" if text.error else "cancelled" if text.cancelled else text.row.stop
        self.texts.labels(how).inc()
        self.tokens.inc(len(text.row.ids))
        self.prompt_tokens.inc(len(text.request.prompt.ids))
        self.cached_tokens.inc(text.cached)


class Scheduler:
    """Writer of at most ``rows`` texts together, which runs other work with the model between two steps.

    Nothing else may run ``lm``. ``bank`` scores every token, and ``cache_megabytes`` hold keys and values of
    earlier texts. ``error`` is the reason why the thread died and nothing more can be written.
    """

    def __init__(
        self, lm: CausalLM, bank: Prober | None, *, rows: int, most_waiting: int, cache_megabytes: float
    ) -> None:
        self.lm, self.bank, self.metrics = lm, bank, Metrics()
        self._rows, self._most = rows, rows + most_waiting
        self._blocks = BlockCache(megabytes=cache_megabytes)
        self._running: GrowingScores | GrowingSentences | None = None
        if bank is not None:
            self._running = GrowingSentences(bank) if pools_sentences(bank) else GrowingScores(bank)
        self._inbox: queue.SimpleQueue[Callable[[ContinuousBatch], None] | None] = queue.SimpleQueue()
        self._lock, self._ending = threading.Lock(), False
        self._open: set[LiveText] = set()
        self._calls: set[Future[Any]] = set()
        self.error: RunError | None = None
        self._step = 0.0  # seconds of a step, a moving average
        self._make()  # refuses a model that cannot be served before anything begins
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def pending(self) -> int:
        """Number of submitted texts that are not finished."""
        return len(self._open)

    @property
    def feature(self) -> Feature | None:
        """States read of every token; None without a prober."""
        return None if self.bank is None else self.bank.spec.feature

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the texts that have begun, then end the thread."""
        self._ending = True
        self._inbox.put(None)
        self._thread.join()

    def submit(self, texts: Sequence[LiveText]) -> None:
        """Submit texts, all or none (ApiError: too many are waiting; RunError: the thread is dead)."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if len(texts) > self._most:
                most = f"this server takes {self._most} at a time: ask for fewer"
                raise ApiError(400, f"the request is for {len(texts)} texts, and {most}", "n")
            over = len(self._open) + len(texts) - self._most
            if self._ending or over > 0:
                retry = self._seconds_until(max(over, 1))
                message = f"too many texts are waiting: try again in {retry} seconds"
                raise ApiError(429, message, code="rate_limit_exceeded", retry=retry)
            self._open.update(texts)
        self._inbox.put(lambda batch: batch.add(texts))

    def _seconds_until(self, count: int) -> int:
        """Estimate the time until so many texts are over, if each is as long as it may be; at most a minute.

        OpenAI's clients wait no longer.
        """
        ends = [text.request.limit - len(text.row.ids) for text in self._open if text.row.ids]
        rows = [*ends, *[0] * (self._rows - len(ends))]
        heapq.heapify(rows)
        for text in self._open:
            if not text.row.ids:
                ends.append(rows[0] + text.request.limit)
                heapq.heapreplace(rows, ends[-1])
        steps = sorted(ends)[min(count, len(ends)) - 1] if ends else 0
        return max(1, min(60, math.ceil(steps * self._step)))

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the scheduler's thread between two steps (RunError: the thread is dead)."""
        done: Future[T] = Future()

        def run(_: ContinuousBatch) -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

        with self._lock:
            if self.error is not None:
                raise self.error
            self._calls.add(done)
        self._inbox.put(run)
        try:
            return done.result()
        finally:
            self._calls.discard(done)

    def _make(self) -> ContinuousBatch:
        return ContinuousBatch(self.lm, self.feature, self._score, rows=self._rows, blocks=self._blocks)

    def _run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            why = f"the thread that writes has died ({first_line(error)}): start the server again"
            log.exception("%s", why)
            with self._lock:
                self.error = RunError(why)
                texts, calls = list(self._open), list(self._calls)
                self._open.clear()
            for text in texts:
                text.error, text.left = self.error, True
                text.changed()
            for call in calls:
                if not call.done():
                    call.set_exception(self.error)

    def _write(self) -> None:
        with ExitStack() as hooks:
            batch = hooks.enter_context(self._make())
            while batch.texts or not self._ending or not self._inbox.empty():
                idle = not batch.texts
                while idle or not self._inbox.empty():
                    if (work := self._inbox.get()) is not None:
                        work(batch)
                    idle = False
                if not batch.texts:
                    continue
                begun = time.perf_counter()
                try:
                    changed = batch.step()
                except Exception as error:  # of the model or machine, such as memory, not of a text
                    changed = batch.texts
                    for text in changed:
                        text.error, text.left = RunError(first_line(error)), True
                    hooks.close()
                    batch = hooks.enter_context(self._make())
                seconds = time.perf_counter() - begun
                self._step += (seconds - self._step) * (0.05 if self._step else 1)
                self._publish(batch, changed)

    def _publish(self, batch: ContinuousBatch, changed: Sequence[LiveText]) -> None:
        left = [text for text in changed if text.left]
        with self._lock:
            self._open.difference_update(left)
        for text in left:
            if self._running is not None:
                self._running.forget(text)
            self.metrics.ended(text)
        self.metrics.rows.set(batch.running)
        self.metrics.queue.set(batch.waiting)
        if batch.running:
            self.metrics.batch.observe(batch.running)
        for text in changed:
            text.shown = min(text.ready, len(text.offsets))
            text.changed()

    def _score(self, texts: Sequence[LiveText], states: Tensor) -> None:
        """Score the newest token of some texts; a state that is not finite ends only its text in an error."""
        assert self.bank is not None and self._running is not None
        names, running = [text.request.prompt.name for text in texts], self._running
        if isinstance(running, GrowingSentences):
            scores = running.add_each(texts, states, [(text.text, text.ends) for text in texts], names)
        else:
            scores = running.add_each(texts, states, names)
        for text, score, state in zip(texts, scores, states, strict=True):
            if isinstance(score, RunError):
                text.error = score
                continue
            if isinstance(running, GrowingSentences):  # earlier tokens may belong to the present sentence
                text.scores[:] = running.scores(text)
            else:
                text.scores.append(score)
            text.distances = running.distances(text)
            if text.vectors is not None:
                # On the device until the text is finished; cloned, as it is a part of all texts' states.
                text.vectors.append(token_vectors(state, self.bank.spec.pool).clone())


class SharedLM(CausalLM):
    """Model of the scheduler for one question of the retrieval loop.

    Texts join the running batch if its prober reads all states they need. Passes with attention or other
    states run between its steps, while the other texts wait. A call is an ApiError if too many texts wait.

    Attributes:
        last: the last text written; None if it was not written in the running batch.
        stop: reason why the last text ended.
        gone: event that ends the next call in :class:`Cancelled`.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        # Not made again, as that would run the model to check it, through the hooks of the running batch too.
        vars(self).update(vars(scheduler.lm))
        self.on_too_long = "error"  # the client needs an answer
        self.last: LiveText | None = None
        self.stop: StopReason | None = None
        self.gone = threading.Event()
        self.scheduler = scheduler

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Generate like :meth:`LanguageModel.generate_each`, with the server's own cache of prefixes."""
        self.last = None
        needs, read = how.needs, self.scheduler.feature
        if needs.attention or needs.top or needs.features not in ((), (read,)):
            alone = replace(how, prefix="", cache=None, draft=0)
            batches = self._call(lambda: list(self.scheduler.lm.generate_each(requests, alone, known=known)))
            self.stop = next((text.stop for batch in batches for text in batch.values()), self.stop)
            yield from batches
            return
        limits = [request.max_new_tokens for request in requests]
        fitting = yield from self._fit(self._encode(requests), limits, "max_new_tokens={}", needs, known)
        changed, stops = threading.Event(), self.stops(how.stop)
        options: dict[str, Any] = {"keep": bool(needs.features), "changed": changed.set}
        pairs = zip(fitting, limits, strict=True)
        texts = [LiveText(Request(*pair), self.tokenizer, stops, **options) for pair in pairs]
        self.scheduler.submit(texts)
        while not all(text.over for text in texts):
            changed.wait()
            changed.clear()
            if self.gone.is_set():
                for text in texts:
                    text.cancelled = True
                raise Cancelled
        for text in texts:
            if text.error is not None:
                raise text.error
        self.last, self.stop = texts[-1], texts[-1].row.stop
        yield {i: text.generation(self.tokenizer, needs) for i, text in enumerate(texts)}

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        yield from self._call(lambda: list(self.scheduler.lm.score_each(requests, how, known=known)))

    def _attend(self, sequences: Sequence[Sequence[int]]) -> list[AttentionRows]:
        return self._call(lambda: self.scheduler.lm._attend(sequences))

    def _call(self, work: Callable[[], T]) -> T:
        if self.gone.is_set():
            raise Cancelled
        return self.scheduler.call(work)
