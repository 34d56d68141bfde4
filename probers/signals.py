"""Token-level summaries of a generation, and the words its tokens make up."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .types import Generation, RunError

#: Keys of :func:`signals`, in the order in which probers take them as inputs.
SIGNALS = ("mean_entropy", "max_entropy", "min_prob", "mean_logprob")


@dataclass(frozen=True, slots=True)
class Word:
    """A maximal run of characters without white space and the tokens that wrote it.

    Attributes:
        start: first character in the text.
        end: one after the last character.
        tokens: indices of the tokens that wrote any of its characters, ascending.
    """

    start: int
    end: int
    tokens: tuple[int, ...]


def words(text: str, offsets: Sequence[tuple[int, int]]) -> list[Word]:
    """The white-space separated words of a text with their tokens, by character offsets.

    A token that reaches over two words belongs to both; one of white space only to none.

    Raises:
        RunError: a word has no token, so that text and offsets do not belong together.
    """
    found: list[Word] = []
    first = 0  # tokens before it end before the current word
    for match in re.finditer(r"\S+", text):
        start, end = match.span()
        while first < len(offsets) and offsets[first][1] <= start:
            first += 1
        tokens = []
        for index in range(first, len(offsets)):
            if offsets[index][0] >= end:
                break
            if offsets[index][1] > max(start, offsets[index][0]):
                tokens.append(index)
        if not tokens:
            raise RunError(f"no token wrote {match.group()!r} in {text!r}: text and tokens do not align")
        found.append(Word(start, end, tuple(tokens)))
    return found


def signals(generation: Generation) -> dict[str, float]:
    """How sure the model was, in one number each; keys are :data:`SIGNALS`.

    ``mean_entropy`` and ``max_entropy`` in nats over the generated tokens, ``min_prob``
    the probability of the least likely one, ``mean_logprob`` the mean log-probability
    in nats (minus the logarithm of the perplexity).

    Raises:
        RunError: nothing was generated, or a value is not finite.
    """
    if not generation.token_ids:
        raise RunError(f"nothing was generated after {generation.prompt[-60:]!r}, so there are no signals")
    values = {
        "mean_entropy": float(np.mean(generation.entropies)),
        "max_entropy": float(np.max(generation.entropies)),
        "min_prob": math.exp(float(np.min(generation.logprobs))),
        "mean_logprob": float(np.mean(generation.logprobs)),
    }
    for name, value in values.items():
        if not math.isfinite(value):
            raise RunError(f"{name} is {value} for the text {generation.text[:60]!r}")
    return values
