"""Scores of texts while they grow: many at once, each by its own key, as engines that serve need them.

Heads of single tokens (``pool=tokens``) score each token, heads of the state before a token
(``predicting``) what would begin with it, and heads of pooled states the text so far. A text's pooled
state is its running sum, so that nothing of a token stays but score and distance. :func:`text_scores`
gives the same of a text that is there already.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..capture.hidden_states import broken_state
from ..capture.pooling import (
    BEFORE,
    PER_TOKEN,
    StreamingPool,
    all_finite,
    as_stored,
    token_pool,
    token_vectors,
)
from ..types import Needs, UserError

if TYPE_CHECKING:
    from .bank import ProbeBank


def check_running(bank: ProbeBank) -> None:
    """Refuse heads that cannot score a text token by token (UserError)."""
    if bank.head.tokens:
        raise UserError(
            "this prober's heads pool all tokens of a span and cannot score a text while it grows: train "
            "heads of single tokens (head=radio, linear, ..) or of pooled states"
        )


class RunningScores:
    """Scores the newest token of texts that grow side by side.

    Attributes:
        before: heads read the state before a token; a text's first is its prompt's last.

    Raises:
        UserError: heads that pool a span's tokens themselves.
    """

    def __init__(self, bank: ProbeBank) -> None:
        check_running(bank)
        self._bank = bank
        self.before = bank.spec.pool in BEFORE
        self._pools: dict[Hashable, tuple[StreamingPool, int]] = {}
        self._distances: dict[Hashable, list[float]] = {}

    def add(self, keys: Sequence[Hashable], states: Tensor) -> list[float]:
        """Take one more token of some texts; the score after it of each.

        Args:
            keys: whose they are, each at most once.
            states: (texts, layers read, d) of the token, or of the position before it for heads of that.

        Raises:
            RunError: a state that is NaN or infinite; names the layer.
        """
        for _, layer in (~all_finite(states)).nonzero().tolist():
            raise broken_state(self._bank.spec.feature, layer, "a token of a running text")
        vectors = token_vectors(states, self._bank.spec.pool)
        if self._bank.spec.pool not in PER_TOKEN:
            vectors = torch.cat(
                [self._pooled(key, vector) for key, vector in zip(keys, vectors, strict=True)]
            )
        vectors = as_stored(vectors, self._bank.spec.dtype)
        if self._bank.domain is not None:
            for key, distance in zip(keys, self._bank.domain(vectors).tolist(), strict=True):
                self._distances.setdefault(key, []).append(distance)
        return self._bank.score(vectors).tolist()

    def distances(self, key: Hashable) -> list[float] | None:
        """Of each token of a text so far how far from the prober's domain is what it was scored by.

        None where the prober has no domain.
        """
        return None if self._bank.domain is None else self._distances.get(key, [])

    def forget(self, key: Hashable) -> None:
        """A text has ended."""
        self._pools.pop(key, None)
        self._distances.pop(key, None)

    def _pooled(self, key: Hashable, vector: Tensor) -> Tensor:
        """A text's pooled vector (1, heads, width), its newest token's (heads, width) included."""
        pool, count = self._pools.get(key) or (StreamingPool(self._bank.spec.pool, 1), 0)
        pool.add(vector[None], slice(None))
        self._pools[key] = pool, count + 1
        return pool.value(slice(None), count + 1)


def text_needs(bank: ProbeBank) -> Needs:
    """What must be recorded of a text for :func:`text_scores`."""
    return Needs((replace(bank.spec.feature, pool=token_pool(bank.spec.pool)),))


def text_scores(bank: ProbeBank, vectors: np.ndarray) -> tuple[list[float], list[float] | None]:
    """The scores and distances that :class:`RunningScores` gives one after the other, of a text read whole.

    Args:
        vectors: (n, heads, width) of its n tokens, recorded with :func:`text_needs`.

    Returns:
        (n,) each; None for distances that the prober does not know.

    Raises:
        UserError: heads that pool a span's tokens themselves.
    """
    check_running(bank)
    given = torch.from_numpy(vectors)
    if bank.spec.pool not in PER_TOKEN and len(given):
        pool, so_far = StreamingPool(bank.spec.pool, 1), []
        for count, vector in enumerate(given, 1):
            pool.add(vector[None], slice(None))
            so_far.append(pool.value(slice(None), count))
        given = torch.cat(so_far)
    given = as_stored(given, bank.spec.dtype)
    return bank.score(given).tolist(), None if bank.domain is None else bank.domain(given).tolist()
