"""A model as the loop of retrieval uses it, whose passes happen on a server's thread, beside other texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from probers.engine.decode import Request, Sampling
from probers.engine.kv_cache import PrefixCache
from probers.engine.model import NOTHING, CausalLM
from probers.engine.stopping import Stop
from probers.engine.tokens import encode_prompts
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
        super().__init__(own.model, own.tokenizer, use_cache=own.use_cache)
        self.__dict__["spec"] = own.spec  # cached; the name and revision that it was loaded by
        self.last: ScoredText | None = None
        self.gone = threading.Event()
        self.scheduler = scheduler

    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int | Sequence[int],
        needs: Needs = NOTHING,
        stop: Sequence[Stop] = (),
        sampling: Sampling | None = None,
        prefix: str = "",
        names: Sequence[str] | None = None,
        cache: PrefixCache | None = None,
        draft: int = 0,
        known: Container[int] = (),
    ) -> Iterator[dict[int, Generation]]:
        """As :meth:`CausalLM.generate_each`; prefixes are found by the server's own cache."""
        own = self.scheduler.lm
        self.last = None
        if not shares(self.scheduler.feature, needs):
            asked = partial(own.generate, prompts, needs=needs, stop=stop, sampling=sampling, names=names)
            yield self._call(lambda: dict(enumerate(asked(max_new_tokens=max_new_tokens))))
            return
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else list(max_new_tokens)
        encoded = encode_prompts(self.tokenizer, prompts, names)
        fitting = self._fit(encoded, limits, [f"max_new_tokens={n}" for n in limits])
        changed = threading.Event()
        texts = [
            ScoredText(
                Request(prompt, limit), self.tokenizer, self.stops(stop),
                keep=bool(needs.features), changed=changed.set,
            )
            for prompt, limit in zip(fitting, limits, strict=True)
        ]  # fmt: skip
        self.scheduler.submit(texts)
        self._wait(texts, changed)
        for text in texts:
            if text.error is not None:
                raise text.error
        self.last = texts[-1]
        yield {i: text.recorded(self.tokenizer, needs) for i, text in enumerate(texts)}

    def score(self, *args: Any, **options: Any) -> list[Generation]:
        """As :meth:`CausalLM.score`, between two steps."""
        return self._call(lambda: self.scheduler.lm.score(*args, **options))

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
    return not needs.attention and not needs.top and needs.features in (NOTHING.features, (feature,))
