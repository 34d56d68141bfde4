"""Detection scores against scikit-learn, and intervals against their definition."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from helpers.refusals import fails
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from probers.evaluation import metrics as m
from probers.types import RunError


def sample(seed: int, n: int = 300, *, levels: int = 25) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    scores = np.round(rng.standard_normal(n) * 4 + 2 * labels) / 4 if levels else rng.standard_normal(n)
    return labels, scores


@pytest.mark.parametrize("seed", range(3))
def test_ranking_metrics_agree_with_scikit_learn_with_ties_and_weights(seed: int) -> None:
    labels, scores = sample(seed)
    weights = np.random.default_rng(seed).integers(0, 4, len(labels)).astype(float)
    for w in (None, weights):
        fpr, tpr, _ = sk.roc_curve(labels, scores, sample_weight=w, drop_intermediate=False)
        assert m.recall_at_fpr(labels, scores, w) == pytest.approx(tpr[fpr <= 0.1 + 1e-12].max())
        for ours, theirs, values in (
            (m.auroc, sk.roc_auc_score, scores), (m.auprc, sk.average_precision_score, scores),
            (m.balanced_accuracy, sk.balanced_accuracy_score, scores > 0.5),
            (m.f1_detection, sk.f1_score, scores > 0.5), (m.accuracy, sk.accuracy_score, scores > 0.5),
            (m.brier, sk.brier_score_loss, 1 / (1 + np.exp(-scores))),
        ):  # fmt: skip
            expected = theirs(labels, values, sample_weight=w)
            assert ours(labels, values, w) == pytest.approx(expected), ours.__name__


RANKING = (m.auroc, m.auprc, m.prr, m.recall_at_fpr)


def test_resamples_at_once_equal_one_at_a_time_and_one_sorting_gives_the_four_figures() -> None:
    labels, scores = sample(0)
    weights = np.random.default_rng(1).integers(0, 3, (len(labels), 7)).astype(float)
    for metric, values in [
        *((f, scores) for f in RANKING), *((f, 1 / (1 + np.exp(-scores))) for f in (m.ece, m.brier)),
        *((f, scores > 0.0) for f in (m.accuracy, m.balanced_accuracy, m.f1_detection)),
    ]:  # fmt: skip
        together = metric(labels, values, weights)
        alone = [metric(labels, values, weights[:, i]) for i in range(7)]
        np.testing.assert_allclose(together, alone, err_msg=metric.__name__)
    for w in (None, weights[:, 0], weights.astype(np.float32)):
        for value, metric in zip(m.ranking(labels, scores, w), RANKING, strict=True):
            np.testing.assert_allclose(value, metric(labels, scores, w), rtol=1e-12)


def test_ece_by_hand() -> None:
    labels, probabilities = np.array([0, 1, 1, 1]), np.array([0.12, 0.18, 0.93, 1.0])
    expected = 0.5 * abs(0.15 - 0.5) + 0.5 * abs(0.965 - 1.0)
    assert m.ece(labels, probabilities) == pytest.approx(expected)
    p = np.random.default_rng(0).uniform(size=50_000)
    y = (np.random.default_rng(1).uniform(size=p.size) < p).astype(int)
    assert m.ece(y, p) < 0.01  # calibrated by construction
    assert m.ece(y, p**3) > 0.1  # and no longer


def test_what_ece_exact_probabilities_have_by_chance() -> None:
    rng = np.random.default_rng(1)
    p = rng.uniform(size=300)
    errors = [m.ece((rng.uniform(size=300) < p).astype(int), p) for _ in range(400)]
    assert m.ece_by_chance(p) == pytest.approx(np.mean(errors), rel=0.05)
    assert m.ece_by_chance(np.tile(p, 16)) == pytest.approx(m.ece_by_chance(p) / 4, rel=0.1)
    # All in one bin of probability q: the mean distance of a share from q, by the normal distribution.
    expected = (0.75 * 0.25 / 400 * 2 / np.pi) ** 0.5
    assert m.ece_by_chance(np.full(400, 0.75)) == pytest.approx(expected, rel=0.05)
    assert m.ece_by_chance(np.ones(5)) == 0


def test_prr_against_the_sum_over_kept_examples() -> None:
    """And against the mean risk of the risk-coverage curve; one for the oracle, and zero for chance."""
    labels, scores = sample(4, 3000, levels=0)
    right = 1 - labels[np.argsort(scores)]
    counts = np.arange(1, len(right) + 1)
    area, oracle = (np.mean(np.cumsum(x) / counts) for x in (right, np.sort(right)[::-1]))
    expected = (area - right.mean()) / (oracle - right.mean())
    assert m.prr(labels, scores) == pytest.approx(expected, abs=0.01)
    risk, least = (labels.mean() - m.risk_coverage(labels, x)[1].mean() for x in (scores, labels))
    assert risk / least == pytest.approx(m.prr(labels, scores), abs=0.01)
    assert m.prr(labels, labels) == pytest.approx(1.0) and m.prr(labels, -labels) < -0.5
    assert m.prr(labels, np.zeros(3000)) == pytest.approx(0.0, abs=1e-9)


def test_risk_and_coverage_by_hand() -> None:
    coverage, risk = m.risk_coverage(np.array([1, 0, 0, 1]), np.array([4.0, 1.0, 2.0, 3.0]))
    np.testing.assert_allclose(coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(risk, [0, 0, 1 / 3, 1 / 2])
    _, risk = m.risk_coverage(np.array([1, 0, 0, 1]), np.zeros(4))  # ties: any order, in expectation
    np.testing.assert_allclose(risk, 0.5)


def test_one_class_is_undefined_and_nan_an_error() -> None:
    ones = np.ones(4)
    assert np.isnan([m.auroc(ones, ones), m.prr(ones, ones), m.recall_at_fpr(ones, ones)]).all()
    assert np.isnan(m.ranking(np.ones(5), np.arange(5.0)).auroc)
    for measure in (partial(m.auroc, np.array([0, 1])), m.Bootstrap(np.arange(2)).interval):
        with fails("failed", kind=RunError):
            measure(np.array([0.1, np.nan]))
    with pytest.raises(ValueError):
        m.auroc(np.array([0, 2]), np.array([0.1, 0.2]))


def test_clusters_widen_the_interval_only_when_they_share_something() -> None:
    """Claim: 10 copies of each value carry no more information; converse: random clusters change nothing."""
    values = np.random.default_rng(0).standard_normal(100)
    copies = np.repeat(values, 10)
    groups = np.repeat(np.arange(100), 10)

    def width(interval: m.Interval) -> float:
        return interval.high - interval.low

    alone = width(m.Bootstrap(np.arange(100)).interval(values))
    assert width(m.Bootstrap(groups).interval(copies)) == pytest.approx(alone, rel=0.1)
    assert width(m.Bootstrap(np.arange(1000)).interval(copies)) < 0.5 * alone
    shuffled = np.random.default_rng(1).permutation(groups)
    assert width(m.Bootstrap(shuffled).interval(copies)) < 0.5 * alone


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth = m.auroc(*sample(999, 1_000_000))
    covered = []
    for seed in range(120):
        labels, scores = sample(seed, 120)
        ci = m.Bootstrap(np.arange(120), resamples=200).interval(scores, partial(m.auroc, labels))
        covered.append(ci.low <= truth <= ci.high)
    assert 0.88 <= np.mean(covered) <= 0.99


def test_paired_differences_are_narrower_than_unpaired_ones() -> None:
    rng = np.random.default_rng(0)
    common = rng.standard_normal(300)
    a, b = common + 0.1 + 0.05 * rng.standard_normal(300), common + 0.05 * rng.standard_normal(300)
    together = m.Bootstrap(np.arange(300))
    difference = together.difference(a, b)
    assert difference.value == pytest.approx(0.1, abs=0.02) and difference.low > 0
    assert together.difference(a, a) == (0, 0, 0)
    shuffled = together.difference(a, rng.permutation(a))
    assert shuffled.low <= 0 <= shuffled.high


@pytest.mark.parametrize("seed", range(2))
def test_p_values_are_those_of_the_resamples_counted_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, 60) - rng.integers(0, 2, 60) * 0.6
    groups = rng.integers(0, 25, 60)
    # The same draws, plainly: of each resample the members of as many groups as there are, drawn again.
    draw, count = np.random.default_rng(3), 0
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    for _ in range(150):
        chosen = draw.integers(len(members), size=len(members))
        mean = np.concatenate([values[members[i]] for i in chosen]).mean()
        count += abs(mean - values.mean()) >= abs(values.mean()) - 1e-9
    bootstrap = m.Bootstrap(groups, resamples=150, seed=3)
    assert bootstrap.sample(values).p == pytest.approx((1 + count) / 151)
    assert bootstrap.sample(values).interval == bootstrap.interval(values)


@settings(max_examples=200)
@given(st.lists(st.sampled_from([0.001, 0.004, 0.01, 0.02, 0.03, 0.2, 0.5, 1.0]), max_size=12))
def test_holm_is_its_step_down_decision_at_any_level(p: list[float]) -> None:
    decisions, order = m.holm(p), sorted(range(len(p)), key=lambda i: p[i])
    for level in (0.01, 0.05, 0.1):
        rejected: set[int] = set()
        for rank, i in enumerate(order):
            if p[i] * (len(p) - rank) >= level:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(decisions) if value < level} == rejected


def one_by_one(labels, scores, strata, weights) -> float:
    wins = pairs = 0.0
    for i, j in product(np.flatnonzero(labels), np.flatnonzero(labels == 0)):
        pair = weights[i] * weights[j] * (strata[i] == strata[j])
        pairs += pair
        wins += pair * ((scores[i] > scores[j]) + (scores[i] == scores[j]) / 2)
    return wins / pairs if pairs else float("nan")


@pytest.mark.parametrize("seed", range(2))
def test_it_counts_the_pairs_of_each_stratum(seed):
    """One stratum is the AUROC of scikit-learn."""
    rng = np.random.default_rng(seed)
    # Few values, so that ties within and across strata are many.
    labels, scores, strata = rng.integers(0, 2, 60), rng.integers(0, 12, 60) / 4, rng.integers(0, 4, 60)
    one = m.pooled_auroc(labels, scores, np.zeros(60, int))
    assert one == pytest.approx(sk.roc_auc_score(labels, scores), rel=1e-12)
    weights = rng.integers(0, 4, (60, 7))
    weights[:, 0], weights[:, 1] = 0, 1  # a resample without any pair, and all texts once
    result = m.pooled_auroc(labels, scores, strata, weights)
    expected = [one_by_one(labels, scores, strata, column) for column in weights.T]
    assert np.isnan(result[0])
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert m.pooled_auroc(labels, scores, strata) == pytest.approx(result[1], rel=1e-12)
    assert np.isnan(m.pooled_auroc(labels, scores, np.arange(60)))  # nothing is compared across strata


def covered(odds, n, per_group, worlds=40):
    """Share of worlds whose limits hold the true ECE, by ours and by percentiles of resamples.

    P(wrong) is even over (0, 1), and the true probability has its log-odds shifted by ``odds``.
    """

    def true(p):
        return 1 / (1 + (1 - p) / p * np.exp(-odds))

    grid = (np.arange(10_000) + 0.5) / 10_000
    error = np.abs((true(grid) - grid).reshape(10, -1).sum(axis=1)).sum() / len(grid)
    rng, hits = np.random.default_rng(0), []
    for world in range(worlds):
        # Texts of a group are wrong together.
        p, luck = rng.random(n), np.repeat(rng.random(n // per_group), per_group)
        p = np.repeat(p[::per_group], per_group)
        wrong = (luck < true(p)).astype(float)
        bootstrap = m.Bootstrap(np.arange(n) // per_group, resamples=150, seed=world)
        limits = m.ece_interval(bootstrap, wrong, p), bootstrap.interval(p, partial(m.ece, wrong))
        hits.append([each.low <= error + 1e-9 <= each.high + 1e-9 for each in limits])
    return np.mean(hits, axis=0)


@pytest.mark.parametrize("n, per_group", [(40, 1), (200, 1), (200, 2)])
def test_the_interval_of_the_ece_covers_where_percentiles_never_do(n, per_group):
    ours, percentiles = covered(0.0, n, per_group)
    assert ours >= 0.85 and percentiles == 0  # of exact probabilities
    assert covered(1.0, n, per_group)[0] >= 0.85
    rng = np.random.default_rng(1)  # converse: it can exclude zero
    p, wrong = rng.random(600), (rng.random(600) < 0.9).astype(float)
    value, low, high = m.ece_interval(m.Bootstrap(np.arange(600), resamples=200), wrong, p)
    assert value == pytest.approx(float(m.ece(wrong, p))) and 0 < low < value < high < 1
