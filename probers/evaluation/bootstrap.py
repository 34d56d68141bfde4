"""Bootstrap intervals, paired differences and Holm's p-values for any metric that takes example weights.

Examples of one group (two answers to one question) are not independent, so whole groups are drawn with
replacement. A resample is a column of integer weights, and a metric of all resamples is computed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..types import RunError, count

#: Called as ``metric(values, weights)`` with weights (n,) or (n, r); returns a scalar or (r,).
Metric = Callable[[np.ndarray, np.ndarray], Any]

#: Called as ``figures(values, weights)``; returns k figures, each a number or (r,) for weights (n, r).
Figures = Callable[[np.ndarray, np.ndarray], Sequence[Any]]

#: Quantiles at the ends of an interval of 95%.
_TAILS = ((1 - 0.95) / 2, 1 - (1 - 0.95) / 2)

# Weights processed at once; whole numbers, exact in single precision. The last digit of a matrix product
# depends on its number of columns, so that these sizes are part of the figures.
_OF_ONE = 4_000_000  # 16 MB
_OF_SEVERAL = 1 << 17  # half a megabyte, so that a pass over them stays in cache
_LEAST = 32  # columns, so that numpy's inner loops stay long

#: Fewest groups with which intervals and p-values hold what they say. In simulations with 30 texts 86% of the
#: intervals of AUPRC hold the true one, and with 20 groups 9% of the p-values of no difference are below .05.
LEAST_GROUPS = 30

#: Figures of resamples this close to each other differ by rounding only.
_SAME = 1e-9


class Interval(NamedTuple):
    """A figure with its confidence limits; NaN where the figure is undefined."""

    value: float
    low: float
    high: float

    @property
    def limits(self) -> list[float] | None:
        return None if np.isnan(self.low) else [self.low, self.high]

    def figures(self, name: str) -> dict[str, Any]:
        """Return the figure for JSON: ``{name: value, name_ci: [low, high]}``, null where undefined."""
        value, limits = (None, None) if np.isnan(self.value) else (self.value, self.limits)
        return {name: value, f"{name}_ci": limits}


def few_groups(n: int, noun: str = "group") -> str:
    """Tell that intervals and p-values are of few groups; "" for :data:`LEAST_GROUPS` or more, or none."""
    if not 0 < n < LEAST_GROUPS:
        return ""
    problem = "the 95% intervals are too short and the p-values too small"
    return f"{count(n, noun)}: below {LEAST_GROUPS} {problem}"


#: An undefined figure.
UNDEFINED = Interval(np.nan, np.nan, np.nan)


def number(value: float | None, form: str = ".2f", *, absent: str = "-") -> str:
    """Format a figure, or a mark for an undefined one."""
    return absent if value is None else f"{value:{form}}"


def bounds(ci: Sequence[float] | None, form: str = ".2f") -> str:
    """Format ``[low, high]``; empty without an interval."""
    return "" if ci is None else f"[{ci[0]:{form}}, {ci[1]:{form}}]"


class Entry(Protocol):
    """Figures by name, with their intervals."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


def bounded(entry: Entry, key: str, form: str = ".2f", *, absent: str = "") -> str:
    """Format a figure of an entry, as from :meth:`Interval.figures`, with its interval."""
    return f"{number(entry.get(key), form, absent=absent)} {bounds(entry.get(f'{key}_ci'), form)}".strip()


class Sample(NamedTuple):
    """A figure and its values in the resamples (r,); NaN in those that leave it undefined."""

    value: float
    drawn: np.ndarray

    def minus(self, other: Sample) -> Sample:
        """Subtract a figure of the same resamples."""
        return Sample(self.value - other.value, self.drawn - other.drawn)

    @property
    def interval(self) -> Interval:
        """The figure with the 95% limits of its resamples."""
        drawn = self._defined
        low, high = np.quantile(drawn, _TAILS) if drawn.size else (np.nan, np.nan)
        return Interval(self.value, float(low), float(high))

    @property
    def p(self) -> float:
        """Two-sided p-value of "the figure is 0"; NaN where the figure is undefined.

        It is (1 + count) / (1 + resamples), counting resamples at least as far from the figure as 0 is
        (Davison and Hinkley 1997, section 4.4).
        """
        if not (drawn := self._defined).size:
            return float("nan")
        as_far = np.abs(drawn - self.value) >= abs(self.value) - _SAME
        return float((1 + as_far.sum()) / (1 + drawn.size))

    @property
    def _defined(self) -> np.ndarray:
        """The resamples with both classes, none where the figure itself is undefined."""
        return self.drawn[~np.isnan(self.drawn + self.value)]


def holm(p: Sequence[float]) -> list[float]:
    """Adjust the p-values of one family (Holm 1979): at most 5% of families then have a false one below .05.

    The k-th smallest of m is multiplied by m - k + 1; none becomes less than a smaller one, or more than 1.
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    adjusted = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)))
    return list(map(float, adjusted[np.argsort(order)]))


def mean(values: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the weighted mean of values (n,) for weights (n,) or (n, r); the default metric."""
    w = np.ones(len(values)) if weights is None else weights
    return values @ w / w.sum(axis=0)


class Bootstrap:
    """Resamples of one set of examples, drawn once and shared by every metric.

    ``groups`` (n,) names the group of each example; a group is drawn as a whole. ``size`` is their number.
    """

    def __init__(self, groups: Sequence[Any] | np.ndarray, *, resamples: int = 1000, seed: int = 0) -> None:
        self._index = np.unique(np.asarray(groups), return_inverse=True)[1].reshape(-1)
        if not self._index.size:
            raise RunError("no example to compute an interval from", "empty")
        self.size, rng = int(self._index.max()) + 1, np.random.default_rng(seed)
        # (groups, resamples): how often each group was drawn
        self._draws = np.empty((self.size, resamples), dtype=np.uint16)
        for column in range(resamples):
            self._draws[:, column] = np.bincount(rng.integers(self.size, size=self.size), minlength=self.size)

    def interval(self, values: np.ndarray, metric: Metric = mean) -> Interval:
        """Compute a metric of ``values`` (n,) and its interval."""
        return self.sample(values, metric).interval

    def sample(self, values: np.ndarray, metric: Metric = mean) -> Sample:
        """Compute a metric of ``values`` (n,), and of every resample."""
        values = self._checked(values)
        value = float(metric(values, np.ones(len(values))))
        return Sample(value, np.concatenate([metric(values, w) for w in self._weights(_OF_ONE)]))

    def difference(self, a: np.ndarray, b: np.ndarray, metric: Metric = mean) -> Interval:
        """Compute metric(a) - metric(b) on the same examples, every resample paired."""
        return self.sample(a, metric).minus(self.sample(b, metric)).interval

    def intervals(self, values: np.ndarray, figures: Figures) -> list[Interval]:
        """Compute several figures of ``values`` (n,) at once, with their intervals."""
        return [sample.interval for sample in self.samples(values, figures)]

    def samples(self, values: np.ndarray, figures: Figures) -> list[Sample]:
        """Compute several figures of ``values`` (n,) at once, and of every resample."""
        values = self._checked(values)
        plain = map(float, figures(values, np.ones(len(values))))
        blocks = [np.stack(list(figures(values, w))) for w in self._weights(_OF_SEVERAL, _LEAST)]
        return [Sample(*each) for each in zip(plain, np.concatenate(blocks, axis=1), strict=True)]

    def _weights(self, size: int, least: int = 1) -> Iterator[np.ndarray]:
        """Yield weights (n, r) of some resamples at a time."""
        step = max(least, size // len(self._index))
        for start in range(0, self._draws.shape[1], step):
            yield self._draws[:, start : start + step].astype(np.float32)[self._index]

    def _checked(self, values: np.ndarray) -> np.ndarray:
        values = np.asarray(values, dtype=np.float64)
        if values.shape != self._index.shape:
            raise ValueError(f"values have shape {values.shape}, the groups {self._index.shape}")
        if np.isnan(values).any():
            raise RunError(f"{int(np.isnan(values).sum())} of {len(values)} values are not numbers")
        return values
