"""Bootstrap intervals for any metric that takes example weights.

Examples of one group (two answers to one question, questions about one entity) are
not independent, so whole groups are drawn with replacement. A resample is a column
of integer weights, and a metric of all resamples is computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..types import RunError

#: Called as ``metric(values, weights)`` with weights (n,) or (n, r); returns a scalar or (r,).
Metric = Callable[[np.ndarray, np.ndarray], Any]

_CHUNK = 4_000_000  # weights held at once, 16 MB; whole numbers, exact in single precision


class Interval(NamedTuple):
    """A figure with its confidence limits; NaN where the figure is undefined."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference with these limits has a sure sign."""
        return self.low > 0 or self.high < 0


def mean(values: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Weighted mean of (n,) values for weights (n,) or (n, r); the default metric."""
    w = np.ones(len(values)) if weights is None else weights
    return values @ w / w.sum(axis=0)


class Bootstrap:
    """Resamples of one set of examples, drawn once and shared by every metric.

    Args:
        groups: (n,) group of each example, resampled together; an integer n means
            that every example is its own group.
        resamples: number of resamples.
        level: coverage of the percentile intervals.
        seed: of the draws.
    """

    def __init__(
        self,
        groups: Sequence[Any] | np.ndarray | int,
        *,
        resamples: int = 1000,
        level: float = 0.95,
        seed: int = 0,
    ) -> None:
        if isinstance(groups, int):
            self._index = np.arange(groups)
        else:
            self._index = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        if not self._index.size:
            raise RunError("no example to compute an interval from")
        self.level = level
        count = int(self._index.max()) + 1
        rng = np.random.default_rng(seed)
        # (groups, resamples): how often each group was drawn.
        self._draws = np.empty((count, resamples), dtype=np.uint16)
        for column in range(resamples):
            self._draws[:, column] = np.bincount(rng.integers(count, size=count), minlength=count)

    def interval(self, values: np.ndarray, metric: Metric = mean) -> Interval:
        """The metric of ``values`` (n,) and its interval."""
        values = self._checked(values)
        value = float(metric(values, np.ones(len(values))))
        return self._interval(value, [metric(values, w) for w in self._weights()])

    def difference(self, a: np.ndarray, b: np.ndarray, metric: Metric = mean) -> Interval:
        """metric(a) - metric(b) on the same examples, every resample paired."""
        a, b = self._checked(a), self._checked(b)
        ones = np.ones(len(a))
        value = float(metric(a, ones) - metric(b, ones))
        return self._interval(value, [metric(a, w) - metric(b, w) for w in self._weights()])

    def _weights(self) -> Iterator[np.ndarray]:
        step = max(1, _CHUNK // len(self._index))
        for start in range(0, self._draws.shape[1], step):
            yield self._draws[:, start : start + step].astype(np.float32)[self._index]

    def _interval(self, value: float, parts: list[np.ndarray]) -> Interval:
        found = np.concatenate([np.atleast_1d(p) for p in parts])
        found = found[~np.isnan(found)]  # resamples that left one class only
        if np.isnan(value) or not found.size:
            return Interval(value, float("nan"), float("nan"))
        tail = (1 - self.level) / 2
        low, high = np.quantile(found, [tail, 1 - tail])
        return Interval(value, float(low), float(high))

    def _checked(self, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=np.float64)
        if values.shape != self._index.shape:
            raise ValueError(f"values have shape {values.shape}, the groups {self._index.shape}")
        if np.isnan(values).any():
            raise RunError(f"{int(np.isnan(values).sum())} of {len(values)} values are not numbers")
        return values


def bootstrap_ci(
    values: np.ndarray, *, metric: Metric = mean, groups: Sequence[Any] | np.ndarray | None = None,
    resamples: int = 1000, level: float = 0.95, seed: int = 0,
) -> Interval:  # fmt: skip
    """A metric with its bootstrap interval.

    Args:
        values: (n,) per-example figures or scores.
        metric: of values and weights; ``partial(auroc, labels)`` for scores.
        groups: (n,) clusters; None treats every example as its own.
        resamples: number of resamples.
        level: coverage.
        seed: of the draws.
    """
    return Bootstrap(
        len(values) if groups is None else groups, resamples=resamples, level=level, seed=seed
    ).interval(values, metric)


def paired_bootstrap(
    a: np.ndarray, b: np.ndarray, *, metric: Metric = mean, groups: Sequence[Any] | np.ndarray | None = None,
    resamples: int = 1000, level: float = 0.95, seed: int = 0,
) -> Interval:  # fmt: skip
    """The difference metric(a) - metric(b) on the same examples, with its interval.

    Args:
        a: (n,) figures or scores of one method.
        b: (n,) of the other, in the same order.
        metric: as in :func:`bootstrap_ci`.
        groups: (n,) clusters; None treats every example as its own.
        resamples: number of resamples.
        level: coverage.
        seed: of the draws.
    """
    return Bootstrap(
        len(a) if groups is None else groups, resamples=resamples, level=level, seed=seed
    ).difference(a, b, metric)


#: Called as ``figures(values, weights)``; gives k figures, each a number or (r,) for weights (n, r).
Figures = Callable[[np.ndarray, np.ndarray], Sequence[Any]]

_BLOCK = 1 << 17  # weights worked on at once: half a megabyte, so that a pass over them stays in cache
_LEAST = 32  # columns of a block, so that numpy's inner loops stay long


class Resamples(Bootstrap):
    """A bootstrap whose metrics may compute several figures at once.

    The intervals are those of :meth:`~probers.evaluation.bootstrap.Bootstrap.interval`, figure by figure.
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
