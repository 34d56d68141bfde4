"""Calibration: the probability that a text is wrong, from its score, or from score and entropies.

All maps are fitted on validation texts, saved as plain numbers, and evaluated without the library that
fitted them. They assume the share of wrong texts there. Scores of training texts are overconfident.

``wrong`` (n,) is 1 where a text is wrong; higher ``scores`` (n,) mean more likely wrong. Fitting raises
RunError for a score that is not finite, and UserError unless there are both right and wrong texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from ..evaluation.baselines import logistic_regression, weighted_sums
from ..signals import SIGNALS
from ..types import RunError, UserError


def sigmoid(x: Any) -> np.ndarray:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1 + np.tanh(np.asarray(x, dtype=np.float64) / 2))


class _Plain:
    """A map from scores to P(wrong), of the same shape, saved under the name of its kind."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON."""
        return {"method": type(self).__name__.lower(), **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Temperature(_Plain):
    """P(wrong) = sigmoid(score / value) (Guo et al. 2017), which keeps the order, and 0.5 at score 0.

    A ``value`` above 1 means that the scores were overconfident.
    """

    value: float = 1.0

    def __call__(self, score: np.ndarray) -> np.ndarray:
        return sigmoid(np.asarray(score, dtype=np.float64) / self.value)


@dataclass(frozen=True, slots=True)
class Platt(_Plain):
    """P(wrong) = sigmoid(slope * score + intercept) (Platt 1999).

    The intercept matters for a sum over layers: each head's logit contains the prior odds of a
    wrong text, so the sum contains them once per layer.
    """

    slope: float
    intercept: float

    def __call__(self, score: np.ndarray) -> np.ndarray:
        return sigmoid(self.slope * np.asarray(score, dtype=np.float64) + self.intercept)


@dataclass(frozen=True, slots=True)
class Isotonic(_Plain):
    """P(wrong) as a rising piecewise linear function of the score (Zadrozny and Elkan 2002).

    Scores ``x`` of the knots rise; ``y`` are P(wrong) there. Beyond the first and last knot it is constant.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """Compute P(wrong) of scores, of the same shape; NaN stays NaN."""
        return np.interp(np.asarray(score, dtype=np.float64), self.x, self.y)


Calibration: TypeAlias = Temperature | Platt | Isotonic


def calibration_from_dict(value: Mapping[str, Any]) -> Calibration:
    """Invert ``to_dict`` of any kind; ValueError for another kind, TypeError for other numbers."""
    numbers = {name: tuple(n) if isinstance(n, list) else n for name, n in value.items()}
    method = numbers.pop("method")
    for kind in get_args(Calibration):
        if kind.__name__.lower() == method:
            return kind(**numbers)  # type: ignore[no-any-return]
    raise ValueError(f"calibration {method} is not temperature, platt or isotonic")


def checked(wrong: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (n,) and scores (n, ...) as float64, checked for fitting."""
    wrong, scores = np.asarray(wrong, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if len(wrong) != len(scores):
        raise ValueError(f"{len(wrong)} labels do not fit {len(scores)} scores")
    if not np.isfinite(scores).all():
        raise RunError("a score or signal to calibrate on is not a finite number")
    if not len(wrong) or wrong.min() == wrong.max():
        kind = "no" if not len(wrong) else "only wrong" if wrong[0] else "only right"
        why = f"{kind} texts among the {len(wrong)} validation examples: both are needed, use a higher limit"
        raise UserError(why, "labels")
    return wrong, scores


class Logistic(NamedTuple):
    """Log-odds of "wrong": ((inputs - mean) / scale) @ weights + intercept, with (k,) for k inputs."""

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    intercept: float

    def unscaled(self) -> tuple[np.ndarray, float]:
        """Return weights (k,) and intercept for inputs that are not standardised."""
        weights = self.weights / self.scale
        return weights, self.intercept - float(weights @ self.mean)


def fit_logistic(inputs: np.ndarray, wrong: np.ndarray) -> Logistic:
    """Fit on standardised inputs (n, k) with an L2 penalty (C = 1), so that weights stay finite."""
    wrong, inputs = checked(wrong, inputs)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    # The deviation of a constant input may not round to exactly 0.
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
    model = logistic_regression((inputs - mean) / scale, wrong)
    return Logistic(model.coef_[0], mean, scale, float(model.intercept_[0]))


def fit_platt(wrong: np.ndarray, scores: np.ndarray) -> Platt:
    """Fit by logistic regression on a score of any unit (Platt scaling).

    A score with the wrong order gets the share of wrong texts for all, which expresses no knowledge.
    """
    (slope,), intercept = fit_logistic(scores[:, None], wrong).unscaled()
    if slope < 0:
        return Platt(0.0, float(np.log(wrong.mean() / (1 - wrong.mean()))))
    return Platt(float(slope), intercept)


def fit_temperature(wrong: np.ndarray, scores: np.ndarray) -> Temperature:
    """Find the T > 0 for which sigmoid(scores / T) has the highest likelihood.

    The labels are Platt's (1999): (n + 1) / (n + 2) for n wrong texts in place of 1, and 1 / (n + 2) for n
    right ones in place of 0. Where scores separate the texts, 1 and 0 would make T vanish, and every
    probability 0 or 1. A score with the wrong order gets a very large T, which expresses no knowledge.
    """
    from scipy.optimize import minimize_scalar

    unit = float(np.sqrt(np.mean(scores**2))) or 1.0
    count = wrong.sum()
    targets = np.where(wrong > 0, (count + 1) / (count + 2), 1 / (len(wrong) - count + 2))

    def negative_log_likelihood(log_t: float) -> float:
        z = scores / (unit * np.exp(log_t))
        return float((targets * np.logaddexp(0, -z) + (1 - targets) * np.logaddexp(0, z)).mean())

    optimum = minimize_scalar(negative_log_likelihood, bounds=(-7.0, 7.0), method="bounded")
    return Temperature(unit * float(np.exp(optimum.x)))


def fit_isotonic(wrong: np.ndarray, scores: np.ndarray) -> Isotonic:
    """Fit isotonic regression, with values between 1 / (n + 2) and (n + 1) / (n + 2).

    Beyond its last error the fit would give 0 and 1, which n examples cannot show: the bounds are those of
    the rule of succession after n examples without an exception. Any other share is farther from 0 and 1.
    """
    from sklearn.isotonic import IsotonicRegression

    least = 1 / (len(wrong) + 2)
    model = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(scores, wrong)
    return Isotonic(tuple(model.X_thresholds_.tolist()), tuple(model.y_thresholds_.tolist()))


_FITS: dict[str, Callable[[np.ndarray, np.ndarray], Calibration]] = {
    "platt": fit_platt, "temperature": fit_temperature, "isotonic": fit_isotonic,
}  # fmt: skip
CALIBRATIONS = tuple(_FITS)


def fit_calibration(kind: str, wrong: np.ndarray, scores: np.ndarray) -> Calibration:
    """Fit the map of a kind from :data:`CALIBRATIONS`."""
    return _FITS[kind](*checked(wrong, scores))


@dataclass(frozen=True, slots=True)
class EntropyModel:
    """A logistic model over the heads' score and further ``signals``, in the order of score, then these.

    They are the entropy signals, or what is known of a question before a retrieval is read. ``mean`` and
    ``scale`` standardise the inputs; log-odds of "wrong" above ``threshold`` fire.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float
    threshold: float
    signals: tuple[str, ...] = SIGNALS

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON, with the inputs named."""
        numbers = asdict(self)
        return {"inputs": ["score", *numbers.pop("signals")], **numbers}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> EntropyModel:
        """Invert :meth:`to_dict`."""
        numbers: dict[str, Any] = {k: tuple(n) if isinstance(n, list) else n for k, n in value.items()}
        _, *signals = numbers.pop("inputs")
        return cls(**numbers, signals=tuple(signals))

    def __call__(self, score: np.ndarray, signals: Mapping[str, Any]) -> np.ndarray:
        """Compute log-odds (n,) of "wrong"; RunError for a missing signal, a wrong length or NaN."""
        columns = [np.asarray(score, dtype=np.float64)]
        for name in self.signals:
            if name not in signals:
                needed = ", ".join(self.signals)
                raise RunError(f"the signal {name} is absent: the entropy model needs {needed}")
            columns.append(np.atleast_1d(np.asarray(signals[name], dtype=np.float64)))
            if columns[-1].shape != columns[0].shape or not np.isfinite(columns[-1]).all():
                raise RunError(f"the signal {name} has a wrong length or a value that is not a number")
        z = (np.stack(columns, axis=1) - self.mean) / self.scale
        return weighted_sums(z, self.weights) + self.intercept


def fit_entropy_model(
    wrong: np.ndarray, scores: np.ndarray, signals: Mapping[str, np.ndarray],
    rule: Callable[[np.ndarray, np.ndarray], float],
) -> EntropyModel:  # fmt: skip
    """Weigh the heads' scores against ``signals`` (n,) each; ``rule`` chooses the log-odds' threshold."""
    inputs = np.stack([scores, *(np.asarray(values, dtype=float) for values in signals.values())], axis=1)
    fitted = fit_logistic(inputs, wrong)
    mean, scale, weights = (tuple(v.tolist()) for v in (fitted.mean, fitted.scale, fitted.weights))
    model = EntropyModel(mean, scale, weights, fitted.intercept, 0.0, tuple(signals))
    return replace(model, threshold=rule(wrong, model(scores, signals)))
