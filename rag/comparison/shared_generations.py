"""Generations shared by the methods of a comparison, which meet the same prompts."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np

from probers.model.language_model import Sampling, SentenceEnd, Stop
from probers.types import EndToken, Feature, Generation, Needs

from ..loop import RAG, Asked, Ended
from ..traces import Answer, Listener

_NOTHING = Needs()
#: Everything that a text depends on: prompt, token limit, stops, and for a drawn text the settings and how
#: many were drawn before it.
Key = tuple[str, int, tuple[str | EndToken | SentenceEnd, ...], Sampling | None, int]
Timed = tuple[Generation, float]


class GenerationCache:
    """Generations of one model in memory, keyed by everything that they depend on.

    The first generations stay until memory is full, and none is evicted for later ones: all methods of a
    comparison go through the questions in one order and need the oldest again next.

    A resumed comparison begins with an empty cache. Since batch composition shows in the last digits of
    scores, its scores may differ there from those of an uninterrupted run.
    """

    def __init__(self, *, megabytes: float = 1024) -> None:
        self._room = megabytes * 1e6
        self._timed: dict[Key, list[Timed]] = {}

    def find(self, key: Key, needs: Needs) -> Timed | None:
        """Find a generation with everything recorded that is needed, and the seconds it took."""
        known = self._timed.get(key, ())
        return next((timed for timed in known if _union(timed[0].needs, needs) == timed[0].needs), None)

    def keep(self, key: Key, generation: Generation, seconds: float) -> None:
        """Keep a generation, if there is room."""
        size = _bytes(generation)
        if size <= self._room:
            self._room -= size
            self._timed.setdefault(key, []).append((generation, seconds))


def _bytes(generation: Generation) -> int:
    """Estimate the memory of a generation, in bytes."""
    arrays = [generation.logprobs, generation.entropies, generation.top, *generation.states.values()]
    if generation.attention is not None:
        arrays += [generation.attention.rows, generation.attention.column_max]
    tokens = len(generation.prompt_ids) + len(generation.token_ids)
    texts = sys.getsizeof(generation.prompt) + sys.getsizeof(generation.text)
    # For each token: a tuple of two numbers and its place for the offsets, a number and its place for the id.
    return texts + 150 * tokens + sum(a.nbytes for a in arrays if a is not None)


@dataclass
class SharedRAG(RAG):
    """Loop that reuses the generations of other loops over the same model and cache.

    The seconds of its answers are those without the cache. ``also`` is recorded besides the needs of trigger
    and query, for later loops.
    """

    cache: GenerationCache = field(default_factory=GenerationCache)
    also: Needs = _NOTHING
    _saved: float = field(default=0.0, init=False, repr=False)  # seconds

    def generate(
        self, prompts: Sequence[str], *, max_new_tokens: int | Sequence[int], needs: Needs = _NOTHING,
        stop: Sequence[Stop] = (), names: Sequence[str] | None = None, sampling: Sampling | None = None,
        **more: Any,
    ) -> list[Generation]:  # fmt: skip
        """Generate like :meth:`RAG.generate`; stops that are functions cannot be compared, and share nothing.

        If one of the texts drawn for a prompt is missing, all of them are drawn again.
        """
        ends = tuple(s for s in stop if not callable(s))
        if len(ends) < len(stop):
            return super().generate(
                prompts, max_new_tokens=max_new_tokens, needs=needs, stop=stop, names=names,
                sampling=sampling, **more,
            )  # fmt: skip
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
        drawn: defaultdict[str, count[int]] = defaultdict(count)
        keys: list[Key] = [
            (prompt, limit, ends, sampling, next(drawn[prompt]) if sampling else 0)
            for prompt, limit in zip(prompts, limits, strict=True)
        ]
        known = {key: timed for key in keys if (timed := self.cache.find(key, needs)) is not None}
        if sampling is not None:
            torn = {key[0] for key in keys if key not in known}
            known = {key: timed for key, timed in known.items() if key[0] not in torn}
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in known}
        missing = sorted(first.values())
        if missing:
            # MIND's states belong to no layer that could be added.
            of_mind = any(feature.of_mind for feature in (*needs.features, *self.also.features))
            wanted = needs if of_mind or sampling else joined(needs, self.also)
            started = time.perf_counter()
            generations = super().generate(
                [prompts[i] for i in missing], max_new_tokens=[limits[i] for i in missing], stop=stop,
                needs=wanted, names=names and [names[i] for i in missing], sampling=sampling, **more,
            )  # fmt: skip
            seconds = (time.perf_counter() - started) / len(missing)
            for i, generation in zip(missing, generations, strict=True):
                known[keys[i]] = generation, seconds
                self.cache.keep(keys[i], generation, seconds)
        self._saved += sum(known[key][1] for i, key in enumerate(keys) if first.get(key) != i)
        return [narrowed(known[key][0], needs) for key in keys]

    def answer(
        self, questions: Asked, listener: Listener | None = None, *, ended: Ended | None = None
    ) -> list[Answer]:
        """Answer like :meth:`RAG.answer`, with the seconds that it takes without the cache."""
        before = self._saved
        answers = super().answer(questions, listener, ended=ended)
        for answer in answers:
            answer.counters.seconds += (self._saved - before) / len(answers)
        return answers


def narrowed(generation: Generation, needs: Needs) -> Generation:
    """Reduce a generation to ``needs``, which its own must cover."""
    if generation.needs == needs:
        return generation
    states = {feature: _narrowed(generation, feature) for feature in needs.features if generation.states}
    attention, top = generation.attention if needs.attention else None, generation.top if needs.top else None
    return replace(generation, needs=needs, states=states, attention=attention, top=top)


def _narrowed(generation: Generation, feature: Feature) -> np.ndarray:
    """Select the states of a feature from one with the same site and pool and at least its layers."""
    if feature in generation.states:
        return generation.states[feature]
    wider = next(f for f in generation.states if f.kind == feature.kind and {*feature.layers} <= {*f.layers})
    return wider.take(generation.states[wider], feature.layers)


def joined(needs: Needs, also: Needs) -> Needs:
    """Join both needs if one pass can record them; else return ``needs`` alone."""
    return _union(needs, also) or needs


def _union(needs: Needs, also: Needs) -> Needs | None:
    try:
        return needs.union(also)
    except ValueError:
        return None
