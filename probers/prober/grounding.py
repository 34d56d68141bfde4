"""Grounding of an answer: the passage that each part of it rests on, or that it rests on none.

Attention says where a part comes from, the prober whether it is right, and the same text read without the
passages whether the model would have written it from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..types import Generation, Passages
from ..words import tokens_of
from ..words.text import split_sentences, tokenize
from .response import Ground, ScoredSpan

#: Origin of a part: a passage, what the model knew before, or neither of them.
Origin = Literal["passage", "memory", "neither"]


#: Log-probability per token from which an unsupported part counts as remembered, where no labels tell.
REMEMBERED = float(np.log(0.5))


@dataclass(frozen=True, slots=True)
class Pointer:
    """Attention heads that point to the passage a text rests on, chosen on training texts.

    Attributes:
        heads: their numbers in the site "passages", counted over all layers.
        remembered: mean log-probability, in nats per token and without the passages, from which on an
            unsupported part counts as remembered.
    """

    heads: tuple[int, ...]
    remembered: float = REMEMBERED

    def shares(self, weights: np.ndarray) -> np.ndarray:
        """Compute the share (P,) of each passage in the attention (n, heads, P) of n tokens."""
        total = weights[:, self.heads].sum(axis=(0, 1), dtype=np.float64)
        return total / max(float(total.sum()), np.finfo(np.float64).tiny)


def ground(
    pointer: Pointer, written: Generation, passages: Passages, spans: Sequence[ScoredSpan], threshold: float
) -> tuple[Ground, ...]:
    """Ground each span of an answer in the passages that its prompt shows.

    ``written`` was recorded with the site "passages" and compared with the text read without them; a span
    above ``threshold`` is not supported.
    """
    use = written.passages
    if use is None or use.weights is None or not passages.at:
        return ()
    texts = [written.prompt[start:end] for start, end in passages.at]
    grounds = []
    for span in spans:
        tokens = tokens_of(written.offsets, span.start, span.end)
        if not tokens:
            continue
        shares = pointer.shares(use.weights[tokens])
        best = int(shares.argmax())
        source: Origin = "passage"
        if span.score > threshold:
            gains = np.zeros(len(tokens)) if use.gains is None else use.gains[tokens]
            alone = float((written.logprobs[tokens] - gains).mean())
            source = "memory" if alone >= pointer.remembered else "neither"
        grounds.append(Ground(
            start=span.start, end=span.end, source=source, passage=best + 1, share=float(shares[best]),
            evidence=evidence(written.text[span.start : span.end], texts[best]),
        ))  # fmt: skip
    return tuple(grounds)


def evidence(part: str, passage: str) -> tuple[int, int]:
    """Find the sentence of a passage that shares the most words with a part of an answer, [start, end)."""
    wanted = set(tokenize(part))
    sentences = split_sentences(passage) or [(0, len(passage))]
    return max(sentences, key=lambda place: len(wanted & set(tokenize(passage[slice(*place)]))))
