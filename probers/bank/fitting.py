"""Thresholds, calibrations, ensembles and the entropy combination, all fitted on validation examples.

Not on training examples: the heads' scores there are far too sure, and so would be whatever is fitted on
them. The validation examples also chose the checkpoint, which moves their scores only slightly; test examples
are used for nothing but the final figures.

``wrong`` (n,) is 1 where a text is wrong; higher scores mean more likely wrong. All functions raise
RunError for a score that is not finite, and UserError unless there are both right and wrong texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..evaluation.metrics import auroc
from ..types import UserError
from ..uncertainty import SIGNALS
from .calibration import Calibration, EntropyModel, Isotonic, Temperature, checked, fit_logistic, fit_platt
from .ensemble import Ensemble

#: Threshold rules, and what the number after the name means where there is one.
RULES: dict[str, str | None] = {
    "balanced_accuracy": None,
    "f1": None,
    "accuracy": None,
    "budget": "the share of texts that fire, from 0 to 1, as in budget=0.4",
    "recall_at_fpr": "the highest share of right texts that may fire, from 0 to 1, as in recall_at_fpr=0.1",
    "cost": "the price of a missed wrong text where a false alarm costs 1, above 0, as in cost=5",
}


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """How a threshold is chosen.

    Attributes:
        name: "balanced_accuracy", "f1" (of wrong texts), "accuracy"; "budget", a share of texts
            that fire; "recall_at_fpr", the highest recall among thresholds whose false positive
            rate is low enough; "cost", the lowest price of misses and false alarms together.
        value: the number that the last three need.

    Raises:
        UserError: an unknown name, or a value that is absent, superfluous or out of range.
    """

    name: str = "balanced_accuracy"
    value: float | None = None

    def __post_init__(self) -> None:
        if self.name not in RULES:
            listed = ", ".join(name if meaning is None else f"{name}=.." for name, meaning in RULES.items())
            raise UserError(f"threshold={self} is unknown: choose one of {listed}", code="unknown-choice")
        meaning = RULES[self.name]
        if meaning is None and self.value is not None:
            raise UserError(f"threshold={self}: {self.name} takes no number, write threshold={self.name}")
        value = np.nan if self.value is None else self.value
        if meaning is not None and not (0 < value < np.inf if self.name == "cost" else 0 <= value <= 1):
            raise UserError(f"threshold={self}: {self.name} needs {meaning}")

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name}={self.value:g}"

    @classmethod
    def parse(cls, text: str) -> ThresholdRule:
        """A rule as it is typed: ``f1``, ``budget=0.4``.

        Raises:
            UserError: not understood; lists the choices.
        """
        name, equals, number = str(text).partition("=")
        if not equals:
            return cls(name.strip())
        try:
            return cls(name.strip(), float(number))
        except ValueError:
            raise UserError(f"threshold={text}: {number.strip()!r} is no number") from None

    def __call__(self, wrong: np.ndarray, scores: np.ndarray) -> float:
        """The threshold (fires above it) that is best on these examples.

        Candidates lie midway between neighbouring distinct scores, and beyond both ends;
        of equally good ones the middle one is taken.

        Args:
            wrong: (n,) 1 where the text is wrong.
            scores: (n,) higher is more likely wrong.

        Raises:
            RunError: a score that is no number.
            UserError: wrong texts only, or none.
        """
        wrong, scores = checked(wrong, scores)
        levels, place = np.unique(scores, return_inverse=True)
        positive = np.bincount(place, weights=wrong, minlength=len(levels))
        negative = np.bincount(place, weights=1 - wrong, minlength=len(levels))
        # Candidate i keeps the levels below i from firing.
        misses, silent = (np.concatenate([[0.0], np.cumsum(x)]) for x in (positive, negative))
        quality = self._quality(misses, silent)
        best = np.flatnonzero(quality >= quality.max() - 1e-12)
        edges = np.concatenate([[levels[0] - 1.0], (levels[1:] + levels[:-1]) / 2, [levels[-1] + 1.0]])
        # Between neighbouring floats there is nothing midway; the lower one then is right.
        edges[:-1] = np.minimum(edges[:-1], np.nextafter(levels, -np.inf))
        return float(edges[best[len(best) // 2]])

    def _quality(self, misses: np.ndarray, silent: np.ndarray) -> np.ndarray:
        """What is to be highest, of every candidate; from the wrong and right texts that do not fire."""
        wrong, right = misses[-1], silent[-1]
        hits, alarms = wrong - misses, right - silent
        value = 0.0 if self.value is None else self.value
        if self.name == "f1":
            return 2 * hits / (hits + alarms + wrong)
        if self.name == "accuracy":
            return hits + silent
        if self.name == "budget":
            return -np.abs((hits + alarms) / (wrong + right) - value)
        if self.name == "cost":
            return -(value * misses + alarms) / (value * wrong + right)
        if self.name == "recall_at_fpr":
            # Among equal recalls the one with the fewest false alarms, which weigh less than a hit.
            allowed = alarms <= value * right + 1e-9
            return np.where(allowed, hits - alarms / (right + 1), -np.inf)
        return hits / wrong + silent / right


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
        raise UserError(
            f"calibration={kind} is unknown: choose one of {', '.join(CALIBRATIONS)}", code="unknown-choice"
        )
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
