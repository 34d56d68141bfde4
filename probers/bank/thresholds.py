"""Decision thresholds by name, chosen on validation examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import RunError, UserError

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
            raise UserError(f"threshold={self} is unknown: choose one of {listed}")
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
            "both kinds, make the store with a higher limit"
        )
    return wrong, scores
