"""Responses of OpenAI-compatible servers as generations.

Servers return the likeliest tokens at each place; probers-serve (docs/serving.md) also returns the entropy
of each token, and its prober's scores of the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from pydantic import BaseModel, Field

from probers.engine.tokens import Stops
from probers.types import Generation, Needs, StopReason


@dataclass(frozen=True, slots=True)
class ServedGeneration(Generation):
    """A text written by a server: token ids are -1, and the prompt's tokens and states are missing.

    Attributes:
        score: of the whole text by the server's prober; None without one, or where the text was cut after
            it was scored.
        threshold: of that prober; fires above it.
        token_scores: (n,), one per token; () without a prober.
    """

    score: float | None = None
    threshold: float = math.nan
    token_scores: tuple[float, ...] = ()


class Alternative(BaseModel):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float | None


class ChatToken(Alternative):
    """A token in the form of chat responses, which llama.cpp uses for completions too."""

    top_logprobs: list[Alternative] = []


class Logprobs(BaseModel):
    """``logprobs`` of a choice, nats; null stands for minus infinity."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float | None] | None] | None = None
    text_offset: list[int] | None = None
    content: list[ChatToken] | None = None

    def flat(self) -> Logprobs:
        """The same in the form of completions."""
        if self.content is None:
            return self
        tops: list[dict[str, float | None] | None] = [
            {top.token: top.logprob for top in each.top_logprobs} for each in self.content
        ]
        return Logprobs(
            tokens=[each.token for each in self.content],
            token_logprobs=[each.logprob for each in self.content],
            top_logprobs=tops,
        )


class Hallucination(BaseModel):
    """The fields of ``hallucination`` that are read (docs/serving.md)."""

    score: float | None = None
    threshold: float
    token_scores: list[float | None] = []
    token_offsets: list[tuple[int, int]]
    token_entropies: list[float | None] | None = None

    @property
    def exact(self) -> list[float] | None:
        """Entropies of the tokens, nats; None where the server gives none."""
        told = [each for each in self.token_entropies or [] if each is not None]
        return told if len(told) == len(self.token_offsets) else None


class Choice(BaseModel):
    """One text of a response."""

    text: str
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    hallucination: Hallucination | None = None

    @property
    def tells(self) -> bool:
        """Whether it comes with log-probabilities and the likeliest tokens."""
        return self.logprobs is not None and self.logprobs.flat().top_logprobs is not None


class Completion(BaseModel):
    """A response of ``/v1/completions``."""

    choices: list[Choice] = Field(min_length=1)


class Listed(BaseModel):
    """A model of ``/v1/models``; ``prober`` describes the prober of a probers-serve."""

    id: str
    prober: dict[str, str | int | float | list[int] | None] | None = None


class Models(BaseModel):
    """A response of ``/v1/models``."""

    data: list[Listed]


def generation(prompt: str, choice: Choice, needs: Needs, stops: Stops) -> ServedGeneration:
    """Convert a choice to a generation that ends where ``stops`` say.

    Raises:
        ValueError: text and tokens do not belong together.
    """
    logprobs = (choice.logprobs or Logprobs()).flat()
    told = choice.hallucination
    spans = _spans(choice.text, logprobs) if told is None else told.token_offsets
    tops = logprobs.top_logprobs or [None] * len(spans)
    if not len(spans) == len(logprobs.token_logprobs) == len(tops):
        raise ValueError(f"{len(logprobs.token_logprobs)} log-probabilities of {len(spans)} tokens")
    kept, stopped = _end(choice.text, spans, stops)
    chances = [[math.exp(p) for p in (top or {}).values() if p is not None] for top in tops[:kept]]
    entropies = None if told is None else told.exact
    if entropies is None:
        entropies = [entropy_of_top(each) for each in chances]
    highest = [sorted(each, reverse=True)[:2] + [0.0] * (2 - len(each)) for each in chances]
    ended: StopReason = "length" if choice.finish_reason == "length" else "eos"
    scored = told is not None and kept == len(spans)
    return ServedGeneration(
        prompt, (), (), (-1,) * kept,
        choice.text[: spans[kept - 1][1]] if kept else "", tuple(spans[:kept]),
        np.array([-math.inf if p is None else p for p in logprobs.token_logprobs[:kept]], dtype=np.float32),
        np.array(entropies[:kept], dtype=np.float32), "stop" if stopped else ended, needs,
        top=np.array(highest, dtype=np.float32).reshape(kept, 2).T.copy() if needs.top else None,
        score=told.score if told is not None and scored else None,
        threshold=math.nan if told is None else told.threshold,
        token_scores=_numbers([] if told is None else told.token_scores[:kept]),
    )  # fmt: skip


def entropy_of_top(chances: Sequence[float]) -> float:
    """Entropy in nats of a distribution whose highest probabilities are known.

    The remaining probability r counts as one further token: H = -sum p ln p - r ln r. The true entropy is no
    lower, and higher by at most r ln(V - k), with k of V tokens known.
    """
    left = max(0.0, 1.0 - math.fsum(chances))
    return -math.fsum(p * math.log(p) for p in (*chances, left) if p > 0) + 0.0


def _spans(text: str, logprobs: Logprobs) -> list[tuple[int, int]]:
    """[start, end) of each token in the text; some may reach beyond it, where a stop string was cut off.

    Uses ``text_offset`` where the server gives it (OpenAI counts it from the prompt's beginning, vLLM from
    the text's); otherwise the tokens must read as the text.
    """
    tokens, starts = logprobs.tokens, logprobs.text_offset
    if starts is None:
        if not "".join(tokens).startswith(text):
            raise ValueError(f"logprobs have no text_offset, and their tokens do not read as {text[:40]!r}")
        starts = list(accumulate(map(len, tokens), initial=0))[:-1]
    if len(starts) != len(tokens):
        raise ValueError(f"{len(starts)} entries of text_offset of {len(tokens)} tokens")
    if not tokens:
        if text:
            raise ValueError(f"no tokens of {text[:40]!r}")
        return []
    begun = [start - starts[0] for start in starts]
    if any(a > b for a, b in pairwise(begun)):
        raise ValueError("text_offset runs backwards")
    return list(pairwise([*begun, begun[-1] + len(tokens[-1])]))


def _end(text: str, spans: Sequence[tuple[int, int]], stops: Stops) -> tuple[int, bool]:
    """Number of tokens that stay (:mod:`probers.engine.tokens`), and whether a stop ended the text."""
    inside = sum(end <= len(text) for _, end in spans)
    known = 0
    for count, (_, end) in enumerate(spans[:inside], 1):
        shown = text[:end]
        place = stops.find(shown, known)
        if place is not None:
            return sum(end <= place for _, end in spans[:count]), True
        if any(stop(shown) for stop in stops.callables):
            return count, True
        known = end
    return inside, inside < len(spans)


def _numbers(values: Iterable[float | None]) -> tuple[float, ...]:
    """Scores of tokens; () where one could not be read."""
    found = tuple(values)
    numbers = tuple(value for value in found if value is not None)
    return numbers if len(numbers) == len(found) else ()
