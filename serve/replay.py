"""Replay of triggers on recorded texts: where each would have fired, by the rules of :mod:`probers.rag`.

Nothing is generated: a text with the records of its tokens, as responses carry them, becomes the generation
that a trigger judges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from probers.commands.components import Component
from probers.entities import tokens_of
from probers.online.growing_spans import ScoredSpan
from probers.rag.protocol import State, Trigger
from probers.rag.remote import ServedGeneration
from probers.rag.triggers import ServedProbing
from probers.rag.triggers.uncertainty import sentences
from probers.types import Decision, Question

from .protocol import ApiError

#: Triggers that can be replayed, with the lists that each needs.
NEEDS = {
    "probing": (), "entropy": ("entropies",), "flare": ("logprobs",), "fixed_sentence": (), "never": (),
}  # fmt: skip


class Replay(BaseModel):
    """``POST /v1/replay``: a trigger with its options, and a text with the records of its tokens.

    Attributes:
        options: those of ``trigger=`` in commands, such as threshold, scope and variant.
        score, spans: the prober's of the whole text; without ``score`` probing cannot be replayed.
        fresh: the text's first sentence was written from passages fetched right there, and is not judged.
    """

    trigger: Literal["probing", "entropy", "flare", "fixed_sentence", "never"]
    options: dict[str, float | str | None] = {}
    text: str
    offsets: list[tuple[int, int]]
    p_wrong: list[float | None] = []
    logprobs: list[float | None] = []
    entropies: list[float | None] = []
    score: float | None = None
    spans: list[ScoredSpan] = []
    fresh: bool = False


class Judged(BaseModel):
    """A part of a text that has a score, in characters; ``p_wrong`` only of the prober's spans."""

    start: int
    end: int
    score: float
    fires: bool
    p_wrong: float | None = None


class Replayed(BaseModel):
    """Decision of a replayed trigger.

    Attributes:
        score: null if the text has nothing that the prober judges.
        whole: it fires on the whole text, of which nothing stays.
        kept: number of characters that stay.
        tokens: indices of the tokens that fired.
        values: one per token, for display; [] of a rule.
    """

    fire: bool
    score: float | None
    whole: bool
    kept: int
    tokens: list[int]
    values: list[float | None]
    judged: list[Judged] = Field(default_factory=list)


def replay(asked: Replay) -> Replayed:
    """Run a trigger on a recorded text (ApiError: something that it needs was not recorded)."""
    n = len(asked.offsets)
    for name in NEEDS[asked.trigger]:
        values = getattr(asked, name)
        if len(values) != n or None in values:
            raise ApiError(400, f"the response does not carry the {name} of the tokens", name)
    if asked.trigger == "probing" and "score" not in asked.model_fields_set:
        raise ApiError(400, "the response does not carry the prober's score of this text", "score")
    trigger = _trigger(asked)
    written = _generation(asked)
    state = State(Question("text", "?"), None, None, (0, 0), fresh=asked.fresh)  # type: ignore[arg-type]
    decision = trigger(written, state)
    judged = _judged(asked, trigger, written, decision)
    nothing = asked.trigger == "probing" and asked.score is None and n > 0
    fired = decision.tokens
    if asked.trigger == "probing":
        hits = [tokens_of(asked.offsets, part.start, part.end) for part in judged if part.fires]
        fired = tuple(sorted({token for tokens in hits for token in tokens}))
    whole = decision.fire and decision.position is None
    kept = asked.text if decision.position is None else asked.text[: decision.position].rstrip()
    values = asked.p_wrong if asked.trigger == "probing" else list(decision.token_scores)
    return Replayed(
        fire=decision.fire, score=None if nothing else decision.score, whole=whole,
        kept=0 if whole else len(kept), tokens=list(fired), values=values, judged=judged,
    )  # fmt: skip


def _trigger(asked: Replay) -> Trigger:
    if asked.trigger == "probing":
        threshold = asked.options.get("threshold")
        return ServedProbing(threshold=None if threshold is None else float(threshold))
    trigger: Trigger = Component.of("trigger", asked.trigger, **asked.options).make()
    return trigger


def _generation(asked: Replay) -> ServedGeneration:
    logprobs, entropies = (
        np.array([math.nan if value is None else value for value in values], dtype=np.float32)
        for values in (asked.logprobs, asked.entropies)
    )
    return ServedGeneration(
        "", (), (), (-1,) * len(asked.offsets), asked.text, tuple(asked.offsets), logprobs, entropies, "eos",
        score=asked.score, threshold=0.0,
    )  # fmt: skip


def _judged(
    asked: Replay, trigger: Trigger, written: ServedGeneration, decision: Decision
) -> Sequence[Judged]:
    """List the parts of the text that the trigger judges by themselves."""
    options: dict[str, Any] = trigger.options
    if asked.trigger == "probing":
        return [
            Judged(
                start=span.start, end=span.end, score=span.score, p_wrong=span.p_wrong,
                fires=span.score > decision.threshold,
            )
            for span in asked.spans
        ]  # fmt: skip
    if asked.trigger != "flare" and options.get("scope") != "sentence":
        return []
    reduce = np.max if "max" in options.values() or "paper" in options.values() else np.mean
    values, parts = np.array(decision.token_scores), sentences(written)[1 if asked.fresh else 0 :]
    scores = [float(reduce(values[list(part.tokens)])) for part in parts]
    return [
        Judged(start=part.start, end=part.end, score=score, fires=score > decision.threshold)
        for part, score in zip(parts, scores, strict=True)
    ]
