"""Replay of triggers on recorded texts: where each would have fired, by the rules of :mod:`probers.rag`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from probers.cli.components import Component
from probers.prober.online.growing_spans import ScoredSpan
from probers.rag.build import for_engine
from probers.rag.protocol import State
from probers.rag.remote import ServedGeneration
from probers.rag.triggers.uncertainty import sentences
from probers.types import Decision, Question
from probers.words import tokens_of

from .protocol import ApiError

#: What a trigger needs of a response: the field, and its name in messages.
_NEEDS = {
    "probing": ("score", "prober's score of this text"), "entropy": ("entropies", "entropies of the tokens"),
    "flare": ("logprobs", "probabilities of the tokens"),
}  # fmt: skip


class Replay(BaseModel):
    """``POST /v1/replay``: a trigger with its options, and a text with what a response says of its tokens.

    ``score`` and ``spans`` are the prober's of the whole text. The first sentence of a ``fresh`` text was
    written from passages fetched right there, and is not judged.
    """

    trigger: Literal["probing", "entropy", "flare", "fixed_sentence", "never"]
    options: dict[Literal["threshold", "scope", "reduction", "variant"], float | str | None] = {}
    text: str
    offsets: list[tuple[int, int]]
    p_wrong: list[float | None] = []
    logprobs: list[float | None] = []
    entropies: list[float | None] = []
    score: float | None = None
    spans: list[ScoredSpan] = []
    fresh: bool = False

    def generation(self) -> ServedGeneration:
        """Make the generation that the trigger judges (ApiError: the response lacks what it needs)."""
        if self.trigger in _NEEDS:
            field, name = _NEEDS[self.trigger]
            values, n = getattr(self, field), len(self.offsets)
            known = field in self.model_fields_set
            if not (known if field == "score" else len(values) == n and None not in values):
                raise ApiError(400, f"the response does not carry the {name}", field)
        logprobs, entropies = (
            np.array([math.nan if value is None else value for value in values], dtype=np.float32)
            for values in (self.logprobs, self.entropies)
        )
        ids, places = (-1,) * len(self.offsets), tuple(self.offsets)
        return ServedGeneration(
            "", (), (), ids, self.text, places, logprobs, entropies, "eos", score=self.score, threshold=0.0
        )


def replay(asked: Replay) -> dict[str, Any]:
    """Decide on a recorded text.

    Returns:
        ``fire``, ``score`` (None: nothing that the prober judges), ``whole`` (the whole text is discarded),
        ``kept`` (characters that stay), ``tokens`` that fired, ``values`` of all tokens for display, and
        ``judged``, the parts with a score of their own.
    """
    written, probing = asked.generation(), asked.trigger == "probing"
    trigger = for_engine("recorded", Component.of("trigger", asked.trigger, **asked.options)).make()
    state = State(Question("text", "?"), None, None, (0, 0), fresh=asked.fresh)  # type: ignore[arg-type]
    decision: Decision = trigger(written, state)
    values = np.array(decision.token_scores)
    if probing:
        judged = [asdict(span) for span in asked.spans]
    elif asked.trigger == "flare" or asked.options.get("scope") == "sentence":
        reduce = np.max if {"max", "paper"} & set(trigger.record.values()) else np.mean
        parts = sentences(written)[1 if asked.fresh else 0 :]
        judged = [
            {"start": part.start, "end": part.end, "score": float(reduce(values[list(part.tokens)]))}
            for part in parts
        ]
    else:
        judged = []
    judged = [part | {"fires": part["score"] > decision.threshold} for part in judged]
    hits = [tokens_of(asked.offsets, part["start"], part["end"]) for part in judged if part["fires"]]
    nothing = probing and asked.score is None and bool(asked.offsets)
    whole = decision.fire and decision.position is None
    kept = asked.text if decision.position is None else asked.text[: decision.position].rstrip()
    return {
        "fire": decision.fire, "score": None if nothing else decision.score,
        "whole": whole, "kept": 0 if whole else len(kept),
        "tokens": sorted({i for tokens in hits for i in tokens}) if probing else decision.tokens,
        "values": asked.p_wrong if probing else decision.token_scores, "judged": judged,
    }  # fmt: skip
