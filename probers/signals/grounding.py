"""Grounding of an answer: the passage that each part of it rests on, or that it rests on none.

Attention says where a part comes from, a prober whether it is right, and the same text read without the
passages whether the model would have written it from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..types import Generation, Passages
from ..words import tokens_of
from ..words.text import split_sentences, tokenize

#: Origin of a part: a passage, what the model knew before, or neither of them.
Origin = Literal["passage", "memory", "neither"]


#: Origin of a labelled answer by the column ``source`` of ``--source grounded``.
ORIGINS: dict[str, Origin] = {
    "passage": "passage", "both": "passage", "memory": "memory", "other_passage": "neither",
    "invented": "neither",
}  # fmt: skip
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

    def origin(self, supported: bool, alone: float) -> Origin:
        """Name what a part rests on; ``alone`` is its mean log-probability without the passages."""
        if supported:
            return "passage"
        return "memory" if alone >= self.remembered else "neither"


@dataclass(frozen=True, slots=True)
class Ground:
    """Ground of characters [start, end) of an answer in the passages that the prompt shows.

    ``passage`` is the number, from 1, of the one that attention points to with this ``share`` of all, and
    ``evidence`` the characters of its nearest sentence.
    """

    start: int
    end: int
    source: Origin
    passage: int
    share: float
    evidence: tuple[int, int]


def ground(
    pointer: Pointer, written: Generation, passages: Passages, spans: Mapping[tuple[int, int], bool]
) -> tuple[Ground, ...]:
    """Ground spans of an answer in the passages that its prompt shows.

    ``written`` was recorded with the site "passages" and compared with the text read without them. ``spans``
    maps the characters [start, end) of each to whether it is supported.
    """
    use = written.passages
    if use is None or use.weights is None or not passages.at:
        return ()
    texts = [written.prompt[start:end] for start, end in passages.at]
    grounds = []
    for (start, end), supported in spans.items():
        tokens = tokens_of(written.offsets, start, end)
        if not tokens:
            continue
        shares = pointer.shares(use.weights[tokens])
        best = texts.index(texts[int(shares.argmax())])  # of equal passages the first
        gains = np.zeros(len(tokens)) if use.gains is None else use.gains[tokens]
        source = pointer.origin(supported, float((written.logprobs[tokens] - gains).mean()))
        nearest = evidence(written.text[start:end], texts[best])
        grounds.append(Ground(start, end, source, best + 1, float(shares.max()), nearest))
    return tuple(grounds)


def evidence(part: str, passage: str) -> tuple[int, int]:
    """Find the sentence of a passage that shares the most words with a part of an answer, [start, end)."""
    wanted = set(tokenize(part))
    sentences = split_sentences(passage) or [(0, len(passage))]
    return max(sentences, key=lambda place: len(wanted & set(tokenize(passage[slice(*place)]))))
