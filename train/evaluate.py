"""Test figures of every detector, with bootstrap intervals clustered by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from probers import metrics
from probers.bootstrap import Bootstrap, Interval, Metric

from .calibrate import ThresholdRule, fit_probability
from .controls import Detector
from .data import Examples

Figures = dict[str, Any]


class Evaluator:
    """Figures on the test examples; the resamples are drawn once and shared.

    Args:
        examples: rows, labels and splits.
        rule: chooses the threshold of detectors that bring none, on validation.
        resamples: bootstrap resamples.
        seed: of the resamples.
    """

    def __init__(self, examples: Examples, rule: ThresholdRule, *, resamples: int, seed: int) -> None:
        self._examples, self._rule = examples, rule
        self._resamples, self._seed = resamples, seed
        self._test = examples.rows["test"]
        self._wrong = examples.wrong[self._test]
        self.bootstrap = self._resample(self._test)

    def figures(self, detector: Detector) -> Figures:
        """Every figure with its 95% interval under ``<name>_ci``; null where it is undefined.

        AUROC, AUPRC with its base rate, PRR and recall at 10% false positives need the
        scores only; accuracy and F1 (of wrong texts) the threshold; Brier and ECE the
        calibrated probability.
        """
        detector = self.calibrated(detector)
        assert detector.probability is not None and detector.threshold is not None
        scores, wrong = detector.scores[self._test], self._labels(detector)[self._test]
        fired = (scores > detector.threshold).astype(float)
        probability = detector.probability(scores)
        ranking: dict[str, Metric] = {
            "auroc": metrics.auroc, "auprc": metrics.auprc, "prr": metrics.prr,
            "recall_at_fpr10": metrics.recall_at_fpr,
        }  # fmt: skip
        found: dict[str, Interval | None] = {}
        constant = np.ptp(scores) == 0  # a constant ranks nothing, so these would say nothing
        for name, metric in ranking.items():
            found[name] = None if constant else self.bootstrap.interval(scores, partial(metric, wrong))
        for name, metric, values in (
            ("accuracy", metrics.accuracy, fired), ("balanced_accuracy", metrics.balanced_accuracy, fired),
            ("f1", metrics.f1_detection, fired), ("brier", metrics.brier, probability),
            ("ece", metrics.ece, probability),
        ):  # fmt: skip
            found[name] = self.bootstrap.interval(values, partial(metric, wrong))
        plain = {k: v for name, interval in found.items() for k, v in as_figures(name, interval).items()}
        return plain | {
            "base_rate": float(wrong.mean()), "fired": float(fired.mean()),
            "threshold": float(detector.threshold), "about": detector.about,
        }  # fmt: skip

    def calibrated(self, detector: Detector) -> Detector:
        """The detector with threshold and probability, from validation where it has none."""
        rows = self._examples.rows["validation"]
        wrong, scores = self._labels(detector)[rows], detector.scores[rows]
        threshold, probability = detector.threshold, detector.probability
        return replace(
            detector,
            threshold=self._rule(wrong, scores) if threshold is None else threshold,
            probability=fit_probability(wrong, scores) if probability is None else probability,
        )

    def by_condition(self, detectors: Sequence[Detector]) -> dict[str, Figures]:
        """AUROC of every detector within each condition (closed book, with passages, ...)."""
        if "condition" not in self._examples.table:
            return {}
        conditions = self._examples.column("condition", "test")
        found: dict[str, Figures] = {}
        for condition in sorted(set(conditions)):
            rows = self._test[conditions == condition]
            wrong = self._examples.wrong[rows]
            entry: Figures = {"n": len(rows), "base_rate": float(wrong.mean()), "detectors": {}}
            bootstrap = self._resample(rows)
            for detector in detectors:
                scores = detector.scores[rows]
                if np.ptp(scores) > 0:
                    interval = bootstrap.interval(scores, partial(metrics.auroc, wrong))
                    entry["detectors"][detector.name] = as_figures("auroc", interval)
            found[condition] = entry
        return found

    def pairs(self, ours: Sequence[Detector], others: Sequence[Detector]) -> dict[str, Figures]:
        """Differences in AUROC, each detector of ``ours`` minus each of ``others``, paired."""
        metric = partial(metrics.auroc, self._wrong)
        found: dict[str, Figures] = {}
        for a in ours:
            for b in others:
                if np.ptp(b.scores[self._test]) == 0:
                    continue
                d = self.bootstrap.difference(a.scores[self._test], b.scores[self._test], metric)
                ci = None if np.isnan(d.low) else [d.low, d.high]
                found[f"{a.name} vs {b.name}"] = {"auroc": {"diff": d.value, "ci95": ci}}
        return found

    def _labels(self, detector: Detector) -> np.ndarray:
        return self._examples.wrong if detector.wrong is None else detector.wrong

    def _resample(self, rows: np.ndarray) -> Bootstrap:
        groups = self._examples.table["group"].to_numpy()[rows]
        return Bootstrap(groups, resamples=self._resamples, seed=self._seed)


def as_figures(name: str, interval: Interval | None) -> Figures:
    """``{name: value, name_ci: [low, high]}``, null where undefined."""
    if interval is None or np.isnan(interval.value):
        return {name: None, f"{name}_ci": None}
    bounds = None if np.isnan(interval.low) else [interval.low, interval.high]
    return {name: interval.value, f"{name}_ci": bounds}


def split_sizes(examples: Examples) -> dict[str, Mapping[str, Any]]:
    """Examples, groups and share of wrong texts per split."""
    return {
        split: {
            "n": len(rows),
            "groups": int(examples.table["group"].iloc[rows].nunique()),
            "wrong": float(examples.wrong[rows].mean()),
        }
        for split, rows in examples.rows.items()
    }
