"""Methods on the same questions meet the same prompts: what was generated once is kept for the next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probers.engine.stopping import SentenceEnd, Stop
from probers.types import Feature, Generation, Needs, Question

from ..loop import RAG, Ended
from ..traces import Answer, Listener
from .generation_cache import GenerationCache

_NOTHING = Needs()


@dataclass
class SharedRAG(RAG):
    """The loop, which takes from a cache what another loop over the same model has generated before.

    Its answers' seconds are what they would take without.

    Attributes:
        cache: shared by the loops.
        also: recorded besides what trigger and query need, for the loops that come later.
    """

    cache: GenerationCache = field(default_factory=GenerationCache)
    also: Needs = _NOTHING
    _saved: float = field(default=0.0, init=False, repr=False)  # seconds

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int | Sequence[int],
        needs: Needs = _NOTHING,
        stop: Sequence[Stop] = (),
        names: Sequence[str] | None = None,
        **more: Any,
    ) -> list[Generation]:
        """As :meth:`RAG.generate`. Stops that are functions cannot be compared, and share nothing."""
        ends = tuple(s for s in stop if isinstance(s, (str, SentenceEnd)))
        if len(ends) < len(stop):
            return super().generate(
                prompts, max_new_tokens=max_new_tokens, needs=needs, stop=stop, names=names, **more
            )
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
        keys = [(prompt, limit, ends) for prompt, limit in zip(prompts, limits, strict=True)]
        found = {key: kept for key in keys if (kept := self.cache.find(key, needs)) is not None}
        first = {key: i for i, key in reversed(list(enumerate(keys))) if key not in found}
        missing = sorted(first.values())
        if missing:
            # MIND's states belong to no layer that could be added.
            of_mind = any(feature.of_mind for feature in (*needs.features, *self.also.features))
            wanted = needs if of_mind else joined(needs, self.also)
            started = time.perf_counter()
            made = super().generate(
                [prompts[i] for i in missing], max_new_tokens=[limits[i] for i in missing], stop=stop,
                needs=wanted, names=names and [names[i] for i in missing], **more,
            )  # fmt: skip
            seconds = (time.perf_counter() - started) / len(missing)
            for i, generation in zip(missing, made, strict=True):
                found[keys[i]] = generation, seconds
                self.cache.keep(keys[i], generation, seconds)
        self._saved += sum(found[key][1] for i, key in enumerate(keys) if first.get(key) != i)
        return [narrowed(found[key][0], needs) for key in keys]

    def answer(
        self,
        questions: Sequence[Question],
        listener: Listener | None = None,
        *,
        ended: Ended | None = None,
    ) -> list[Answer]:
        """As :meth:`RAG.answer`."""
        before = self._saved
        answers = super().answer(questions, listener, ended=ended)
        for answer in answers:
            answer.counters.seconds += (self._saved - before) / len(answers)
        self.cache.save()  # before the answers are written: there is never one without what it came of
        return answers


def narrowed(generation: Generation, needs: Needs) -> Generation:
    """The generation as it is recorded for ``needs``, which its own must cover."""
    if generation.needs == needs:
        return generation
    states = {feature: _narrowed(generation, feature) for feature in needs.features if generation.states}
    attention = generation.attention if needs.attention else None
    top = generation.top if needs.top else None
    return replace(generation, needs=needs, states=states, attention=attention, top=top)


def _narrowed(generation: Generation, feature: Feature) -> np.ndarray:
    """The states of a feature, from one of its site and pool that has at least its layers."""
    if feature in generation.states:
        return generation.states[feature]
    alike = (
        (f.layers, states)
        for f, states in generation.states.items()
        if (f.site, f.pool) == (feature.site, feature.pool)
    )
    layers, states = next((k, states) for k, states in alike if {*feature.layers} <= {*k})
    place = {layer: i for i, layer in enumerate(layers)}
    return states.take([place[layer] for layer in feature.layers], axis=-2)


def joined(needs: Needs, also: Needs) -> Needs:
    """Both where one pass can record both, else what is needed."""
    try:
        return needs.union(also)
    except ValueError:
        return needs
