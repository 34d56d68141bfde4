"""Scores and states of one text while vLLM writes or reads it, pooled as they settle.

Place 0 is the position that predicts the text's first token, place i + 1 that of its token i. A place is
recorded once, whatever vLLM computes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...capture.hidden_states import StateTap
from ...capture.pooling import BEFORE, PER_TOKEN, StreamingPool, all_finite, token_vectors
from ...types import Feature, Needs


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recordings of a text of n tokens.

    Attributes:
        states: as :class:`probers.types.Generation` has them.
        scores: (4, n), of :func:`probers.engine.forward.token_scores`.
        broken: (feature, token, layer's place) of the first state that is NaN or infinite.
    """

    states: dict[Feature, np.ndarray]
    scores: np.ndarray
    broken: tuple[Feature, int, int] | None


class _FeatureRecord:
    """One feature of a text, of its places as far as they are known."""

    def __init__(self, feature: Feature) -> None:
        self.layers = StateTap.layers_of(feature)
        self._pool = feature.pool
        self._skip = 0 if feature.pool in BEFORE else 1
        self._waiting: list[Tensor] = []  # (layers, d) of places that are not pooled
        self._pooled = StreamingPool(feature.pool, 1)
        self._count = 0  # places that are
        self.broken: tuple[int, int] | None = None

    def add(self, place: int, states: Tensor) -> None:
        """The states (n, layers, d) of the next places, of which ``place`` is the first."""
        self._waiting += states[max(0, self._skip - place) :].unbind()

    def commit(self, tokens: int) -> None:
        """The text keeps its first ``tokens`` tokens, whatever comes next."""
        ready = self._waiting[: max(0, tokens - self._count)]
        if self._pool in PER_TOKEN or not ready:
            return
        for vector in self._checked(ready, self._count):
            self._pooled.add(vector[None], slice(None))
        self._count += len(ready)
        del self._waiting[: len(ready)]

    def value(self, kept: int) -> np.ndarray | None:
        """The states of a text that keeps so many tokens, all of whose places are recorded."""
        if not kept:
            return None
        if self._pool in PER_TOKEN:
            places = kept + (self._pool == "positions")
            return self._checked(self._waiting[:places], 0).cpu().numpy()
        self.commit(kept)
        return self._pooled.value(0, kept).cpu().numpy()

    def _checked(self, states: Sequence[Tensor], first: int) -> Tensor:
        """(n, heads, width) what places contribute from ``first`` on."""
        stacked = torch.stack(list(states)).float()
        good = all_finite(stacked)
        if self.broken is None and not bool(good.all()):
            place, layer = (~good).nonzero()[0].tolist()
            self.broken = max(0, first + place - (self._pool == "positions")), layer
        return token_vectors(stacked, self._pool)


class TextRecord:
    """Recorder of one text.

    Attributes:
        start: the position that predicts its first token.
        tokens: its tokens, where it is only read; None where it is being written.
        count: places recorded.

    Args:
        needs: of what is to be kept; attention is none of it.
    """

    def __init__(self, needs: Needs, start: int, tokens: Sequence[int] | None = None) -> None:
        self.start, self.tokens = start, tokens
        self.count = 0
        self._features = {feature: _FeatureRecord(feature) for feature in needs.features}
        self._scores: list[Tensor] = []

    @property
    def layers(self) -> set[tuple[int, ...]]:
        """The layers that each of its features reads."""
        return {feature.layers for feature in self._features.values()}

    def add(self, states: Mapping[tuple[int, ...], Tensor], count: int) -> None:
        """The next ``count`` places: their states (count, layers, d) for each of :attr:`layers`."""
        for feature in self._features.values():
            feature.add(self.count, states[feature.layers])
        self.count += count

    def score(self, scores: Tensor) -> None:
        """(4, n) of the next tokens."""
        self._scores.append(scores)

    def commit(self, tokens: int) -> None:
        """The text keeps its first ``tokens`` tokens, whatever comes next."""
        for feature in self._features.values():
            feature.commit(tokens)

    def recorded(self, kept: int) -> Recorded:
        """All of a text that keeps so many tokens."""
        found = {feature: record.value(kept) for feature, record in self._features.items()}
        states = {feature: each for feature, each in found.items() if each is not None}
        broken = ((each, *record.broken) for each, record in self._features.items() if record.broken)
        scores = torch.cat([torch.zeros(4, 0), *(each.cpu() for each in self._scores)], dim=1)
        return Recorded(states, scores[:, :kept].numpy(), next(broken, None))
