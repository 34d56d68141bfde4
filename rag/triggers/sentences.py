"""Sentences of a generation with their tokens, and the rule of triggers that judge one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from probers.text import split_sentences
from probers.types import Decision, Generation

from .base import State, verdict


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a generation.

    Attributes:
        start: its first character in the text.
        end: one after its last character.
        tokens: indices of the tokens that wrote any of it, ascending; neighbours may share one.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def sentences(generation: Generation) -> list[Sentence]:
    """The sentences of a generation's text, those of no whole token left out."""
    found = []
    for start, end in split_sentences(generation.text):
        tokens = tuple(i for i, (a, b) in enumerate(generation.offsets) if a < end and b > max(a, start))
        if tokens:
            found.append(Sentence(start, end, tokens))
    return found


def first_above(
    generation: Generation,
    state: State,
    values: np.ndarray,
    reduce: Callable[[np.ndarray], float],
    threshold: float,
) -> Decision:
    """Fires before the first sentence whose score is above the threshold.

    A sentence that was written right there from fresh passages is taken as it is:
    otherwise the same place could fire for ever.

    Args:
        values: (n,) one per token, higher is less sure.
        reduce: the score of a sentence of its tokens' values.

    Returns:
        Its score is that of the highest sentence that may fire, 0 where there is none; its
        tokens are those of the sentence that fired whose own value is above the threshold.
    """
    shown = tuple(map(float, values))
    found = sentences(generation)[1 if state.fresh else 0 :]
    scores = [float(reduce(values[list(each.tokens)])) for each in found]
    # max() would pass over a NaN.
    top = float(np.max(scores)) if scores else 0.0
    for sentence, score in zip(found, scores, strict=True):
        if score > threshold:
            tokens = tuple(i for i in sentence.tokens if values[i] > threshold)
            return verdict(top, threshold, position=sentence.start, tokens=tokens, token_scores=shown)
    return verdict(top, threshold, token_scores=shown)
