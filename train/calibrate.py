"""Thresholds, temperatures and the entropy combination, all from validation examples.

Validation, not training: the heads' scores on their own training examples are far too
sure, so a temperature or a weight against entropy that was fitted there would trust
them too much. The same examples chose the checkpoint, which moves their scores only
slightly; test examples are used for nothing but the final figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from probers.entropy import SIGNALS, EntropyModel
from probers.types import RunError, UserError

RULES = ("balanced_accuracy", "f1", "accuracy", "budget")


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """How a threshold is chosen.

    Attributes:
        name: "balanced_accuracy", "f1" (of wrong texts), "accuracy", or "budget".
        budget: share of examples that fire, for "budget".
    """

    name: str = "balanced_accuracy"
    budget: float = 0.4

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise UserError(f"threshold={self.name} is unknown: choose one of {', '.join(RULES)}")
        if not 0 <= self.budget <= 1:
            raise UserError(f"budget={self.budget} is no share: give a number from 0 to 1")

    def __call__(self, wrong: np.ndarray, scores: np.ndarray) -> float:
        """The threshold (fires above it) that is best on these examples.

        Candidates lie midway between neighbouring distinct scores, and beyond both ends;
        of equally good ones the middle one is taken.

        Args:
            wrong: (n,) 1 where the text is wrong.
            scores: (n,) higher is more likely wrong.
        """
        levels, place = np.unique(scores, return_inverse=True)
        positive = np.bincount(place, weights=wrong, minlength=len(levels))
        negative = np.bincount(place, weights=1 - wrong, minlength=len(levels))
        # Candidate i keeps the levels below i from firing.
        misses, silent = (np.concatenate([[0.0], np.cumsum(x)]) for x in (positive, negative))
        hits, alarms = misses[-1] - misses, silent[-1] - silent
        with np.errstate(divide="ignore", invalid="ignore"):
            quality = {
                "balanced_accuracy": hits / misses[-1] + silent / silent[-1],
                "f1": np.nan_to_num(2 * hits / (2 * hits + alarms + misses)),
                "accuracy": hits + silent,
                "budget": -np.abs((hits + alarms) / len(scores) - self.budget),
            }[self.name]
        best = np.flatnonzero(quality >= quality.max() - 1e-12)
        edges = np.concatenate([[levels[0] - 1.0], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1.0]])
        return float(edges[best[len(best) // 2]])


def fit_temperature(wrong: np.ndarray, scores: np.ndarray) -> float:
    """The T > 0 for which sigmoid(scores / T) has the highest likelihood.

    A score that ranks the wrong way round gets a very large T, which says "I do not know".
    """
    from scipy.optimize import minimize_scalar

    unit = float(np.std(scores)) or 1.0
    sign = 1 - 2 * wrong

    def negative_log_likelihood(log_t: float) -> float:
        return float(np.logaddexp(0, sign * scores / (unit * np.exp(log_t))).mean())

    found = minimize_scalar(negative_log_likelihood, bounds=(-7.0, 7.0), method="bounded")
    return unit * float(np.exp(found.x))


def fit_probability(wrong: np.ndarray, scores: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """P(wrong) of a score of any unit, by logistic regression on it (Platt scaling)."""
    weights, mean, scale, intercept = _logistic(scores[:, None], wrong)
    return lambda s: _sigmoid((s - mean[0]) / scale[0] * weights[0] + intercept)


def fit_entropy_model(
    wrong: np.ndarray, scores: np.ndarray, signals: Mapping[str, np.ndarray], rule: ThresholdRule
) -> EntropyModel:
    """Weigh the heads' score against the entropy signals, and choose the threshold.

    Args:
        wrong: (n,) 1 where the text is wrong.
        scores: (n,) of the heads.
        signals: (n,) each of ``SIGNALS``.
        rule: chooses the threshold on the log-odds.
    """
    inputs = np.stack([scores, *(np.asarray(signals[name], dtype=float) for name in SIGNALS)], axis=1)
    weights, mean, scale, intercept = _logistic(inputs, wrong)
    log_odds = ((inputs - mean) / scale) @ weights + intercept
    return EntropyModel(
        mean=tuple(mean.tolist()), scale=tuple(scale.tolist()), weights=tuple(weights.tolist()),
        intercept=intercept, threshold=rule(wrong, log_odds),
    )  # fmt: skip


def _logistic(inputs: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Weights on standardised inputs, the standardisation and the intercept."""
    from sklearn.linear_model import LogisticRegression

    if not np.isfinite(inputs).all():
        raise RunError("a score or signal to calibrate on is not a finite number")
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    model = LogisticRegression(max_iter=1000).fit((inputs - mean) / scale, wrong)
    return model.coef_[0], mean, scale, float(model.intercept_[0])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(x / 2))
