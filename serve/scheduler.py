"""The generating thread: all passes of the model and all scores run on it.

Other threads submit :class:`ScoredText`; all are written together in one
:class:`probers.engine.continuous.ContinuousBatch` and read by their makers while they grow: lists are only
appended to, and ``changed`` is called when there is more. :class:`SharedLM` is the same model as the loop of
retrieval uses it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from probers.capture.hidden_states import broken_state
from probers.capture.pooling import PER_TOKEN, all_finite, pool_tokens, token_vectors
from probers.engine.continuous import ContinuousBatch, LiveText
from probers.engine.decode import Request
from probers.engine.kv_cache import BlockCache
from probers.engine.language_model import (
    NOTHING,
    Decoding,
    GenerationRequest,
    Sampling,
    ScoreRequest,
    Scoring,
)
from probers.engine.model import CausalLM
from probers.engine.tokens import Stops
from probers.online.scores import GrowingScores
from probers.types import AttentionRows, Feature, Generation, Needs, RunError, first_line

from .metrics import Metrics

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank

T = TypeVar("T")


class Busy(Exception):
    """Too many texts wait already."""


class Cancelled(Exception):
    """The client is gone."""


class ScoredText(LiveText):
    """A growing text with the prober's scores of its tokens.

    Attributes:
        scores: a score per token read.
        distances: a distance per token read from the prober's domain; None without a domain.
        vectors: with ``keep``, the states (heads, width) of each token read.
        changed: called on the scheduler's thread when the text has grown or is over.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Any,
        stops: Stops,
        sampling: Sampling | None = None,
        *,
        alternatives: int = 0,
        keep: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(request, tokenizer, stops, sampling, alternatives=alternatives)
        self.scores: list[float] = []
        self.distances: list[float] | None = None
        self.vectors: list[Tensor] | None = [] if keep else None
        self.changed = changed

    def recorded(self, tokenizer: Any, needs: Needs = NOTHING) -> Generation:
        """Make a generation of the text, with the states that ``needs`` asks for."""
        states: dict[Feature, np.ndarray] = {}
        if self.row.kept and self.vectors:
            stacked = torch.stack(self.vectors[: self.row.kept]).numpy()
            for each in needs.features:
                states[each] = stacked if each.pool in PER_TOKEN else pool_tokens(stacked, each.pool)
        return self.generation(tokenizer, needs, states)


class Scheduler:
    """Writes texts together, and runs other work with the model between two steps.

    Attributes:
        asked: number of texts submitted and not over.

    Args:
        lm: the model; nothing else may run it.
        bank: prober that scores every token, if any.
        metrics: counts to update.
        rows: largest number of texts written at once.
        most_waiting: largest number of texts that wait.
        cache_megabytes: size of the cache of earlier texts' keys and values.
    """

    def __init__(
        self,
        lm: CausalLM,
        bank: ProbeBank | None,
        metrics: Metrics,
        *,
        rows: int = 16,
        most_waiting: int = 64,
        cache_megabytes: float = 512,
    ) -> None:
        self.lm, self.bank = lm, bank
        self._metrics, self._rows, self._most_waiting = metrics, rows, most_waiting
        self._blocks = BlockCache(megabytes=cache_megabytes)
        self._running = None if bank is None else GrowingScores(bank)
        self._inbox: queue.SimpleQueue[Callable[[ContinuousBatch], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.asked = 0
        self._ending = False
        self._make()  # refuses a model that cannot be served before anything begins
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def feature(self) -> Feature | None:
        """The states read of every token; None without a prober."""
        return None if self.bank is None else self.bank.spec.feature

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the texts that were begun, then end the thread."""
        self._ending = True
        self._inbox.put(None)
        self._thread.join()

    def submit(self, texts: Sequence[ScoredText]) -> None:
        """Submit texts, all or none.

        Raises:
            Busy: too many wait already.
        """
        with self._lock:
            if self._ending or self.asked + len(texts) > self._rows + self._most_waiting:
                raise Busy
            self.asked += len(texts)
        self._inbox.put(lambda batch: batch.add(texts))

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the scheduler's thread between two steps; returns its result."""
        done: Future[T] = Future()

        def run(_: ContinuousBatch) -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self._inbox.put(run)
        return done.result()

    def _make(self) -> ContinuousBatch:
        return ContinuousBatch(self.lm, self.feature, self._score, rows=self._rows, blocks=self._blocks)

    def _run(self) -> None:
        batch = self._make()
        batch.__enter__()
        while True:
            idle = not batch.texts and not self._ending
            while idle or not self._inbox.empty():
                work = self._inbox.get()
                if work is not None:
                    work(batch)
                idle = False
            if not batch.texts:
                if self._ending:
                    break
                continue
            try:
                changed = batch.step()
            except Exception as error:  # of the model or the machine, such as memory, not of one text
                changed = batch.texts
                for text in changed:
                    text.error, text.left = RunError(first_line(error)), True
                batch.__exit__()
                batch = self._make()
                batch.__enter__()
            self._publish(batch, [text for text in changed if isinstance(text, ScoredText)])
        batch.__exit__()

    def _publish(self, batch: ContinuousBatch, changed: Sequence[ScoredText]) -> None:
        left = [text for text in changed if text.left]
        with self._lock:
            self.asked -= len(left)
        for text in left:
            if self._running is not None:
                self._running.forget(text)
            self._metrics.ended(text)
        self._metrics.step(batch.running, batch.waiting)
        for text in changed:
            text.changed()

    def _score(self, texts: Sequence[LiveText], states: Tensor) -> None:
        """Score the newest token of some texts; a text with NaN or infinite states ends in an error alone."""
        assert self.bank is not None and self._running is not None
        feature = self.bank.spec.feature
        for row, layer in (~all_finite(states)).nonzero().tolist():
            place = f"a token of {texts[row].request.prompt.name}"
            texts[row].error = texts[row].error or broken_state(feature, layer, place)
        good = [i for i, text in enumerate(texts) if text.error is None]
        if not good:
            return
        states = states if len(good) == len(texts) else states[good]
        some = [texts[i] for i in good]
        scores = self._running.add(some, states)
        for text, score, own in zip(some, scores, states, strict=True):
            assert isinstance(text, ScoredText)
            text.scores.append(score)
            text.distances = self._running.distances(text)
            if text.vectors is not None:
                text.vectors.append(token_vectors(own, feature.pool).cpu())


class SharedLM(CausalLM):
    """The scheduler's model for one question of the retrieval loop.

    Texts join the running batch where its prober reads all states they need. Passes with attention or other
    states run between its steps, while the other texts wait.

    Attributes:
        scheduler: the scheduler.
        last: the last text written; None where it was not written in the running batch.
        gone: event that has the next call end in :class:`Cancelled`.

    Raises:
        Busy: by a call, when too many texts wait already.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        own = scheduler.lm
        # A prompt that is too long is always an error, because the client needs an answer.
        super().__init__(own.model, own.tokenizer, use_cache=own.decoder.use_cache)
        self.__dict__["spec"] = own.spec  # cached; the name and revision that it was loaded by
        self.last: ScoredText | None = None
        self.gone = threading.Event()
        self.scheduler = scheduler

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Generate as :meth:`LanguageModel.generate_each`, with the server's own cache of prefixes."""
        self.last = None
        if not shares(self.scheduler.feature, how.needs):
            alone = replace(how, prefix="", cache=None, draft=0)
            yield from self._call(lambda: list(self.scheduler.lm.generate_each(requests, alone, known=known)))
            return
        limits = [asked.max_new_tokens for asked in requests]
        fitting = self._fit(self._encode(requests), limits, "max_new_tokens={}")
        changed = threading.Event()
        texts = [
            ScoredText(
                Request(prompt, limit), self.tokenizer, self.stops(how.stop),
                keep=bool(how.needs.features), changed=changed.set,
            )
            for prompt, limit in zip(fitting, limits, strict=True)
        ]  # fmt: skip
        self.scheduler.submit(texts)
        self._wait(texts, changed)
        for text in texts:
            if text.error is not None:
                raise text.error
        self.last = texts[-1]
        yield {i: text.recorded(self.tokenizer, how.needs) for i, text in enumerate(texts)}

    def score_each(
        self, requests: Sequence[ScoreRequest], how: Scoring, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """Score as :meth:`LanguageModel.score_each`, between two steps."""
        yield from self._call(lambda: list(self.scheduler.lm.score_each(requests, how, known=known)))

    def _attend(self, sequences: Sequence[Sequence[int]], progress: str | None) -> list[AttentionRows]:
        return self._call(lambda: self.scheduler.lm._attend(sequences, progress))

    def _call(self, work: Callable[[], T]) -> T:
        if self.gone.is_set():
            raise Cancelled
        return self.scheduler.call(work)

    def _wait(self, texts: Sequence[ScoredText], changed: threading.Event) -> None:
        while not all(text.over for text in texts):
            changed.wait()
            changed.clear()
            if self.gone.is_set():
                for text in texts:
                    text.cancelled = True
                raise Cancelled


def shares(feature: Feature | None, needs: Needs) -> bool:
    """Test that a batch that reads ``feature`` records all of ``needs``."""
    return not needs.attention and not needs.top and needs.features in ((), (feature,))
