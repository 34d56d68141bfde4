"""Calibration, ensembles and the entropy combination, all from validation examples.

Validation, not training: the heads' scores on their own training examples are far too
sure, so whatever was fitted there would trust them too much. The same examples chose the
checkpoint, which moves their scores only slightly; test examples are used for nothing but
the final figures.

``wrong`` (n,) is 1 where a text is wrong; of a score, higher is more likely wrong. All raise
RunError for a score that is no number, and UserError for wrong texts only, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from probers.bank.calibration import (
    Calibration,
    EntropyModel,
    Isotonic,
    Temperature,
    fit_logistic,
    fit_platt,
)
from probers.bank.ensemble import Ensemble
from probers.bank.thresholds import ThresholdRule, checked
from probers.evaluation.metrics import auroc
from probers.types import UserError
from probers.uncertainty import SIGNALS

CALIBRATIONS = ("platt", "temperature", "isotonic")


def fit_calibration(kind: str, wrong: np.ndarray, scores: np.ndarray) -> Calibration:
    """The map from scores to P(wrong) with the highest likelihood, or the least squared error.

    Isotonic regression says 0 and 1 of the scores beyond the last error it saw, which n
    examples cannot show. Its values are kept between 1 / (n + 2) and (n + 1) / (n + 2),
    what the rule of succession says after n examples without one exception: all that is
    moved is 0 and 1, since any other share among n examples is farther from both.

    Args:
        kind: one of ``CALIBRATIONS``; another is a UserError.
        wrong: as above.
        scores: (n,).
    """
    if kind not in CALIBRATIONS:
        raise UserError(f"calibration={kind} is unknown: choose one of {', '.join(CALIBRATIONS)}")
    wrong, scores = checked(wrong, scores)
    if kind == "temperature":
        return Temperature(fit_temperature(wrong, scores))
    if kind == "platt":
        return fit_platt(wrong, scores)
    from sklearn.isotonic import IsotonicRegression

    least = 1 / (len(wrong) + 2)
    model = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(scores, wrong)
    return Isotonic(tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))


def fit_temperature(wrong: np.ndarray, scores: np.ndarray) -> float:
    """The T > 0 for which sigmoid(scores / T), of scores (n,), has the highest likelihood.

    A score that ranks the wrong way round gets a very large T, which says "I do not know".
    """
    from scipy.optimize import minimize_scalar

    wrong, scores = checked(wrong, scores)
    unit = float(np.sqrt(np.mean(scores**2))) or 1.0
    sign = 1 - 2 * wrong

    def negative_log_likelihood(log_t: float) -> float:
        return float(np.logaddexp(0, sign * scores / (unit * np.exp(log_t))).mean())

    found = minimize_scalar(negative_log_likelihood, bounds=(-7.0, 7.0), method="bounded")
    return unit * float(np.exp(found.x))


def fit_ensemble(kind: str, margins: np.ndarray, wrong: np.ndarray, *, k: int = 3) -> Ensemble:
    """How the layers' margins become one score.

    "best" takes the layers with the highest AUROC, of equal ones the lower. "stacked" is a
    logistic model over the standardised margins with scikit-learn's L2 penalty (C = 1), so
    that layers which say the same share the weight; standardisation is folded into it.

    Args:
        kind: "logits", "probabilities", "best" or "stacked"; another is a UserError.
        margins: (n, layers).
        wrong: as above.
        k: how many layers "best" takes, all where there are fewer; below 1 is a UserError.
    """
    layers = margins.shape[1]
    if kind == "best":
        if k < 1:
            raise UserError(f"best_k={k} must be at least 1: the number of layers to average")
        wrong, margins = checked(wrong, margins)
        quality = np.array([auroc(wrong, column) for column in margins.T])
        chosen = np.argsort(-quality, kind="stable")[:k]
        weights = np.zeros(layers)
        weights[chosen] = 1 / len(chosen)
        return Ensemble("best", tuple(weights.tolist()))
    if kind == "stacked":
        weights, mean, scale, intercept = fit_logistic(margins, wrong)
        weights = weights / scale
        return Ensemble("stacked", tuple(weights.tolist()), intercept - float(weights @ mean))
    return Ensemble(kind).over(layers)  # type: ignore[arg-type]


def fit_entropy_model(
    wrong: np.ndarray, scores: np.ndarray, signals: Mapping[str, np.ndarray], rule: ThresholdRule
) -> EntropyModel:
    """Weigh the heads' score against the entropy signals, and choose the threshold.

    Args:
        wrong: as above.
        scores: (n,) of the heads.
        signals: (n,) each of ``SIGNALS``.
        rule: chooses the threshold on the log-odds.
    """
    inputs = np.stack([scores, *(np.asarray(signals[name], dtype=float) for name in SIGNALS)], axis=1)
    weights, mean, scale, intercept = fit_logistic(inputs, wrong)
    model = EntropyModel(
        tuple(mean.tolist()), tuple(scale.tolist()), tuple(weights.tolist()), intercept, threshold=0.0
    )
    return replace(model, threshold=rule(wrong, model(scores, signals)))
