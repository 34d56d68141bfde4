"""Test figures of every detector and level, with intervals clustered by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from probers.evaluation import metrics
from probers.evaluation.bootstrap import UNDEFINED, Bootstrap, Interval, few_groups
from probers.heads.stacked import StackedHead
from probers.prober import figures as schema
from probers.prober.calibration import fit_platt, sigmoid
from probers.prober.decision import ALWAYS, ThresholdRule
from probers.prober.figures import ENSEMBLE, SHUFFLED, Detection, Figures
from probers.prober.risk_control import passing_groups
from probers.progress import Bar
from probers.signals.grounding import ORIGINS

from .assemble import Detector, Trained
from .before_after import auroc_samples, moment_figures, paired
from .examples import Examples

#: Interval figures by name, and others.
Named = dict[str, Any]

_RANKING = ("auroc", "auprc", "prr", "recall_at_fpr10")
_ALWAYS_FIRE = "no threshold of these can promise what threshold asks for, so that they always fire here"


class Evaluator:
    """Figures on the test examples: rows ``test`` (n,), labels ``wrong`` (n,), and a ``bootstrap`` by group.

    ``rule`` chooses missing thresholds on validation; a detector of which it cannot promise anything always
    fires.
    """

    def __init__(self, examples: Examples, rule: ThresholdRule, *, resamples: int, seed: int) -> None:
        self.examples, self.test = examples, examples.rows["test"]
        self.wrong, self._groups = examples.wrong[self.test], examples.table["group"].to_numpy()
        self._rule, self.how = rule, {"resamples": resamples, "seed": seed}
        self.bootstrap = Bootstrap(self._groups[self.test], **self.how)

    def figures(
        self, detector: Detector, rows: np.ndarray | None = None, bootstrap: Bootstrap | None = None
    ) -> Detection:
        """Compute every figure with its 95% interval, on the test texts or some ``rows``; None is undefined.

        A resample's bins are noisier than the texts' own, so the interval of a small ECE lies a little high.
        """
        rows, bootstrap = self.test if rows is None else rows, bootstrap or self.bootstrap
        detector = self.calibrated(detector)
        assert detector.probability is not None and detector.threshold is not None
        scores, wrong = detector.scores[rows], self._labels(detector)[rows]
        fired = (scores > detector.threshold).astype(float)
        ranked: Sequence[Interval] = [UNDEFINED] * len(_RANKING)
        if np.ptp(scores) != 0:  # a constant ranks nothing
            ranked = bootstrap.intervals(scores, partial(metrics.ranking, wrong))
        return Detection(
            **_named(_RANKING, ranked), **_measured(bootstrap, wrong, fired, _DECISIONS),
            **_quality(bootstrap, wrong, detector.probability(scores)),
            base_rate=float(wrong.mean()), fired=float(fired.mean()), threshold=float(detector.threshold),
            about=detector.about,
        )  # fmt: skip

    def calibrated(self, detector: Detector) -> Detector:
        """Add a missing threshold and probability from validation."""
        rows = self.examples.rows["validation"]
        wrong, scores = self._labels(detector)[rows], detector.scores[rows]
        if detector.threshold is None:
            chosen = self._rule.choose(wrong, scores, self._groups[rows], refuse=False)
            detector = replace(detector, threshold=chosen.value)
        if detector.probability is None:
            detector = replace(detector, probability=fit_platt(wrong, scores))
        return detector

    def by(
        self, column: str, detectors: Sequence[Detector], overall: Mapping[str, Detection]
    ) -> dict[str, schema.Subset]:
        """Compute the figures of every detector for each value of a column, if there is such a column.

        Thresholds and probabilities remain those of all examples: no value is calibrated separately.
        ``overall`` has the figures on all test examples by name, used if there is only one value.
        """
        if column not in self.examples.table:
            return {}
        values = self.examples.column(column, "test")
        kinds = sorted(set(values))
        calibrated = list(map(self.calibrated, detectors)) if len(kinds) > 1 else []
        subsets: dict[str, schema.Subset] = {}
        for kind in kinds:
            rows = self.test[values == kind]
            measured = {d.name: overall[d.name] for d in detectors}
            if calibrated:
                bootstrap = Bootstrap(self._groups[rows], **self.how)
                measured = {d.name: self.figures(d, rows, bootstrap) for d in calibrated}
            subsets[str(kind)] = schema.Subset(
                n=len(rows), groups=len(set(self._groups[rows])),
                base_rate=float(self.examples.wrong[rows].mean()), detectors=measured,
            )  # fmt: skip
        return subsets

    def pairs(
        self, ours: Sequence[Detector], others: Sequence[Detector]
    ) -> dict[str, dict[str, schema.Difference]]:
        """Compute paired differences in AUROC, each detector of ``ours`` minus each of ``others``."""
        samples = auroc_samples([*ours, *others], self.examples, self.bootstrap, {})
        return {name: {"auroc": by["all"]} for name, by in paired(samples, ours, others).items()}

    def probabilities(self, probability: np.ndarray) -> schema.Quality:
        """Compute ECE and Brier score of P(wrong) (n,) of the test examples, with intervals."""
        return schema.Quality(**_quality(self.bootstrap, self.wrong, probability))

    def promise(self, trained: Trained) -> schema.Promised | None:
        """Count what passes on the test texts, beside what is promised; None without a promise."""
        if (promise := trained.bank.promise) is None:
            return None
        scores, groups = trained.saved.scores[self.test], self._groups[self.test]
        passing, wrong = passing_groups(self.wrong, scores, groups, trained.bank.threshold)
        return schema.Promised(**promise.to_dict(), test={"passing": passing, "wrong": wrong})

    def origins(self, trained: Trained) -> schema.Origins | None:
        """Compare the origins of answers with the known ones; None where they are not known."""
        pointer, table = trained.bank.pointer, self.examples.table.iloc[self.test]
        known = table["source"].map(ORIGINS) if "source" in table else pd.Series([None])
        if pointer is None or known.isna().any() or "context_gain" not in table:
            return None
        alone = table["mean_logprob"] - table["context_gain"]
        supported = trained.saved.scores[self.test] <= trained.bank.threshold
        each = zip(supported.tolist(), alone.tolist(), known, strict=True)
        right = [pointer.origin(held, chance) == origin for held, chance, origin in each]
        interval = self.bootstrap.interval(np.array(right, dtype=float))
        commonest = float(known.value_counts(normalize=True).max())
        return schema.Origins(**_named(["accuracy"], [interval]), commonest=commonest)

    def _labels(self, detector: Detector) -> np.ndarray:
        return self.examples.wrong if detector.wrong is None else detector.wrong


#: Figures by name: of decisions, and of the order of scores.
_DECISIONS: dict[str, Callable[..., Any]] = {
    "accuracy": metrics.accuracy, "balanced_accuracy": metrics.balanced_accuracy, "f1": metrics.f1_detection,
}  # fmt: skip
_RANKED: dict[str, Callable[..., Any]] = {
    "auroc": metrics.auroc, "auprc": metrics.auprc,
    "recall_at_fpr1": partial(metrics.recall_at_fpr, most=0.01), "recall_at_fpr10": metrics.recall_at_fpr,
}  # fmt: skip


def _quality(bootstrap: Bootstrap, wrong: np.ndarray, probabilities: np.ndarray) -> Named:
    """Compute Brier score and ECE of probabilities (n,) with their intervals, by name."""
    brier = bootstrap.interval(probabilities, partial(metrics.brier, wrong)).figures("brier")
    return brier | metrics.ece_interval(bootstrap, wrong, probabilities).figures("ece")


def _measured(
    bootstrap: Bootstrap, wrong: np.ndarray, values: np.ndarray, figures: Mapping[str, Callable[..., Any]]
) -> Named:
    """Compute figures of values (n,) with their intervals, by name."""

    def compute(values: np.ndarray, weights: np.ndarray) -> list[Any]:
        weights = weights.astype(np.float64, copy=False)  # once for all of them
        return [figure(wrong, values, weights) for figure in figures.values()]

    return _named(figures, bootstrap.intervals(values, compute))


def _named(names: Iterable[str], intervals: Sequence[Interval]) -> Named:
    return {k: v for n, i in zip(names, intervals, strict=True) for k, v in i.figures(n).items()}


def summarise(trained: Trained, evaluator: Evaluator, training: Mapping[str, int], **more: Any) -> Figures:
    """Compute all test figures; ``training`` (steps, heads, ..) and ``more`` figures are copied."""
    with_entropy = [] if trained.with_entropy is None else [trained.with_entropy]
    detectors = [*trained.layers.values(), *trained.ensembles.values(), *with_entropy, *trained.controls]
    detectors += trained.members
    detectors += [detector for point in trained.curve for detector in (point.layer, point.ensemble)]
    bar = Bar(detectors, desc="test figures", unit="detector", leave=False)
    figures = {id(detector): evaluator.figures(detector) for detector in bar}
    controls = {d.name: schema.Control(**dict(figures[id(d)])) for d in trained.controls}
    if shuffled := controls.get(SHUFFLED):  # the interval must hold 0.5 19 times in 20
        low, high = shuffled.auroc_ci or (0.0, 1.0)
        controls[SHUFFLED] = shuffled.model_copy(update={"at_chance": bool(low <= 0.5 <= high)})
    joined = schema.WORDING[evaluator.examples.label].joined
    ours = [replace(trained.saved, name=ENSEMBLE), *(replace(d, name=joined) for d in with_entropy)]
    true = [d for d in trained.controls if d.wrong is None]
    pairs = evaluator.pairs(ours[:1], [*trained.members, *true]) | evaluator.pairs(ours[1:], [ours[0], *true])
    unable = dict.fromkeys(d.name for d in detectors if figures[id(d)].threshold == ALWAYS)
    main = zip((ENSEMBLE, joined), (trained.saved, *with_entropy), strict=False)
    overall: dict[str, Detection] = controls | {name: figures[id(d)] for name, d in main}
    return Figures(
        schema=1,
        label=evaluator.examples.label,
        splits=evaluator.examples.sizes(),
        best_layer=trained.best.layer,
        best_site=trained.best.site,
        sites=list(dict.fromkeys(column.site for column in trained.layers)),
        layers=_layers(trained, evaluator, figures),
        layer_weights=_layer_weights(trained),
        members=_members(trained, evaluator, figures),
        ensembles={kind: figures[id(detector)] for kind, detector in trained.ensembles.items()},
        ensemble=overall[ENSEMBLE],
        combine=trained.bank.combine,
        with_entropy=overall.get(joined),
        controls=controls,
        positive_control=_positive_control(trained, evaluator),
        conditions=evaluator.by("condition", [*ours, *true], overall),
        datasets=evaluator.by("dataset", [*ours, *true], overall),
        moments=moment_figures(trained, evaluator.examples, evaluator.bootstrap),
        levels=None if (tokens := trained.token_scores) is None else level_figures(
            evaluator.examples, tokens, trained.bank.threshold, **evaluator.how
        ),
        promise=evaluator.promise(trained),
        origins=evaluator.origins(trained),
        calibration=_calibration(trained, evaluator),
        domain=_domain(trained, evaluator),
        learning_curve=[
            schema.CurvePoint(
                share=point.share, n=point.n, groups=point.groups,
                layer=figures[id(point.layer)], ensemble=figures[id(point.ensemble)],
            )
            for point in trained.curve
        ],
        pairs=pairs,
        training=dict(training),
        notes=[
            *trained.notes, *([f"{_ALWAYS_FIRE}: {'; '.join(unable)}"] if unable else []),
            *filter(None, [few_groups(evaluator.bootstrap.size, "test group")]),
        ],
        **({} if trained.adapter is None else {"adapter": dict(trained.adapter)}),
        **more,
    )  # fmt: skip


def _layers(trained: Trained, evaluator: Evaluator, figures: Mapping[int, Detection]) -> list[schema.Layer]:
    layers = []
    for column, detector in trained.layers.items():
        several: Named = {"together": list(column.layers)} if column.below else {}
        several |= {"beside": list(dict(column.beside))} if column.beside else {}
        layers.append(schema.Layer(
            **dict(figures[id(detector)]), **several, site=column.site, layer=column.layer,
            validation=dict(trained.validation[column]), seeds=_spread(trained.seeds.get(column), evaluator),
        ))  # fmt: skip
    return layers


def _layer_weights(trained: Trained) -> dict[str, float] | None:
    """Weight within a head of several layers of each, and of what is beside them; None if not known."""
    if (shares := trained.bank.head.layer_weights()) is None:
        return None
    weights = pd.Series(shares[0].tolist()).groupby(list(trained.bank.spec.names), sort=False).sum()
    return {str(name): round(weight, 6) for name, weight in weights.items()}


def _members(
    trained: Trained, evaluator: Evaluator, figures: Mapping[int, Detection]
) -> dict[str, schema.Member]:
    head, rows = trained.bank.head, evaluator.examples.rows["validation"]
    weights = head.weights[0].tolist() if isinstance(head, StackedHead) else []
    wrong = evaluator.examples.wrong[rows]
    return {
        d.name: schema.Member(
            **dict(figures[id(d)]), weight=round(weight, 6),
            validation={"auroc": float(metrics.auroc(wrong, d.scores[rows]))},
        )
        for d, weight in zip(trained.members, weights, strict=True)
    }  # fmt: skip


def _spread(scores: np.ndarray | None, evaluator: Evaluator) -> schema.Seeds | None:
    """Test AUROC of every seed's head, with mean and standard deviation (n - 1)."""
    if scores is None or len(scores) < 2:
        return None
    aurocs = [float(metrics.auroc(evaluator.wrong, of_seed)) for of_seed in scores[:, evaluator.test]]
    return schema.Seeds(auroc=aurocs, mean=float(np.mean(aurocs)), std=float(np.std(aurocs, ddof=1)))


def _calibration(trained: Trained, evaluator: Evaluator) -> schema.Calibrated:
    scores = trained.saved.scores[evaluator.test]
    method = str(trained.bank.calibration.to_dict()["method"])
    ways = {"before": sigmoid, "after": trained.bank.calibration, **trained.calibrations}
    chances = {name: way(scores) for name, way in ways.items() if name != method}
    quality = {name: evaluator.probabilities(chance) for name, chance in chances.items()}
    return schema.Calibrated(
        method=method, before=quality.pop("before"), after=quality.pop("after"), other=quality,
        by_chance=metrics.ece_by_chance(chances["after"]), constant=bool(np.ptp(chances["after"]) == 0),
    )  # fmt: skip


def _domain(trained: Trained, evaluator: Evaluator) -> schema.Limited | None:
    """Limits and size of the domain, and the share of test texts beyond it, which are false alarms."""
    if trained.distances is None or (domain := trained.bank.domain) is None:
        return None
    surprise, test = evaluator.examples.surprise, evaluator.test
    of_test = None if surprise is None else surprise[test]
    beyond = domain.unlike(trained.distances[test], of_test).astype(float)
    return schema.Limited(
        limit=domain.limit, rate=domain.rate, components=domain.components.shape[1],
        surprise=None if domain.surprise is None else list(domain.surprise),
        **evaluator.bootstrap.interval(beyond).figures("false_alarms"),
    )  # fmt: skip


def _positive_control(trained: Trained, evaluator: Evaluator) -> schema.Decision | None:
    """Test AUROC and accuracy (at margin 0) of "is the answer a person"."""
    if trained.person is None:
        return None
    other = (evaluator.examples.column("answer_kind", "test") != "person").astype(int)
    margins, interval = trained.person[evaluator.test], evaluator.bootstrap.interval
    auroc = interval(margins, partial(metrics.auroc, other))
    accuracy = interval((margins > 0).astype(float), partial(metrics.accuracy, other))
    return schema.Decision(**_named(["auroc", "accuracy"], [auroc, accuracy]), base_rate=np.mean(1 - other))


def level_figures(
    examples: Examples, scores: np.ndarray, threshold: float, *, resamples: int, seed: int
) -> dict[str, schema.Level]:
    """Compute the figures of labelled tokens where users look: token, span, sentence and answer.

    Args:
        scores: (rows,) of every token, in the order of ``examples.members``.
        threshold: above which a token or span fires.

    Returns:
        By level ("token", "span", "sentence by max", "sentence by mean", "answer by max", ..): ``n``,
        ``wrong``, each figure with its 95% interval over groups, and for tokens and spans their ``f1`` at
        the threshold; ``false_alarms`` is per 1,000 tokens outside of marked spans.
    """
    assert examples.members is not None
    sizes = list(map(len, examples.members))
    starts = np.cumsum([0, *sizes[:-1]])
    runs = examples.table[["text_id", "sentence", "group", "inside"]].assign(
        wrong=examples.table["token_wrong"], n=sizes, total=np.add.reduceat(scores, starts),
        highest=np.maximum.reduceat(scores, starts),
    )  # fmt: skip
    tokens = runs.loc[np.repeat(np.arange(len(runs)), sizes)].assign(score=scores)
    test = examples.groups("test")
    runs, tokens = (rows[rows["group"].isin(test)] for rows in (runs, tokens))
    judged, known = (rows[(rows["inside"] >= 0) & (rows["wrong"] >= 0)] for rows in (runs, tokens))
    bootstrap = partial(Bootstrap, resamples=resamples, seed=seed)
    figures = {"token": _at_level(known, "score", bootstrap, threshold)}
    figures["span"] = _at_level(judged, "highest", bootstrap, threshold)
    for level, by in (("sentence", ["text_id", "sentence"]), ("answer", ["text_id"])):
        whole = _whole(runs, by)
        figures |= {f"{level} by {how}": _at_level(whole, how, bootstrap) for how in ("max", "mean")}
    outside = tokens[tokens["inside"] < 1]
    if len(outside):
        alarms = 1000.0 * (outside["score"].to_numpy() > threshold)
        figures["token"] |= bootstrap(outside["group"].to_numpy()).interval(alarms).figures("false_alarms")
    return {level: schema.Level(**of_level) for level, of_level in figures.items()}


def _whole(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Join runs to sentences or answers: wrong with a wrong one, right if some are known and all decided."""
    good = (runs["inside"] >= 0) & (runs["wrong"] == 0)
    marked = runs.assign(bad=runs["wrong"] == 1, odd=runs["wrong"] < 0, good=good)
    whole = marked.groupby(by, sort=False).agg(
        group=("group", "first"), bad=("bad", "any"), odd=("odd", "any"), good=("good", "any"),
        max=("highest", "max"), total=("total", "sum"), n=("n", "sum"),
    )  # fmt: skip
    decided = whole[whole["bad"] | (whole["good"] & ~whole["odd"])]
    return decided.assign(wrong=decided["bad"].astype(int), mean=decided["total"] / decided["n"])


def _at_level(
    rows: pd.DataFrame, score: str, resample: Callable[..., Bootstrap], threshold: float | None = None
) -> Named:
    wrong, scores = rows["wrong"].to_numpy(), rows[score].to_numpy(dtype=float)
    figures: Named = {"n": len(rows), "wrong": float(wrong.mean()) if len(rows) else None}
    if len({*wrong}) < 2:
        return figures | _named(_RANKED, [UNDEFINED] * len(_RANKED))
    bootstrap = resample(rows["group"].to_numpy())
    figures |= _measured(bootstrap, wrong, scores, _RANKED)
    if threshold is not None:
        fired = (scores > threshold).astype(float)
        figures |= bootstrap.interval(fired, partial(metrics.f1_detection, wrong)).figures("f1")
    return figures
