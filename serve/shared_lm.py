"""A model as the loop of retrieval uses it, whose passes happen on a server's thread, beside other texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from probers.engine.decode import Request
from probers.engine.language_model import Decoding, GenerationRequest, ScoreRequest, Scoring
from probers.engine.model import CausalLM
from probers.types import AttentionRows, Feature, Generation, Needs

from .scheduler import Scheduler, ScoredText

T = TypeVar("T")


class Cancelled(Exception):
    """Whoever asked has gone."""


class SharedLM(CausalLM):
    """The scheduler's model for one question.

    What is written without attention goes into the running batch; passes that read attention or other
    states than the server's prober are run between its steps, and the other texts wait for them.

    Attributes:
        scheduler: as given.
        last: the text that was written last; None where it was not written in the running batch.
        gone: set by anyone to have the next call end in :class:`Cancelled`.

    Raises:
        Busy: on a call, where too many texts wait already.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        own = scheduler.lm
        # A prompt that is too long is an error whatever the server was told: it is answered.
        super().__init__(own.model, own.tokenizer, use_cache=own.decoder.use_cache)
        self.__dict__["spec"] = own.spec  # cached; the name and revision that it was loaded by
        self.last: ScoredText | None = None
        self.gone = threading.Event()
        self.scheduler = scheduler

    def generate_each(
        self, requests: Sequence[GenerationRequest], how: Decoding, *, known: Container[int] = ()
    ) -> Iterator[dict[int, Generation]]:
        """As :meth:`LanguageModel.generate_each`; the server's cache finds known beginnings of prompts."""
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
        """As :meth:`LanguageModel.score_each`, between two steps."""
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
    """Whether ``needs`` can be had from a batch that reads ``feature``."""
    return not needs.attention and not needs.top and needs.features in ((), (feature,))
