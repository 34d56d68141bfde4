"""From a score to the probability that a text is wrong.

All maps are fitted on validation texts (:mod:`probers.train.calibrate`), saved with the
prober as plain numbers, and evaluated here without the library that fitted them. They
hold for the share of wrong texts there, and are no better than the examples they saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


def sigmoid(x: Any) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(np.asarray(x, dtype=np.float64) / 2))


@dataclass(frozen=True, slots=True)
class Temperature:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return {"method": "temperature", "value": self.value}


@dataclass(frozen=True, slots=True)
class Platt:
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

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return {"method": "platt", "slope": self.slope, "intercept": self.intercept}


@dataclass(frozen=True, slots=True)
class Isotonic:
    """P(wrong) as a rising piecewise linear function of the score (Zadrozny and Elkan 2002).

    Beyond the first and last knot it is constant. Its values stay within what the number of
    examples can support, see :func:`probers.train.calibrate.fit_calibration`.

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

    def to_dict(self) -> dict[str, Any]:
        """Plain containers for JSON."""
        return {"method": "isotonic", "x": list(self.x), "y": list(self.y)}


Calibration: TypeAlias = Temperature | Platt | Isotonic


def calibration_from_dict(value: Mapping[str, Any]) -> Calibration:
    """Inverse of ``to_dict`` of any kind.

    Raises:
        KeyError, TypeError, ValueError: damaged.
    """
    if value["method"] == "temperature":
        return Temperature(float(value["value"]))
    if value["method"] == "platt":
        return Platt(float(value["slope"]), float(value["intercept"]))
    if value["method"] == "isotonic":
        return Isotonic(tuple(map(float, value["x"])), tuple(map(float, value["y"])))
    raise ValueError(f"calibration {value['method']!r} is none of temperature, platt and isotonic")
