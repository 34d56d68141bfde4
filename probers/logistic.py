"""Logistic regression of "wrong" on scores: Platt scaling of one, weights of several."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .calibration import Platt
from .thresholds import checked


class Logistic(NamedTuple):
    """Log-odds of "wrong": ((inputs - mean) / scale) @ weights + intercept, with k inputs.

    Attributes:
        weights: (k,) of the standardised inputs.
        mean, scale: (k,) of the standardisation.
    """

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    intercept: float


def fit_logistic(inputs: np.ndarray, wrong: np.ndarray) -> Logistic:
    """Fit with scikit-learn's L2 penalty (C = 1) on standardised inputs.

    The penalty keeps the weights finite where the inputs separate the examples.

    Args:
        inputs: (n, k).
        wrong: (n,) 1 where the text is wrong.

    Raises:
        RunError: an input that is no number.
        UserError: wrong texts only, or none.
    """
    from sklearn.linear_model import LogisticRegression

    wrong, inputs = checked(wrong, inputs)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    # A constant input's deviation need not round to exactly 0.
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
    model = LogisticRegression(max_iter=1000).fit((inputs - mean) / scale, wrong)
    return Logistic(model.coef_[0], mean, scale, float(model.intercept_[0]))


def fit_platt(wrong: np.ndarray, scores: np.ndarray) -> Platt:
    """P(wrong) of a score of any unit, by logistic regression on it (Platt scaling).

    Args:
        wrong: (n,) 1 where the text is wrong.
        scores: (n,) higher is more likely wrong.

    Raises:
        RunError, UserError: as :func:`fit_logistic`.
    """
    weights, mean, scale, intercept = fit_logistic(scores[:, None], wrong)
    slope = float(weights[0] / scale[0])
    return Platt(slope, intercept - slope * float(mean[0]))
