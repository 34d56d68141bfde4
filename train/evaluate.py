"""Test figures of every detector, with intervals clustered by group, as ``metrics.json`` holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from probers.bank.calibration import fit_platt, sigmoid
from probers.bank.decision import ALWAYS, ThresholdRule
from probers.bank.risk_control import passing_groups
from probers.evaluation import metrics
from probers.evaluation.bootstrap import UNDEFINED, Bootstrap, Interval
from probers.heads import StackedHead

from .assemble import ENSEMBLE, WITH_ENTROPY, Detector, Trained, surprise_of
from .before_after import auroc_samples, moment_figures, paired
from .examples import Examples
from .fit import SHUFFLED
from .levels import level_figures

Figures = dict[str, Any]

_RANKING = ("auroc", "auprc", "prr", "recall_at_fpr10")
_ALWAYS_FIRE = "no threshold of these can promise what threshold asks for, so that they always fire here"


class Evaluator:
    """Figures on the test examples: rows ``test`` (n,), labels ``wrong`` (n,), and a ``bootstrap`` by group.

    ``rule`` chooses missing thresholds on validation; a detector of which it cannot promise anything always
    fires.
    """

    def __init__(self, examples: Examples, rule: ThresholdRule, *, resamples: int, seed: int) -> None:
        self.examples, self.test = examples, examples.rows["test"]
        self.wrong = examples.wrong[self.test]
        self._rule, self._resamples, self._seed = rule, resamples, seed
        self.bootstrap = self._resample(self.test)

    def figures(self, detector: Detector) -> Figures:
        """Compute every figure with its 95% interval under ``<name>_ci``; null where undefined.

        A resample's bins are noisier than the texts' own, so the interval of a small ECE lies a little high.
        """
        return self._figures(self.calibrated(detector), self.test, self.bootstrap)

    def calibrated(self, detector: Detector) -> Detector:
        """Add a missing threshold and probability from validation."""
        rows = self.examples.rows["validation"]
        wrong, scores = self._labels(detector)[rows], detector.scores[rows]
        if detector.threshold is None:
            chosen = self._rule.choose(wrong, scores, self._groups(rows), refuse=False)
            detector = replace(detector, threshold=chosen.value)
        if detector.probability is None:
            detector = replace(detector, probability=fit_platt(wrong, scores))
        return detector

    def by(
        self, column: str, detectors: Sequence[Detector], overall: Mapping[str, Figures]
    ) -> dict[str, Figures]:
        """Compute the figures of every detector for each value of a column, if there is such a column.

        Thresholds and probabilities remain those of all examples: no value is calibrated separately.
        ``overall`` has the figures on all test examples by name, used if there is only one value.
        """
        if column not in self.examples.table:
            return {}
        values = self.examples.column(column, "test")
        kinds = sorted(set(values))
        calibrated = [self.calibrated(detector) for detector in detectors] if len(kinds) > 1 else []
        found: dict[str, Figures] = {}
        for kind in kinds:
            rows = self.test[values == kind]
            measured = {d.name: overall[d.name] for d in detectors}
            if calibrated:
                bootstrap = self._resample(rows)
                measured = {d.name: self._figures(d, rows, bootstrap) for d in calibrated}
            found[str(kind)] = {
                "n": len(rows),
                "groups": len(set(self._groups(rows))),
                "base_rate": float(self.examples.wrong[rows].mean()),
                "detectors": measured,
            }
        return found

    def pairs(self, ours: Sequence[Detector], others: Sequence[Detector]) -> dict[str, Figures]:
        """Compute paired differences in AUROC, each detector of ``ours`` minus each of ``others``."""
        samples = auroc_samples([*ours, *others], self.examples, self.bootstrap, {})
        found = paired(samples, ours, others)
        return {pair: {"auroc": difference["all"]} for pair, difference in found.items()}

    def probabilities(self, probability: np.ndarray) -> Figures:
        """Compute ECE and Brier score of P(wrong) (n,) of the test examples, with intervals."""
        return _measured(self.bootstrap, self.wrong, probability, brier=metrics.brier, ece=metrics.ece)

    def promise(self, trained: Trained) -> Figures | None:
        """Count what passes on the test texts, beside what is promised; None without a promise."""
        if (promise := trained.bank.promise) is None:
            return None
        scores, groups = trained.saved.scores[self.test], self._groups(self.test)
        passing, wrong = passing_groups(self.wrong, scores, groups, trained.bank.threshold)
        return promise.to_dict() | {"test": {"passing": passing, "wrong": wrong}}

    def levels(self, trained: Trained) -> Figures | None:
        """Compute the figures of tokens, spans, sentences and answers; None without labels of tokens."""
        if (scores := trained.token_scores) is None:
            return None
        threshold = trained.bank.threshold
        return level_figures(self.examples, scores, threshold, resamples=self._resamples, seed=self._seed)

    def _figures(self, detector: Detector, rows: np.ndarray, bootstrap: Bootstrap) -> Figures:
        assert detector.probability is not None and detector.threshold is not None
        scores, wrong = detector.scores[rows], self._labels(detector)[rows]
        fired = (scores > detector.threshold).astype(float)
        ranked: Sequence[Interval] = [UNDEFINED] * len(_RANKING)
        if np.ptp(scores) != 0:  # a constant ranks nothing
            ranked = bootstrap.intervals(scores, partial(metrics.ranking, wrong))
        return (
            _named(_RANKING, ranked)
            | _measured(
                bootstrap, wrong, fired, accuracy=metrics.accuracy,
                balanced_accuracy=metrics.balanced_accuracy, f1=metrics.f1_detection,
            )
            | _measured(bootstrap, wrong, detector.probability(scores), brier=metrics.brier, ece=metrics.ece)
            | {
                "base_rate": float(wrong.mean()), "fired": float(fired.mean()),
                "threshold": float(detector.threshold), "about": detector.about,
            }
        )  # fmt: skip

    def _labels(self, detector: Detector) -> np.ndarray:
        return self.examples.wrong if detector.wrong is None else detector.wrong

    def _groups(self, rows: np.ndarray) -> np.ndarray:
        return self.examples.table["group"].to_numpy()[rows]

    def _resample(self, rows: np.ndarray) -> Bootstrap:
        return Bootstrap(self._groups(rows), resamples=self._resamples, seed=self._seed)


def _measured(
    bootstrap: Bootstrap, wrong: np.ndarray, values: np.ndarray, **figures: Callable[..., Any]
) -> Figures:
    """Compute figures of values (n,) with their intervals, by name."""

    def all_of_them(values: np.ndarray, weights: np.ndarray) -> list[Any]:
        weights = weights.astype(np.float64, copy=False)  # once for all of them
        return [figure(wrong, values, weights) for figure in figures.values()]

    return _named(figures, bootstrap.intervals(values, all_of_them))


def _named(names: Iterable[str], intervals: Sequence[Interval]) -> Figures:
    return {k: v for n, i in zip(names, intervals, strict=True) for k, v in i.figures(n).items()}


def split_sizes(examples: Examples) -> dict[str, Mapping[str, Any]]:
    """Count examples, groups, the share of wrong texts and examples per dataset of each split."""
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


def summarise(trained: Trained, evaluator: Evaluator, training: Mapping[str, Any]) -> dict[str, Any]:
    """Compute all test figures, as ``metrics.json`` holds them; ``training`` (steps, heads, ..) is copied.

    ``ensemble`` and ``calibration`` are of the saved score; all but ``layers`` are by name.
    """
    with_entropy = [] if trained.with_entropy is None else [trained.with_entropy]
    detectors = [*trained.layers.values(), *trained.ensembles.values(), *with_entropy, *trained.controls]
    detectors += trained.members
    detectors += [detector for point in trained.curve for detector in (point.layer, point.ensemble)]
    bar = tqdm(detectors, desc="test figures", unit="detector", leave=False)
    figures = {id(detector): evaluator.figures(detector) for detector in bar}
    controls = {d.name: figures[id(d)] for d in trained.controls}
    if SHUFFLED in controls:  # whose interval must hold 0.5 19 times in 20
        low, high = controls[SHUFFLED]["auroc_ci"] or (0.0, 1.0)
        controls[SHUFFLED]["at_chance"] = bool(low <= 0.5 <= high)
    ours = [replace(trained.saved, name=ENSEMBLE), *(replace(d, name=WITH_ENTROPY) for d in with_entropy)]
    true = [d for d in trained.controls if d.wrong is None]
    unable = dict.fromkeys(d.name for d in detectors if figures[id(d)]["threshold"] == ALWAYS)
    overall = controls | {ENSEMBLE: figures[id(trained.saved)]}
    if trained.with_entropy is not None:
        overall[WITH_ENTROPY] = figures[id(trained.with_entropy)]
    return {
        "schema": 1,
        "splits": split_sizes(evaluator.examples),
        "best_layer": trained.best.layer,
        "best_site": trained.best.site,
        "sites": list(dict.fromkeys(column.site for column in trained.layers)),
        "layers": [
            {"site": column.site, "layer": column.layer, "validation": dict(trained.validation[column])}
            | ({"together": list(column.layers)} if column.below else {})
            | ({"beside": list(dict(column.beside))} if column.beside else {})
            | figures[id(detector)]
            | {"seeds": _spread(trained.seeds.get(column), evaluator)}
            for column, detector in trained.layers.items()
        ],
        "layer_weights": _layer_weights(trained),
        "members": _members(trained, evaluator, figures),
        "ensembles": {kind: figures[id(detector)] for kind, detector in trained.ensembles.items()},
        "ensemble": overall[ENSEMBLE],
        "combine": trained.bank.combine,
        "with_entropy": overall.get(WITH_ENTROPY),
        "controls": controls,
        "positive_control": _positive_control(trained, evaluator),
        "conditions": evaluator.by("condition", [*ours, *true], overall),
        "datasets": evaluator.by("dataset", [*ours, *true], overall),
        "moments": moment_figures(trained, evaluator.examples, evaluator.bootstrap),
        "levels": evaluator.levels(trained),
        "promise": evaluator.promise(trained),
        "calibration": _calibration(trained, evaluator),
        "domain": _domain(trained, evaluator),
        "learning_curve": [
            {"share": point.share, "n": point.n, "groups": point.groups}
            | {"layer": figures[id(point.layer)], "ensemble": figures[id(point.ensemble)]}
            for point in trained.curve
        ],
        "pairs": evaluator.pairs(ours[:1], [*trained.members, *true])
        | evaluator.pairs(ours[1:], [ours[0], *true]),
        "training": dict(training),
        "notes": [*trained.notes, *([f"{_ALWAYS_FIRE}: {'; '.join(unable)}"] if unable else [])],
        **({} if trained.adapter is None else {"adapter": dict(trained.adapter)}),
    }


def _layer_weights(trained: Trained) -> dict[str, float] | None:
    """Weight within a head of several layers of each, and of what is beside them; None if not known."""
    if (shares := trained.bank.head.layer_weights()) is None:
        return None
    found: dict[str, float] = {}
    for name, share in zip(trained.bank.spec.names, shares[0].tolist(), strict=True):
        found[name] = found.get(name, 0.0) + share
    return {name: round(share, 6) for name, share in found.items()}


def _members(trained: Trained, evaluator: Evaluator, figures: Mapping[int, Figures]) -> Figures:
    """Figures of a stack's members by name, each with its weight and its AUROC on validation."""
    head, rows = trained.bank.head, evaluator.examples.rows["validation"]
    weights = head.weights[0].tolist() if isinstance(head, StackedHead) else []
    wrong = evaluator.examples.wrong[rows]
    return {
        d.name: figures[id(d)]
        | {"weight": round(w, 6), "validation": {"auroc": float(metrics.auroc(wrong, d.scores[rows]))}}
        for d, w in zip(trained.members, weights, strict=True)
    }


def _spread(scores: np.ndarray | None, evaluator: Evaluator) -> Figures | None:
    """Test AUROC of every seed's head, with mean and standard deviation (n - 1)."""
    if scores is None or len(scores) < 2:
        return None
    found = [float(metrics.auroc(evaluator.wrong, one)) for one in scores[:, evaluator.test]]
    return {"auroc": found, "mean": float(np.mean(found)), "std": float(np.std(found, ddof=1))}


def _calibration(trained: Trained, evaluator: Evaluator) -> Figures:
    """ECE and Brier score of the saved score before and after calibration, and of the other kinds."""
    scores = trained.saved.scores[evaluator.test]
    method = str(trained.bank.calibration.to_dict()["method"])
    others = {kind: fitted for kind, fitted in trained.calibrations.items() if kind != method}
    calibrated = trained.bank.calibration(scores)
    return {
        "method": method,
        "before": evaluator.probabilities(sigmoid(scores)),
        "after": evaluator.probabilities(calibrated),
        "by_chance": metrics.ece_by_chance(calibrated),
        "constant": bool(np.ptp(calibrated) == 0),
        "other": {kind: evaluator.probabilities(fitted(scores)) for kind, fitted in others.items()},
    }


def _domain(trained: Trained, evaluator: Evaluator) -> Figures | None:
    """Limits and size of the domain, and the share of test texts beyond it, which are false alarms."""
    if trained.distances is None or (domain := trained.bank.domain) is None:
        return None
    surprise, test = surprise_of(evaluator.examples), evaluator.test
    known = None if surprise is None else surprise[test]
    beyond = domain.unlike(trained.distances[test], known).astype(float)
    size: Figures = {"limit": domain.limit, "rate": domain.rate, "components": domain.components.shape[1]}
    size["surprise"] = None if domain.surprise is None else list(domain.surprise)
    return size | evaluator.bootstrap.interval(beyond).figures("false_alarms")


def _positive_control(trained: Trained, evaluator: Evaluator) -> Figures | None:
    """Test AUROC and accuracy (at margin 0) of "is the answer a person"."""
    if trained.person is None:
        return None
    other = (evaluator.examples.column("answer_kind", "test") != "person").astype(int)
    margins = trained.person[evaluator.test]
    auroc = evaluator.bootstrap.interval(margins, partial(metrics.auroc, other))
    accuracy = evaluator.bootstrap.interval((margins > 0).astype(float), partial(metrics.accuracy, other))
    base_rate = {"base_rate": float(np.mean(1 - other))}
    return auroc.figures("auroc") | accuracy.figures("accuracy") | base_rate
