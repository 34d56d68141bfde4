"""Methods on the same questions meet the same prompts: what was generated once is kept for the next."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from probers.types import Generation, Needs, Question

from ..loop import RAG
from ..traces import Answer, Listener

if TYPE_CHECKING:
    from probers.engine.model import CausalLM

_NOTHING = Needs()
_Key = tuple[str, int, tuple[str, ...]]


class _Kept(NamedTuple):
    generation: Generation
    seconds: float


class Remembering:
    """A model that generates a continuation once and gives it again when it is asked for again.

    Greedy generation depends on the prompt, the token limit and the stop strings alone, and
    those are the key; a kept generation serves whoever needs no more of it than was recorded,
    and what was not asked for is taken out of it. Stops that are functions and drawn tokens go
    to the model as they are. Everything else is the model's own.

    Kept is what comes first until memory is full, and nothing is thrown out for it: the methods
    of a comparison go through the questions in one order, and the oldest are due again next.

    Args:
        lm: the model.
        megabytes: of generations to keep at most.

    Attributes:
        also: recorded with every generation besides what was asked for, where one pass can.
        seconds: what the generations that were given again would have taken.
    """

    def __init__(self, lm: CausalLM, *, megabytes: float = 1024) -> None:
        self.also = _NOTHING
        self.seconds = 0.0
        self._lm = lm
        self._room = megabytes * 1e6
        self._kept: dict[_Key, list[_Kept]] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "_lm":  # not there yet: a copy being made
            raise AttributeError(name)
        return getattr(self._lm, name)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_new_tokens: int | Sequence[int],
        needs: Needs = _NOTHING,
        stop: Sequence[str | Callable[[str], bool]] = (),
        names: Sequence[str] | None = None,
        **more: Any,
    ) -> list[Generation]:
        """As :meth:`probers.engine.model.CausalLM.generate`."""
        strings = tuple(s for s in stop if isinstance(s, str))
        if len(strings) < len(stop) or more.get("sampling") is not None:
            return self._lm.generate(
                prompts, max_new_tokens=max_new_tokens, needs=needs, stop=stop, names=names, **more
            )
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
        keys = [(prompt, limit, strings) for prompt, limit in zip(prompts, limits, strict=True)]
        kept = {key: self._find(key, needs) for key in keys}
        found = {key: entry for key, entry in kept.items() if entry is not None}
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        missing = sorted(i for key, i in first.items() if key not in found)
        if missing:
            started = time.perf_counter()
            made = self._lm.generate(
                [prompts[i] for i in missing], max_new_tokens=[limits[i] for i in missing], stop=stop,
                needs=_union(needs, self.also), names=names and [names[i] for i in missing], **more,
            )  # fmt: skip
            each = (time.perf_counter() - started) / len(missing)
            for i, generation in zip(missing, made, strict=True):
                found[keys[i]] = _Kept(generation, each)
                self._keep(keys[i], found[keys[i]])
        new = set(missing)
        self.seconds += sum(found[key].seconds for i, key in enumerate(keys) if i not in new)
        return [narrowed(found[key].generation, needs) for key in keys]

    def _find(self, key: _Key, needs: Needs) -> _Kept | None:
        return next((k for k in self._kept.get(key, ()) if _covers(k.generation.needs, needs)), None)

    def _keep(self, key: _Key, kept: _Kept) -> None:
        size = _bytes(kept.generation)
        if size <= self._room:
            self._room -= size
            self._kept.setdefault(key, []).append(kept)


class SharedRAG(RAG):
    """The loop over a :class:`Remembering` model: seconds are what a method takes that runs alone."""

    def answer(self, questions: Sequence[Question], listener: Listener | None = None) -> list[Answer]:
        """As :meth:`RAG.answer`."""
        before = _given_again(self.lm)
        answers = super().answer(questions, listener)
        for answer in answers:
            answer.counters.seconds += (_given_again(self.lm) - before) / len(answers)
        return answers


def narrowed(generation: Generation, needs: Needs) -> Generation:
    """The generation as it is recorded for ``needs``, which its own must cover."""
    if generation.needs == needs:
        return generation
    states = None
    if needs.layers and generation.states is not None:
        place = {layer: i for i, layer in enumerate(generation.needs.layers)}
        axis = 1 if needs.pool in ("tokens", "predicting", "mind_tokens") else 0
        states = generation.states
        if needs.layers != generation.needs.layers:
            states = states.take([place[layer] for layer in needs.layers], axis=axis)
    attention = generation.attention if needs.attention else None
    return replace(generation, needs=needs, states=states, attention=attention)


def _covers(has: Needs, needs: Needs) -> bool:
    """Whether all that is needed was recorded."""
    if needs.layers and not (
        (has.site, has.pool) == (needs.site, needs.pool) and set(needs.layers) <= set(has.layers)
    ):
        return False
    return not needs.attention or (has.attention and has.attention_layer == needs.attention_layer)


def _union(needs: Needs, also: Needs) -> Needs:
    """Both where one pass can record both, else what is needed."""
    if needs.of_mind or also.of_mind:  # such states belong to no layer that could be added
        return needs
    try:
        return needs.union(also)
    except ValueError:
        return needs


def _bytes(generation: Generation) -> int:
    """Memory that a generation takes, about."""
    arrays = [generation.logprobs, generation.entropies, generation.states]
    if generation.attention is not None:
        arrays += [generation.attention.rows, generation.attention.column_max]
    tokens = len(generation.prompt_ids) + len(generation.token_ids)
    texts = sys.getsizeof(generation.prompt) + sys.getsizeof(generation.text)
    # A tuple of two numbers and its place for the offsets, a number and its place for the id.
    return texts + 150 * tokens + sum(a.nbytes for a in arrays if a is not None)


def _given_again(lm: Any) -> float:
    return float(getattr(lm, "seconds", 0.0))
