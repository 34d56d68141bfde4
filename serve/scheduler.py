"""The thread that writes: every pass of the model, and the scores of what it reads, happen on it.

Requests come from other threads as :class:`ScoredText`, are written together in one
:class:`probers.engine.continuous.ContinuousBatch`, and are read by their makers while they grow: lists are
only added to, and a text tells when there is more of it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from probers.capture.hidden_states import broken_state
from probers.capture.pooling import PER_TOKEN, all_finite, pool_tokens, token_vectors
from probers.engine.continuous import ContinuousBatch, LiveText
from probers.engine.kv_cache import BlockCache
from probers.engine.stopping import Stops
from probers.online.scores import GrowingScores
from probers.types import Feature, Generation, Needs, RunError, first_line

from .metrics import Metrics

if TYPE_CHECKING:
    from probers.bank.bank import ProbeBank
    from probers.engine.decode import Request
    from probers.engine.language_model import Sampling
    from probers.engine.model import CausalLM

T = TypeVar("T")
_NOTHING = Needs()


class Busy(Exception):
    """As many texts wait as may; come back later."""


class ScoredText(LiveText):
    """A text while it is written, with the prober's scores of its tokens.

    Attributes:
        scores, p_wrong: one per token that was read, and as probabilities.
        distances: one per token that was read, from the prober's domain; None where it has none.
        vectors: what was read of each token, (heads, width), where it is to be kept.
        changed: told, on the scheduler's thread, that there is more of it, or that it is over.
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
        self.p_wrong: list[float] = []
        self.distances: list[float] | None = None
        self.vectors: list[Tensor] | None = [] if keep else None
        self.changed = changed

    def recorded(self, tokenizer: Any, needs: Needs = _NOTHING) -> Generation:
        """The text as a generation with the states that ``needs`` asks for, if any."""
        states: dict[Feature, np.ndarray] = {}
        if self.row.kept and self.vectors:
            stacked = torch.stack(self.vectors[: self.row.kept]).numpy()
            for each in needs.features:
                states[each] = stacked if each.pool in PER_TOKEN else pool_tokens(stacked, each.pool)
        return self.generation(tokenizer, needs, states)


class Scheduler:
    """Writes texts together, and runs what else needs the model between their steps.

    Attributes:
        asked: texts given and not over.

    Args:
        lm: the model; nothing else may run it.
        bank: scores every token; None scores none.
        metrics: told of what happens.
        rows: most texts that are written at once.
        most_waiting: most texts that may wait for that.
        cache_megabytes: keys and values of earlier texts that are kept.
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
        self._make()  # refuses what cannot be served before anything begins
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    @property
    def feature(self) -> Feature | None:
        """What is read of every token."""
        return None if self.bank is None else self.bank.spec.feature

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what was begun to its end, and end."""
        self._ending = True
        self._inbox.put(None)
        self._thread.join()

    def submit(self, texts: Sequence[ScoredText]) -> None:
        """Have texts written, all or none.

        Raises:
            Busy: there are too many already.
        """
        with self._lock:
            if self._ending or self.asked + len(texts) > self._rows + self._most_waiting:
                raise Busy
            self.asked += len(texts)
        self._inbox.put(lambda batch: batch.add(texts))

    def call(self, work: Callable[[], T]) -> T:
        """What ``work`` gives, run on the scheduler's thread between two steps; all texts wait for it."""
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
            except Exception as error:  # of the model or the machine, as memory that ran out: not of one text
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
        """Score the newest token of some texts; one whose state is no number is given up alone."""
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
        chances = self.bank.probability(np.array(scores)).tolist()
        for text, score, chance, own in zip(some, scores, chances, states, strict=True):
            assert isinstance(text, ScoredText)
            text.scores.append(score)
            text.p_wrong.append(chance)
            text.distances = self._running.distances(text)
            if text.vectors is not None:
                text.vectors.append(token_vectors(own, feature.pool).cpu())
