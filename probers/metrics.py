"""Quality of a detector: does the score rank wrong answers above right ones, is it calibrated?

Conventions: ``labels`` (n,) are 1 for the event to be detected (a wrong answer) and
0 otherwise; ``scores`` (n,) are higher the likelier the event; ``weights`` are None,
(n,), or (n, r) for r resamples at once, which gives (r,) results. A figure that needs
both classes is NaN without one of them. A NaN score is an error, never "certain".
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .answers import F1, accuracy_contains, exact_match, extract_answer, f1_score, normalize_answer
from .bootstrap import Bootstrap, Interval, bootstrap_ci, mean, paired_bootstrap
from .types import RunError

__all__ = [
    "F1", "Bootstrap", "Interval", "accuracy", "accuracy_contains", "auprc", "auroc", "balanced_accuracy",
    "bootstrap_ci", "brier", "ece", "exact_match", "extract_answer", "f1_detection", "f1_score", "mean",
    "normalize_answer", "paired_bootstrap", "prr", "recall_at_fpr",
]  # fmt: skip


def auroc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Area under the ROC curve: P(score of an event > score of a non-event), ties count half."""
    levels = _levels(labels, scores, weights)
    below = np.cumsum(levels.negative, axis=0) - levels.negative
    wins = (levels.positive * (below + levels.negative / 2)).sum(axis=0)
    return _ratio(wins, levels.positive.sum(axis=0) * levels.negative.sum(axis=0))


def auprc(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Average precision, sum of (R_k - R_{k-1}) P_k over descending thresholds.

    A score that knows nothing gets the base rate, ``labels.mean()``; report both.
    """
    levels = _levels(labels, scores, weights)
    positive, negative = levels.positive[::-1], levels.negative[::-1]
    hits = np.cumsum(positive, axis=0)
    precision = _ratio(hits, hits + np.cumsum(negative, axis=0), empty=0.0)
    return _ratio((positive * precision).sum(axis=0), hits[-1])


def recall_at_fpr(
    labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None, *, fpr: float = 0.1
) -> Any:
    """Highest recall of a threshold whose false positive rate is at most ``fpr`` (no interpolation)."""
    levels = _levels(labels, scores, weights)
    hits, alarms = np.cumsum(levels.positive[::-1], axis=0), np.cumsum(levels.negative[::-1], axis=0)
    allowed = alarms <= fpr * alarms[-1] + 1e-9
    recall = _ratio(np.where(allowed, hits, 0.0).max(axis=0), hits[-1])
    return np.where(alarms[-1] > 0, recall, np.nan)[()]


def prr(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Prediction rejection ratio: 1 when rejecting by score is as good as an oracle, 0 as chance.

    With A(c) the share of right answers among the fraction c with the lowest scores,
    PRR = (mean of A over c - a) / (mean of the oracle's A - a), where a is the accuracy
    of all and the mean is the integral over c from 0 to 1. Tied answers are kept in
    expectation over their orders. For the oracle A is 1 up to c = a and a/c beyond.
    """
    levels = _levels(labels, scores, weights)
    kept = np.cumsum(levels.positive + levels.negative, axis=0)
    right = np.cumsum(levels.negative, axis=0)
    total = kept[-1]
    width = levels.positive + levels.negative
    start, right_before = kept - width, right - levels.negative
    rate = _ratio(levels.negative, width, empty=0.0)
    # Within a level A(c) = (right_before + rate (c - start)) / c, integrated in closed form.
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(start > 0, np.log(kept / np.where(start > 0, start, 1.0)), 0.0)
    area = ((right_before - rate * start) * log + rate * width).sum(axis=0) / total
    a = right[-1] / total
    with np.errstate(divide="ignore", invalid="ignore"):
        best = -a * np.log(a)
    return _ratio(area - a, np.where((a > 0) & (a < 1), best, 0.0))


def accuracy(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Share of examples where ``fired`` (n,) booleans agree with the labels."""
    labels, fired = _checked(labels, fired)
    return mean((labels == (fired > 0)).astype(float), weights)


def balanced_accuracy(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Mean of the shares of events that fired and of non-events that did not."""
    true_positive, false_positive, positive, negative = _confusion(labels, fired, weights)
    return (_ratio(true_positive, positive) + 1 - _ratio(false_positive, negative)) / 2


def f1_detection(labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """F1 of the events among what fired; 0 where there is neither."""
    true_positive, false_positive, positive, _ = _confusion(labels, fired, weights)
    return _ratio(2 * true_positive, true_positive + false_positive + positive, empty=0.0)


def brier(labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None) -> Any:
    """Mean squared difference of probability and label, 0 is perfect."""
    labels, probabilities = _checked(labels, probabilities)
    return mean((probabilities - labels) ** 2, weights)


def ece(
    labels: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None = None, *, bins: int = 10
) -> Any:
    """Expected calibration error over ``bins`` bins of equal width, 0 is perfect.

    Sum over bins of (share of examples) * |mean probability - share of events|.
    """
    labels, probabilities = _checked(labels, probabilities)
    w = np.ones(len(labels)) if weights is None else weights
    place = np.clip((probabilities * bins).astype(int), 0, bins - 1)
    members = (place[None, :] == np.arange(bins)[:, None]) * (probabilities - labels)
    return np.abs(members @ w).sum(axis=0) / w.sum(axis=0)


class _Levels(NamedTuple):
    """Weight of events and of non-events at each distinct score, ascending; (levels,) or (levels, r)."""

    positive: np.ndarray
    negative: np.ndarray


def _levels(labels: np.ndarray, scores: np.ndarray, weights: np.ndarray | None) -> _Levels:
    labels, scores = _checked(labels, scores)
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    w = np.ones(len(labels)) if weights is None else np.asarray(weights)
    w = w[order]
    event = labels[order].astype(w.dtype).reshape(-1, *[1] * (w.ndim - 1))
    of_events = w * event
    positive = np.add.reduceat(of_events, starts, axis=0)
    negative = np.add.reduceat(w - of_events, starts, axis=0)
    return _Levels(positive, negative)


def _confusion(
    labels: np.ndarray, fired: np.ndarray, weights: np.ndarray | None
) -> tuple[Any, Any, Any, Any]:
    labels, fired = _checked(labels, fired)
    w = np.ones(len(labels)) if weights is None else weights
    return (labels * fired) @ w, ((1 - labels) * fired) @ w, labels @ w, (1 - labels) @ w


def _checked(labels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels, values = np.asarray(labels, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != values.shape or not labels.size:
        raise ValueError(
            f"labels have shape {labels.shape} and scores {values.shape}; both must be (n,), n > 0"
        )
    if not np.isin(labels, (0.0, 1.0)).all():
        raise ValueError("labels must be 0 or 1")
    if np.isnan(values).any():
        raise RunError(f"{int(np.isnan(values).sum())} of {len(values)} scores are not numbers")
    return labels, values


def _ratio(numerator: Any, denominator: Any, *, empty: float = float("nan")) -> Any:
    safe = np.where(np.asarray(denominator) > 0, denominator, 1.0)
    return np.where(np.asarray(denominator) > 0, numerator / safe, empty)[()]
