"""Quality of a detector: whether its score ranks wrong answers above right ones, and its calibration.

``labels`` (n,) are 1 for the event to be detected (a wrong answer) and 0 otherwise; ``scores`` (n,) are
higher for likelier events; ``weights`` are None, (n,), or (n, r) for r resamples at once, with (r,) results.
A figure that needs both classes is NaN without one of them. A NaN score is an error, never
"certain".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..types import RunError
from .bootstrap import Bootstrap, Interval, holm, mean

__all__ = [
    "Bootstrap", "Interval", "Ranking", "accuracy", "auprc", "auroc", "balanced_accuracy", "brier", "ece",
    "ece_by_chance", "ece_interval", "f1_detection", "holm", "mean", "pooled_auroc", "prr", "ranking",
    "recall_at_fpr", "risk_coverage",
]  # fmt: skip


class Ranking(NamedTuple):
    """The four figures of :func:`ranking`, each a number, or (r,) for r resamples."""

    auroc: Any
    auprc: Any
    prr: Any
    recall_at_fpr: Any


def ranking(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Ranking:
    """Compute every figure that depends on the order of the scores, with one sorting."""
    levels = _levels(labels, scores, weights)
    return Ranking(_auroc(levels), _auprc(levels), _prr(levels), _recall_at_fpr(levels))


def auroc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the area under the ROC curve: P(score of an event > score of a non-event), ties count half."""
    return _auroc(_levels(labels, scores, weights))


def pooled_auroc(
    labels: np.ndarray, scores: np.ndarray, strata: np.ndarray, weights: np.ndarray | None = None
) -> Any:
    """Compute P(score of an event > score of a non-event of its stratum), ties count half.

    Length or kind alone raises every figure that compares unlike texts; this one compares texts of one
    stratum (the AROC of Janes and Pepe 2009, for ``strata`` (n,), with pairs as weights). NaN if no stratum
    has both classes.
    """
    return _auroc(_levels(labels, scores, weights, strata))


def auprc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute average precision, sum of (R_k - R_{k-1}) P_k over falling thresholds; base rate by chance."""
    return _auprc(_levels(labels, scores, weights))


def recall_at_fpr(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None, *, most: float = 0.1
) -> Any:
    """Compute the highest recall at a false positive rate of at most ``most`` (no interpolation)."""
    return _recall_at_fpr(_levels(labels, scores, weights), most)


def prr(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the prediction rejection ratio: 1 for rejection as good as an oracle's, 0 for chance.

    A(c) is the share of right answers among the fraction c with the lowest scores, and a that of all. Then
    PRR = (integral of A over c from 0 to 1 - a) / (the oracle's - a). Tied answers are kept in expectation
    over their orders. For the oracle A is 1 up to c = a and a/c beyond.
    """
    return _prr(_levels(labels, scores, weights))


def risk_coverage(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute coverage (k,) and selective risk (k,): the share of events among the lowest-scored part kept.

    There is one point per kept example, ascending, ties in expectation (El-Yaniv and Wiener 2010).
    """
    levels = _levels(labels, scores, None)
    edges = np.r_[0.0, levels.events + levels.others]
    numbers = np.arange(1, len(labels) + 1)
    events = np.interp(numbers, edges, np.r_[0.0, levels.events])
    return numbers / len(labels), events / numbers


def accuracy(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the share of examples where ``fired`` (n,) booleans agree with the labels."""
    labels, fired = _checked(labels, fired)
    return mean((labels == (fired > 0)).astype(float), weights)


def balanced_accuracy(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Average the shares of events that fired and of non-events that did not."""
    true_positive, false_positive, positive, negative = _confusion(labels, fired, weights)
    return (_ratio(true_positive, positive) + 1 - _ratio(false_positive, negative)) / 2


def f1_detection(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute F1 of the events among the fired examples; 0 if there is neither."""
    true_positive, false_positive, positive, _ = _confusion(labels, fired, weights)
    return _ratio(2 * true_positive, true_positive + false_positive + positive, empty=0.0)


def brier(labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the mean squared difference of probability and label; 0 is perfect."""
    labels, probabilities = _checked(labels, probabilities)
    return mean((probabilities - labels) ** 2, weights)


def ece(labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Compute the expected calibration error; 0 is perfect.

    It sums over 10 bins of equal width: the share of examples times the distance between their mean
    probability and their share of events.
    """
    labels, probabilities = _checked(labels, probabilities)
    w = np.ones(len(labels)) if weights is None else weights
    return np.abs(_bins(probabilities) * (probabilities - labels) @ w).sum(axis=0) / w.sum(axis=0)


def ece_interval(bootstrap: Bootstrap, labels: np.ndarray, probabilities: np.ndarray) -> Interval:
    """Compute :func:`ece` with 95% limits of the error that endless texts would show.

    Percentiles of resamples miss it: noise in a bin counts as an error, and twice in a resample. Let d be the
    signed errors of the bins, whose absolute values add up to the ECE, e their noise, and s the signs of the
    true errors. The true sum is at least ECE - ``sum |e|`` (triangle inequality) and at most ECE - sum s e.
    The limits take the 97.5% quantile of either, with a resample's d less that of the texts as e (the basic
    bootstrap, Davison and Hinkley 1997, section 5.2) and the signs of d as s. In simulated worlds of 40 to
    1,000 texts they cover in 92 to 100%, and in 89% for exact probabilities of texts in 20 groups.
    """
    labels, probabilities = _checked(labels, probabilities)
    errors = _bins(probabilities) * (probabilities - labels)
    samples = bootstrap.samples(
        probabilities, lambda _, weights: list(errors @ weights / weights.sum(axis=0))
    )
    here = np.array([sample.value for sample in samples])
    noise = np.array([sample.drawn for sample in samples]) - here[:, None]
    value, upper = np.abs(here).sum(), 1 - (1 - 0.95) / 2
    below = np.quantile(np.abs(noise).sum(axis=0), upper)
    above = np.quantile(-(np.sign(here) @ noise), upper)
    return Interval(float(value), max(0.0, float(value - below)), min(1.0, float(value + above)))


def _bins(probabilities: np.ndarray) -> np.ndarray:
    """Assign examples to bins, (10, n)."""
    return np.equal(np.clip((probabilities * 10).astype(int), 0, 9), np.arange(10)[:, None])


def ece_by_chance(probabilities: np.ndarray) -> float:
    """Estimate the mean :func:`ece` of probabilities (n,) that are exactly right.

    An ECE near this one is no evidence of miscalibration (Bröcker and Smith 2007, consistency resampling).
    Labels are drawn independently, so that it is too low for grouped texts.
    """
    labels = np.random.default_rng(0).random((len(probabilities), 1000)) < probabilities[:, None]
    members = _bins(probabilities) @ (probabilities[:, None] - labels)
    return float(np.abs(members).sum(axis=0).mean() / len(probabilities))


class _Levels(NamedTuple):
    """Weights at each distinct score, ascending, and of all at or below it; (levels,) or (levels, r).

    With strata these follow each other; ``starts`` are the first level of each.
    """

    positive: np.ndarray
    negative: np.ndarray
    events: np.ndarray
    others: np.ndarray
    starts: np.ndarray

    def above(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the weight of events and of non-events at or above each score."""
        return self.events[-1] - self.events + self.positive, self.others[-1] - self.others + self.negative


def _levels(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None, strata: np.ndarray | None = None
) -> _Levels:
    labels, scores = _checked(labels, scores)
    of = np.zeros(len(scores), dtype=int) if strata is None else strata
    order = np.argsort(scores, kind="stable") if strata is None else np.lexsort((scores, of))
    ranked, of = scores[order], of[order]
    begins = np.r_[True, of[1:] != of[:-1]]
    starts = np.flatnonzero(begins | np.r_[True, ranked[1:] != ranked[:-1]])
    w = np.ones(len(labels)) if weights is None else np.asarray(weights)[order]
    positive = w * labels[order].astype(w.dtype).reshape(-1, *[1] * (w.ndim - 1))
    negative = w - positive
    if len(starts) < len(ranked):  # ties
        positive, negative = (np.add.reduceat(x, starts, axis=0) for x in (positive, negative))
    events, others = np.cumsum(positive, axis=0), np.cumsum(negative, axis=0)
    return _Levels(positive, negative, events, others, np.flatnonzero(begins[starts]))


def _auroc(levels: _Levels) -> Any:
    below, pairs = levels.others - levels.negative, levels.events[-1] * levels.others[-1]
    if len(starts := levels.starts) > 1:  # of each stratum by itself
        below -= np.repeat(below[starts], np.diff(np.r_[starts, len(below)]), axis=0)
        events, others = (np.add.reduceat(x, starts, axis=0) for x in (levels.positive, levels.negative))
        pairs = (events * others).sum(axis=0)
    wins = (levels.positive * (below + levels.negative / 2)).sum(axis=0)
    return _ratio(wins, pairs)


def _auprc(levels: _Levels) -> Any:
    hits, alarms = levels.above()
    precision = _ratio(hits, hits + alarms, empty=0.0)
    return _ratio((levels.positive * precision).sum(axis=0), levels.events[-1])


def _recall_at_fpr(levels: _Levels, most: float = 0.1) -> Any:
    hits, alarms = levels.above()
    allowed = alarms <= most * levels.others[-1] + 1e-9
    recall = _ratio(np.where(allowed, hits, 0.0).max(axis=0), levels.events[-1])
    return np.where(levels.others[-1] > 0, recall, np.nan)[()]


def _prr(levels: _Levels) -> Any:
    right, end, width = levels.others, levels.events + levels.others, levels.positive + levels.negative
    start, right_before = end - width, right - levels.negative
    rate = _ratio(levels.negative, width, empty=0.0)
    # Within a level A(c) = (right_before + rate (c - start)) / c, integrated in closed form.
    log = np.log(_ratio(end, start, empty=1.0))
    area = ((right_before - rate * start) * log + rate * width).sum(axis=0) / end[-1]
    a = right[-1] / end[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        best = -a * np.log(a)
    return _ratio(area - a, np.where((a > 0) & (a < 1), best, 0.0))


def _confusion(
    labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None
) -> tuple[Any, Any, Any, Any]:
    labels, fired = _checked(labels, fired)
    w = np.ones(len(labels)) if weights is None else weights
    return (labels * fired) @ w, ((1 - labels) * fired) @ w, labels @ w, (1 - labels) @ w


def _checked(labels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels, values = np.asarray(labels, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != values.shape or not labels.size:
        raise ValueError(f"labels {labels.shape} and scores {values.shape} must both be (n,), n > 0")
    if not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1")
    if np.isnan(values).any():
        raise RunError(f"{int(np.isnan(values).sum())} of {len(values)} scores are not numbers")
    return labels, values


def _ratio(numerator: Any, denominator: Any, *, empty: float = float("nan")) -> Any:
    numerator, denominator = np.asarray(numerator), np.asarray(denominator)
    kind = np.result_type(numerator.dtype, denominator.dtype, np.float32)
    out = np.full(denominator.shape, empty, dtype=kind)
    return np.divide(numerator, denominator, out=out, where=denominator > 0)[()]
