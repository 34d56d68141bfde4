"""Calibration: the probability that a text is wrong from its score, or from score and entropies.

All maps are fitted on validation texts (:mod:`probers.bank.fitting`), saved with the
prober as plain numbers, and evaluated without the library that fitted them. They
hold for the share of wrong texts there, and are no better than the examples they saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..evaluation.baselines import logistic_regression
from ..options import check_record, shown
from ..types import RunError, UserError
from ..uncertainty import SIGNALS


def sigmoid(x: Any) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(np.asarray(x, dtype=np.float64) / 2))


class _Plain:
    """A dataclass of numbers that is saved under the name of its kind."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return {"method": type(self).__name__.lower(), **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Temperature(_Plain):
    """P(wrong) = sigmoid(score / value) (Guo et al. 2017): keeps the order, and 0.5 at score 0.

    Attributes:
        value: above 0; above 1 the scores were too sure.

    Raises:
        ValueError: not a positive number.
    """

    value: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.value < np.inf:
            raise ValueError(f"a temperature must be a number above 0, not {self.value}")

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """P(wrong) of scores, of the same shape."""
        return sigmoid(np.asarray(score, dtype=np.float64) / self.value)


@dataclass(frozen=True, slots=True)
class Platt(_Plain):
    """P(wrong) = sigmoid(slope * score + intercept) (Platt 1999).

    The intercept matters to a sum over layers: each head's logit holds the prior odds of a
    wrong text, and the sum holds them once per layer.

    Raises:
        ValueError: a slope or an intercept that is no number.
    """

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        if not np.isfinite([self.slope, self.intercept]).all():
            raise ValueError("slope and intercept of a calibration must be finite")

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """P(wrong) of scores, of the same shape."""
        return sigmoid(self.slope * np.asarray(score, dtype=np.float64) + self.intercept)


@dataclass(frozen=True, slots=True)
class Isotonic(_Plain):
    """P(wrong) as a rising piecewise linear function of the score (Zadrozny and Elkan 2002).

    Beyond the first and last knot it is constant. Its values stay within what the number of
    examples can support, see :func:`probers.bank.fitting.fit_calibration`.

    Attributes:
        x: scores of the knots, rising.
        y: P(wrong) there, rising or level, above 0 and below 1.

    Raises:
        ValueError: knots that are none of this.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.asarray(self.x, dtype=np.float64), np.asarray(self.y, dtype=np.float64)
        if not len(x) or x.shape != y.shape or not (np.isfinite(x).all() and np.isfinite(y).all()):
            raise ValueError("isotonic calibration needs as many finite x as y, and one at least")
        if (np.diff(x) <= 0).any() or (np.diff(y) < 0).any() or y[0] <= 0 or y[-1] >= 1:
            raise ValueError("isotonic calibration needs rising x, and rising y between 0 and 1")

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """P(wrong) of scores, of the same shape; NaN stays NaN."""
        return np.interp(np.asarray(score, dtype=np.float64), self.x, self.y)


Calibration: TypeAlias = Temperature | Platt | Isotonic


def calibration_from_dict(value: Mapping[str, Any]) -> Calibration:
    """Inverse of ``to_dict`` of any kind.

    Raises:
        ValueError, UserError: damaged.
    """
    numbers = dict(value)
    method = numbers.pop("method", None)
    kinds: dict[str, Any] = {kind.__name__.lower(): kind for kind in (Temperature, Platt, Isotonic)}
    if not isinstance(method, str) or method not in kinds:
        raise ValueError(f"calibration {shown(method)} is not temperature, platt or isotonic")
    check_record(kinds[method], numbers, "calibration.")
    return kinds[method](**{name: tuple(n) if isinstance(n, list) else n for name, n in numbers.items()})


def checked(wrong: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) and scores (n, ...) as float64, fit to be learned from."""
    wrong, scores = np.asarray(wrong, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if len(wrong) != len(scores):
        raise ValueError(f"{len(wrong)} labels do not fit {len(scores)} scores")
    if not np.isfinite(scores).all():
        raise RunError("a score or signal to calibrate on is not a finite number")
    if not len(wrong) or wrong.min() == wrong.max():
        kind = "no" if not len(wrong) else "only wrong" if wrong[0] else "only right"
        raise UserError(
            f"{kind} texts among the {len(wrong)} validation examples: thresholds and calibration need "
            "both kinds, make the store with a higher limit",
            code="labels",
        )
    return wrong, scores


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
    wrong, inputs = checked(wrong, inputs)
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    # A constant input's deviation need not round to exactly 0.
    scale = np.where(scale > 1e-12 * np.abs(mean), scale, 1.0)
    model = logistic_regression((inputs - mean) / scale, wrong)
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


@dataclass(frozen=True, slots=True)
class EntropyModel:
    """A logistic model over the heads' score and the entropy signals.

    Attributes:
        mean, scale: per input, in the order of score, then SIGNALS.
        weights: of the standardised inputs; the result is the log-odds of "wrong".
        intercept: of the same.
        threshold: fires when the log-odds exceed it.
    """

    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    intercept: float
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON, with the inputs named."""
        return {"inputs": ["score", *SIGNALS], **asdict(self)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> EntropyModel:
        """Inverse of :meth:`to_dict`.

        Raises:
            UserError: other inputs than this version's, or fields that are none of its.
        """
        numbers: dict[str, Any] = dict(value)
        inputs = ["score", *SIGNALS]
        if numbers.pop("inputs", None) != inputs:
            raise UserError(
                f"the prober's entropy model is not over {', '.join(SIGNALS)}: train it again", code="damaged"
            )
        check_record(cls, numbers, "entropy_model.")
        vectors: dict[str, Any] = {name: tuple(numbers.pop(name)) for name in ("mean", "scale", "weights")}
        if any(len(vector) != len(inputs) for vector in vectors.values()) or 0 in vectors["scale"]:
            raise UserError(
                f"the prober's entropy model has not one number for each of its {len(inputs)} inputs",
                code="damaged",
            )
        return cls(**vectors, **numbers)

    def __call__(self, score: np.ndarray, signals: Mapping[str, Any]) -> np.ndarray:
        """Log-odds (n,) that the text is wrong.

        Raises:
            RunError: a signal is absent, of another length or not a number.
        """
        columns = [np.asarray(score, dtype=np.float64)]
        for name in SIGNALS:
            if name not in signals:
                raise RunError(
                    f"the signal {name} is absent: the prober with entropy needs {', '.join(SIGNALS)}"
                )
            columns.append(np.atleast_1d(np.asarray(signals[name], dtype=np.float64)))
            if columns[-1].shape != columns[0].shape or not np.isfinite(columns[-1]).all():
                raise RunError(f"the signal {name} has a wrong length or a value that is no number")
        z = (np.stack(columns, axis=1) - self.mean) / self.scale
        return z @ np.asarray(self.weights) + self.intercept
