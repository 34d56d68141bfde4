"""Thresholds, calibration and ensembles: the best there are, as scikit-learn has them, and honest."""

from typing import Any

import numpy as np
import pytest
from helpers.refusals import fails
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

from probers.cli.main import compose, normalise
from probers.evaluation import metrics as m
from probers.prober import calibration as c
from probers.prober.calibration import CALIBRATIONS, fit_calibration
from probers.prober.decision import ThresholdRule, fit_ensemble
from probers.types import Code, RunError

TYPED = ["balanced_accuracy", "f1", "accuracy", "budget=0.3", "recall_at_fpr=0.1", "cost=5"]


def scored(n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores, with ties."""
    rng = np.random.default_rng(seed)
    scores = np.round(rng.standard_normal(n), 1)
    return (scores + rng.standard_normal(n) > 0.5).astype(int), scores


def calibrated(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn with the log-odds that are their scores."""
    rng = np.random.default_rng(0)
    log_odds = 2 * rng.standard_normal(n)
    return (rng.uniform(size=n) < 1 / (1 + np.exp(-log_odds))).astype(int), log_odds


def quality(typed: str, wrong: np.ndarray, fired: np.ndarray) -> float:
    """What a rule makes as high as it can, by its definition."""
    name, _, value = typed.partition("=")
    hits, alarms = fired[wrong == 1].mean(), fired[wrong == 0].mean()
    if name == "budget":
        return -abs(fired.mean() - float(value))
    if name == "recall_at_fpr":
        return float(hits if alarms <= float(value) else -1)
    if name == "cost":
        return -float(float(value) * ((wrong == 1) & ~fired).sum() + ((wrong == 0) & fired).sum())
    metric: Any = getattr(m, "f1_detection" if name == "f1" else name)
    return float(metric(wrong, fired.astype(float)))


@pytest.mark.parametrize("typed", TYPED)
def test_thresholds_are_the_best_there_are(typed: str) -> None:
    rule = ThresholdRule.parse(typed)
    config = compose("train", normalise("train", [f"threshold={typed}"]))  # it is typed as one word
    assert ThresholdRule.parse(config.threshold) == rule and str(rule) == typed
    for seed in range(8):
        wrong, scores = scored(seed=seed)
        chosen = quality(typed, wrong, scores > rule(wrong, scores))
        everywhere = [quality(typed, wrong, scores > t) for t in np.arange(-5, 5, 0.05) + 0.001]
        assert chosen == pytest.approx(max(everywhere))
        assert min(everywhere) < chosen


def test_values_move_the_threshold_and_agree_with_the_metrics() -> None:
    wrong, scores = scored(400)
    for fpr in (0.0, 0.1, 0.5, 1.0):
        fired = scores > ThresholdRule("recall_at_fpr", fpr)(wrong, scores)
        assert fired[wrong == 1].mean() == pytest.approx(m.recall_at_fpr(wrong, scores, most=fpr))
        assert fired[wrong == 0].mean() <= fpr
    shares = [(scores > ThresholdRule("budget", b)(wrong, scores)).mean() for b in (0, 0.25, 0.5, 1)]
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 1], atol=0.03)
    dear, cheap = (ThresholdRule("cost", c)(wrong, scores) for c in (20.0, 0.05))
    assert dear < ThresholdRule("cost", 1.0)(wrong, scores) < cheap
    assert ThresholdRule("cost", 1.0)(wrong, scores) == ThresholdRule("accuracy")(wrong, scores)
    # Equal recall is bought with the fewest false alarms.
    assert ThresholdRule("recall_at_fpr", 0.9)(np.array([0, 0, 0, 1, 1]), np.arange(5.0)) == 2.5


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("at", [0.0, 1e20, np.nextafter(1.0, 2.0)])
def test_constant_and_neighbouring_scores_still_split_as_counted(typed: str, at: float) -> None:
    wrong = np.array([0, 1, 1, 0, 1])
    for scores in (np.full(5, at), np.where(wrong == 1, at, np.nextafter(at, -np.inf))):
        measured = quality(typed, wrong, scores > ThresholdRule.parse(typed)(wrong, scores))
        ways = (np.zeros(5, bool), np.ones(5, bool), scores >= at)
        assert measured == pytest.approx(max(quality(typed, wrong, way) for way in ways))


@pytest.mark.parametrize(("typed", "named"), [
    ("best=0.4", "threshold=best=0.4"), ("budget", "budget=0.4"), ("budget=many", "'many'"),
    ("budget=nan", "from 0 to 1"), ("cost=0", "above 0"), ("f1=0.5", "write threshold=f1"),
    ("risk=0.1", "the confidence"), ("risk=0.1@1", "between 0 and 1"), ("budget=0.4@0.9", "budget=0.4"),
])  # fmt: skip
def test_a_threshold_that_is_none_is_refused(typed: str, named: str) -> None:
    code: Code = "unknown-choice" if "best" in typed else "bad-value"
    with fails(code, f"threshold={typed}", named):
        ThresholdRule.parse(typed)


def fit(name: str, wrong: np.ndarray, scores: np.ndarray) -> Any:
    if name == "threshold":
        return ThresholdRule()(wrong, scores)
    if name == "entropy":
        return c.fit_entropy_model(wrong, scores, dict.fromkeys(c.SIGNALS, scores), ThresholdRule())
    if name in CALIBRATIONS:
        return fit_calibration(name, wrong, scores)
    return fit_ensemble(name, scores[:, None], wrong)


@pytest.mark.parametrize("name", ["threshold", *CALIBRATIONS, "best", "stacked", "entropy"])
def test_nothing_is_fitted_to_one_class_or_to_broken_scores(name: str) -> None:
    wrong, scores = scored()
    fit(name, wrong, scores)
    for labels, *named in ((np.ones(60), "only wrong", 60), (np.zeros(60), "only right", 60), (wrong[:0],)):
        with fails("labels", *named):
            fit(name, labels, scores[: len(labels)])
    for broken in (np.nan, np.inf):
        with fails("failed", kind=RunError):
            fit(name, wrong, np.where(np.arange(60) == 7, broken, scores))


def test_temperature_recovers_the_scale_of_log_odds() -> None:
    wrong, log_odds = calibrated(20_000)
    temperature = fit_calibration("temperature", wrong, 7 * log_odds)
    assert temperature.value == pytest.approx(7, rel=0.05)  # type: ignore[union-attr]
    reversed_ = fit_calibration("temperature", wrong, -log_odds)
    assert reversed_.value > 100  # type: ignore[union-attr]  # "I do not know"
    probability = c.fit_platt(wrong, 3 * log_odds + 5)(3 * log_odds + 5)
    np.testing.assert_allclose(probability, 1 / (1 + np.exp(-log_odds)), atol=0.03)


def test_isotonic_is_scikit_learns() -> None:
    for n in (50, 400, 2000):
        wrong, scores = calibrated(n)
        scores = np.round(scores, 1)  # with ties
        ours, least = fit_calibration("isotonic", wrong, scores), 1 / (n + 2)
        theirs = IsotonicRegression(y_min=least, y_max=1 - least, out_of_bounds="clip").fit(scores, wrong)
        x = np.concatenate([np.linspace(-20, 20, 500), scores])
        np.testing.assert_allclose(ours(x), theirs.predict(x), rtol=0, atol=1e-12)
        assert ours(x).min() == pytest.approx(least) and ours(x).max() == pytest.approx(1 - least)


@pytest.mark.parametrize("kind", CALIBRATIONS)
@pytest.mark.parametrize("at", [0.0, 1e9])
def test_constant_scores_are_never_sure(kind: str, at: float) -> None:
    probability = fit_calibration(kind, np.array([0, 1, 1, 0, 1]), np.full(5, at))(np.full(2, at))
    assert ((probability > 0.3) & (probability < 0.7)).all()


def test_platt_has_the_intercept_that_a_sum_over_layers_needs() -> None:
    """Twelve heads with evidence of their own, each with the prior odds in it; the fit is scikit-learn's."""
    rng = np.random.default_rng(0)
    wrong = (rng.random(8000) < 0.25).astype(int)
    evidence = 0.6 * (rng.standard_normal((8000, 12)) + 0.3 * (2 * wrong - 1)[:, None])  # log odds
    scores = (evidence + np.log(0.25 / 0.75)).sum(axis=1)
    ours, temperature = (fit_calibration(k, wrong[:4000], scores[:4000]) for k in ("platt", "temperature"))
    errors = [m.ece(wrong[4000:], fitted(scores[4000:])) for fitted in (ours, temperature)]
    assert errors[0] < 0.02 < 0.03 < errors[1]
    scale = scores[:4000].std()
    theirs = LogisticRegression(max_iter=1000).fit(scores[:4000, None] / scale, wrong[:4000])
    np.testing.assert_allclose(ours(scores), theirs.predict_proba(scores[:, None] / scale)[:, 1], atol=1e-3)


def layered(n: int = 3000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and margins of five layers: two good ones, one the wrong way round, two of noise."""
    rng = np.random.default_rng(seed)
    wrong = rng.integers(0, 2, n)
    signal = np.array([0.1, 1.0, 1.5, -0.8, 0.0])
    return wrong, 3 * (2 * wrong - 1)[:, None] * signal + rng.normal(1, 3, (n, 5)) * [1, 1, 1, 1, 40]


def test_ensembles_are_what_they_say() -> None:
    wrong, margins = layered(200)
    both = np.stack([margins, np.zeros_like(margins)], axis=-1)  # logits [wrong, correct]
    softmax = np.exp(both) / np.exp(both).sum(axis=-1, keepdims=True)
    expected = (softmax[..., 0] - softmax[..., 1]).sum(axis=1)
    np.testing.assert_allclose(fit_ensemble("logits", margins, wrong)(margins), margins.sum(axis=1))
    np.testing.assert_allclose(fit_ensemble("probabilities", margins, wrong)(margins), expected, atol=1e-9)
    best = fit_ensemble("best", margins, wrong, k=2)
    assert best.weights == (0.0, 0.5, 0.5, 0.0, 0.0)
    np.testing.assert_allclose(best(margins), margins[:, 1:3].mean(axis=1))
    assert fit_ensemble("best", margins, wrong, k=9)(margins) == pytest.approx(margins.mean(axis=1))


def test_stacked_is_scikit_learns_logistic_regression_and_weighs_layers_by_what_they_know() -> None:
    wrong, margins = layered()
    scaled = StandardScaler().fit_transform(margins)
    theirs = LogisticRegression(max_iter=1000).fit(scaled, wrong).decision_function(scaled)
    np.testing.assert_allclose(fit_ensemble("stacked", margins, wrong)(margins), theirs, atol=1e-9)
    test_wrong, test = layered(seed=1)
    by_kind = {kind: fit_ensemble(kind, margins, wrong, k=2)(test) for kind in ("logits", "best", "stacked")}
    auroc = {kind: roc_auc_score(test_wrong, score) for kind, score in by_kind.items()}
    assert auroc["logits"] < 0.6 < auroc["best"] < auroc["stacked"]


def test_the_entropy_model_beats_its_parts_and_ignores_noise() -> None:
    rng = np.random.default_rng(0)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        wrong = rng.integers(0, 2, n)
        signals = {name: rng.standard_normal(n) for name in c.SIGNALS}
        signals["mean_entropy"] = wrong + rng.standard_normal(n)
        return wrong, wrong + rng.standard_normal(n), signals

    model = c.fit_entropy_model(*draw(2000), ThresholdRule())
    wrong, score, signals = draw(4000)
    combined = roc_auc_score(wrong, model(score, signals))
    assert combined > max(roc_auc_score(wrong, score), roc_auc_score(wrong, signals["mean_entropy"])) + 0.03
    assert min(model.weights[:2]) > 0.5 and np.abs(model.weights[2:]).max() < 0.15


@pytest.mark.parametrize("kind", CALIBRATIONS)
@pytest.mark.parametrize("n", [4, 40, 400])
def test_texts_that_scores_separate_get_no_certain_probability(kind, n):
    wrong = np.arange(n) % 2.0
    scores = (2 * wrong - 1) * np.linspace(1, 3, n)
    p = fit_calibration(kind, wrong, scores)(scores)
    assert 0 < p.min() < 0.5 < p.max() < 1
    # As sure as so many texts without an exception allow, and no more.
    assert 1 - p.max() > 0.01 / n and (p[wrong == 1].mean() > 0.6)
