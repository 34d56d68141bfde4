"""Intervals of many figures from the same resamples, drawn and spread over the examples once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probers.bootstrap import Bootstrap, Interval

#: Called as ``figures(values, weights)``; gives k figures, each a number or (r,) for weights (n, r).
Figures = Callable[[np.ndarray, np.ndarray], Sequence[Any]]

_BLOCK = 1 << 17  # weights worked on at once: half a megabyte, so that a pass over them stays in cache
_LEAST = 32  # columns of a block, so that numpy's inner loops stay long


class Resamples(Bootstrap):
    """A bootstrap whose metrics may compute several figures at once.

    The intervals are those of :meth:`~probers.bootstrap.Bootstrap.interval`, figure by figure.
    """

    def intervals(self, values: np.ndarray, figures: Figures) -> list[Interval]:
        """Every figure of ``values`` (n,) with its interval."""
        plain, drawn = self.samples(values, figures)
        return [self.interval_of(value, column) for value, column in zip(plain, drawn, strict=True)]

    def samples(self, values: np.ndarray, figures: Figures) -> tuple[list[float], np.ndarray]:
        """The k figures of ``values`` (n,), and those of every resample, (k, resamples)."""
        values = self._checked(values)
        plain = [float(value) for value in figures(values, np.ones(len(values)))]
        blocks = [np.stack(list(figures(values, w))) for w in self._blocks()]
        return plain, np.concatenate(blocks, axis=1)

    def interval_of(self, value: float, drawn: np.ndarray) -> Interval:
        """A figure and its values in the resamples (resamples,) as an interval."""
        return self._interval(value, [drawn])

    def _blocks(self) -> Any:
        step = max(_LEAST, _BLOCK // len(self._index))
        for start in range(0, self._draws.shape[1], step):
            yield self._draws[:, start : start + step].astype(np.float32)[self._index]
