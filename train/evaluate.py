"""Test figures of every detector, with intervals clustered by group, as ``metrics.json`` holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from probers.bank.calibration import fit_platt, sigmoid
from probers.bank.thresholds import ThresholdRule
from probers.evaluation import metrics
from probers.evaluation.bootstrap import Bootstrap, Interval

from .controls import ENSEMBLE, SHUFFLED, WITH_ENTROPY, Detector
from .data import Examples

if TYPE_CHECKING:
    from .assemble import Trained

Figures = dict[str, Any]

#: Figures of the order of the scores, of the decisions, and of the probabilities.
_RANKING = ("auroc", "auprc", "prr", "recall_at_fpr10")
_DECISIONS = ("accuracy", "balanced_accuracy", "f1")
_PROBABILITIES = ("brier", "ece")


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
        calibrated probability. A resample's bins are noisier than the texts' own, so the
        interval of a small ECE lies a little high and may pass the figure itself.
        """
        return self._figures(self.calibrated(detector), self._test, self.bootstrap)

    def calibrated(self, detector: Detector) -> Detector:
        """The detector with threshold and probability, from validation where it has none."""
        rows = self._examples.rows["validation"]
        wrong, scores = self._labels(detector)[rows], detector.scores[rows]
        threshold, probability = detector.threshold, detector.probability
        return replace(
            detector,
            threshold=self._rule(wrong, scores) if threshold is None else threshold,
            probability=fit_platt(wrong, scores) if probability is None else probability,
        )

    def by(
        self, column: str, detectors: Sequence[Detector], overall: Mapping[str, Figures]
    ) -> dict[str, Figures]:
        """Every figure of every detector on the test examples of each value of a column.

        Thresholds and probabilities stay those of all examples: a value gets no calibration
        of its own.

        Args:
            column: e.g. "condition" or "dataset"; one that the store lacks gives nothing.
            detectors: measured against the true labels.
            overall: their figures on all test examples by name, taken where there is one value only.

        Returns:
            Value -> ``{"n", "groups", "base_rate", "detectors": {name: figures}}``.
        """
        if column not in self._examples.table:
            return {}
        values = self._examples.column(column, "test")
        kinds = sorted(set(values))
        calibrated = [self.calibrated(detector) for detector in detectors] if len(kinds) > 1 else []
        found: dict[str, Figures] = {}
        for kind in kinds:
            rows = self._test[values == kind]
            found[str(kind)] = {
                "n": len(rows),
                "groups": len(set(self._groups(rows))),
                "base_rate": float(self._examples.wrong[rows].mean()),
                "detectors": {d.name: overall[d.name] for d in detectors},
            }
            if calibrated:
                bootstrap = self._resample(rows)
                found[str(kind)]["detectors"] = {
                    d.name: self._figures(d, rows, bootstrap) for d in calibrated
                }
        return found

    def pairs(self, ours: Sequence[Detector], others: Sequence[Detector]) -> dict[str, Figures]:
        """Differences in AUROC, each detector of ``ours`` minus each of ``others``, paired."""

        def auroc(scores: np.ndarray, weights: np.ndarray) -> list[Any]:
            return [metrics.auroc(self._wrong, scores, weights)]

        sure = [d for d in (*ours, *others) if np.ptp(d.scores[self._test]) > 0]
        drawn = {id(d): self.bootstrap.samples(d.scores[self._test], auroc) for d in sure}
        found: dict[str, Figures] = {}
        for a in ours:
            for b in others:
                if id(a) not in drawn or id(b) not in drawn:
                    continue  # a constant ranks nothing
                (value_a, in_a), (value_b, in_b) = drawn[id(a)], drawn[id(b)]
                d = self.bootstrap.interval_of(value_a[0] - value_b[0], (in_a - in_b)[0])
                ci = None if np.isnan(d.low) else [d.low, d.high]
                found[f"{a.name} vs {b.name}"] = {"auroc": {"diff": d.value, "ci95": ci}}
        return found

    def probabilities(self, probability: np.ndarray) -> Figures:
        """ECE and Brier score of P(wrong) (n,) of the test examples, with intervals."""
        return self._of_probabilities(self._wrong, probability, self.bootstrap)

    def _figures(self, detector: Detector, rows: np.ndarray, bootstrap: Bootstrap) -> Figures:
        assert detector.probability is not None and detector.threshold is not None
        scores, wrong = detector.scores[rows], self._labels(detector)[rows]
        fired = (scores > detector.threshold).astype(float)
        found: Figures = {}
        if np.ptp(scores) == 0:  # a constant ranks nothing, so these would say nothing
            found |= {k: v for name in _RANKING for k, v in as_figures(name, None).items()}
        else:
            ranked = bootstrap.intervals(scores, lambda s, w: metrics.ranking(wrong, s, w))
            found |= _named(_RANKING, ranked)

        def decisions(f: np.ndarray, w: np.ndarray) -> list[Any]:
            w = w.astype(np.float64, copy=False)  # once for all three
            return [
                m(wrong, f, w) for m in (metrics.accuracy, metrics.balanced_accuracy, metrics.f1_detection)
            ]

        found |= _named(_DECISIONS, bootstrap.intervals(fired, decisions))
        found |= self._of_probabilities(wrong, detector.probability(scores), bootstrap)
        return found | {
            "base_rate": float(wrong.mean()), "fired": float(fired.mean()),
            "threshold": float(detector.threshold), "about": detector.about,
        }  # fmt: skip

    @staticmethod
    def _of_probabilities(wrong: np.ndarray, probability: np.ndarray, bootstrap: Bootstrap) -> Figures:
        def both(p: np.ndarray, w: np.ndarray) -> list[Any]:
            w = w.astype(np.float64, copy=False)
            return [metrics.brier(wrong, p, w), metrics.ece(wrong, p, w)]

        return _named(_PROBABILITIES, bootstrap.intervals(probability, both))

    def _labels(self, detector: Detector) -> np.ndarray:
        return self._examples.wrong if detector.wrong is None else detector.wrong

    def _groups(self, rows: np.ndarray) -> np.ndarray:
        return self._examples.table["group"].to_numpy()[rows]

    def _resample(self, rows: np.ndarray) -> Bootstrap:
        return Bootstrap(self._groups(rows), resamples=self._resamples, seed=self._seed)


def _named(names: Sequence[str], intervals: Sequence[Interval]) -> Figures:
    return {k: v for n, i in zip(names, intervals, strict=True) for k, v in as_figures(n, i).items()}


def as_figures(name: str, interval: Interval | None) -> Figures:
    """``{name: value, name_ci: [low, high]}``, null where undefined."""
    if interval is None or np.isnan(interval.value):
        return {name: None, f"{name}_ci": None}
    return {name: interval.value, f"{name}_ci": interval.limits}


def split_sizes(examples: Examples) -> dict[str, Mapping[str, Any]]:
    """Examples, groups, share of wrong texts and examples per dataset of each split."""
    found: dict[str, Mapping[str, Any]] = {}
    for split, rows in examples.rows.items():
        part = examples.table.iloc[rows]
        named = part["dataset"].value_counts().sort_index() if "dataset" in part else {}
        found[split] = {
            "n": len(rows),
            "groups": int(part["group"].nunique()),
            "wrong": float(examples.wrong[rows].mean()),
            "datasets": {str(name): int(count) for name, count in dict(named).items()},
        }
    return found


_SCHEMA = 1


def summarise(
    trained: Trained, examples: Examples, evaluator: Evaluator, training: Mapping[str, Any]
) -> dict[str, Any]:
    """All test figures, ready for JSON.

    ``layers`` is a list of ``{"site", "layer", "validation": {..}, "auroc", "auroc_ci", ..,
    "seeds"}``; every entry of ``ensembles`` and ``controls``, ``ensemble`` (the saved one),
    ``with_entropy``, and every detector within ``conditions`` and ``datasets`` has the same
    figures. ``pairs`` are paired differences in AUROC; ``calibration`` is of the saved score.

    Args:
        trained: the prober and everything it is compared with.
        examples: rows and splits.
        evaluator: of these examples.
        training: figures of the training itself (steps, heads, ..), passed on.
    """
    bar = tqdm(total=_detectors(trained), desc="test figures", unit="detector", leave=False)

    def figures(detector: Detector) -> Figures:
        found = evaluator.figures(detector)
        bar.update()
        return found

    layers = {column: figures(detector) for column, detector in trained.layers.items()}
    ensembles = {kind: figures(detector) for kind, detector in trained.ensembles.items()}
    saved = replace(trained.ensembles[trained.bank.combine], name=ENSEMBLE)
    ours, overall = [saved], {ENSEMBLE: ensembles[trained.bank.combine]}
    if trained.with_entropy is not None:
        ours.append(replace(trained.with_entropy, name=WITH_ENTROPY))
        overall[WITH_ENTROPY] = figures(ours[1])
    controls = {d.name: figures(d) for d in trained.controls}
    _flag_chance(controls)
    true = [d for d in trained.controls if d.wrong is None]
    compared = [*ours, *true]
    overall |= {d.name: controls[d.name] for d in true}
    curve = [
        {
            "share": point.share, "n": point.n, "groups": point.groups,
            "layer": figures(point.layer), "ensemble": figures(point.ensemble),
        }
        for point in trained.curve
    ]  # fmt: skip
    bar.close()
    best_site, best_layer = trained.best
    return {
        "schema": _SCHEMA,
        "splits": split_sizes(examples),
        "best_layer": best_layer,
        "best_site": best_site,
        "sites": list(dict.fromkeys(site for site, _ in trained.layers)),
        "layers": [
            {"site": site, "layer": layer, "validation": dict(trained.validation[column])}
            | layers[column]
            | {"seeds": _spread(trained.seeds.get(column), examples)}
            for column in trained.layers
            for site, layer in [column]
        ],
        "ensembles": ensembles,
        "ensemble": overall[ENSEMBLE],
        "combine": trained.bank.combine,
        "with_entropy": overall.get(WITH_ENTROPY),
        "controls": controls,
        "positive_control": _positive_control(trained, examples, evaluator),
        "conditions": evaluator.by("condition", compared, overall),
        "datasets": evaluator.by("dataset", compared, overall),
        "calibration": _calibration(trained, examples, evaluator),
        "learning_curve": curve,
        "pairs": evaluator.pairs(ours[:1], true) | evaluator.pairs(ours[1:], [saved, *true]),
        "training": dict(training),
        "notes": list(trained.notes),
    }


def _detectors(trained: Trained) -> int:
    return (
        len(trained.layers) + len(trained.ensembles) + (trained.with_entropy is not None)
        + len(trained.controls) + 2 * len(trained.curve)
    )  # fmt: skip


def _flag_chance(controls: dict[str, Figures]) -> None:
    """Say of the shuffled labels whether their interval holds 0.5, as it must 19 times in 20."""
    entry = controls.get(SHUFFLED)
    if entry is not None:
        low, high = entry["auroc_ci"] or (0.0, 1.0)
        entry["at_chance"] = bool(low <= 0.5 <= high)


def _spread(scores: np.ndarray | None, examples: Examples) -> Figures | None:
    """Test AUROC of every seed's head, their mean and standard deviation (n - 1)."""
    if scores is None or len(scores) < 2:
        return None
    rows = examples.rows["test"]
    found = [float(metrics.auroc(examples.wrong[rows], one[rows])) for one in scores]
    return {"auroc": found, "mean": float(np.mean(found)), "std": float(np.std(found, ddof=1))}


def _calibration(trained: Trained, examples: Examples, evaluator: Evaluator) -> Figures:
    """ECE and Brier score of the saved score before and after calibration, and of the other kind."""
    scores = trained.ensembles[trained.bank.combine].scores[examples.rows["test"]]
    method = str(trained.bank.calibration.to_dict()["method"])
    others = {kind: fitted for kind, fitted in trained.calibrations.items() if kind != method}
    return {
        "method": method,
        "before": evaluator.probabilities(sigmoid(scores)),
        "after": evaluator.probabilities(trained.bank.calibration(scores)),
        "other": {kind: evaluator.probabilities(fitted(scores)) for kind, fitted in others.items()},
    }


def _positive_control(trained: Trained, examples: Examples, evaluator: Evaluator) -> Figures | None:
    """Test AUROC and accuracy (at margin 0) of "is the answer a person"."""
    if trained.person is None:
        return None
    rows = examples.rows["test"]
    other = (examples.table["answer_kind"].to_numpy()[rows] != "person").astype(int)
    margins = trained.person[rows]
    bootstrap = evaluator.bootstrap
    auroc = bootstrap.interval(margins, partial(metrics.auroc, other))
    accuracy = bootstrap.interval((margins > 0).astype(float), partial(metrics.accuracy, other))
    return (
        as_figures("auroc", auroc)
        | as_figures("accuracy", accuracy)
        | {"base_rate": float(np.mean(1 - other))}
    )
