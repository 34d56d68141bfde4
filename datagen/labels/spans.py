"""The states and token signals of a span of a generation, as rows of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from probers.recorder import mind_vector
from probers.types import Generation, Needs, Pool

from .base import recorded


def span_needs(needs: Needs) -> Needs:
    """What a generation must record for the same needs to be had of any span of it."""
    pool: Pool = "mind_tokens" if needs.of_mind else "predicting" if needs.pool == "predicting" else "tokens"
    return replace(needs, pool=pool, attention=True)


def span_tokens(generation: Generation, start: int, end: int) -> list[int]:
    """Positions of the tokens that share a character with [start, end) of the text."""
    return [i for i, (a, b) in enumerate(generation.offsets) if a < end and b > start]


def span_rows(
    generation: Generation, tokens: list[int], needs: Needs
) -> Iterator[tuple[int, dict[str, Any], np.ndarray]]:
    """One row for the span, or with pool "tokens" one for each of its tokens.

    Args:
        generation: recorded with :func:`span_needs`.
        tokens: the span's, contiguous.
        needs: the pooling wanted.

    Yields:
        The token's index in the span (-1 when pooled), the columns that describe it with
        ``n_tokens`` of the whole span, and states (layers, d) or (1, 2 d) for "mind".
    """
    assert generation.states is not None
    states = generation.states[tokens]
    if needs.pool == "tokens":
        for index, token in enumerate(tokens):
            yield index, recorded(generation, [token]) | {"n_tokens": len(tokens)}, states[index]
        return
    columns = recorded(generation, tokens)
    if needs.pool == "mind":
        yield -1, columns, mind_vector(states)
    elif needs.pool == "predicting":  # the span itself: what predicts its first token
        yield -1, columns, states[0]
    else:
        yield -1, columns, states[-1] if needs.pool == "last" else states.mean(axis=0)
