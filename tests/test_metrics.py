"""Detection scores against scikit-learn, and intervals against their definition."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import fails
from sklearn import metrics as sk

from probers.evaluation import metrics as m
from probers.types import RunError


@pytest.mark.parametrize(
    ("text", "cue", "answer"),
    [
        ("Born in 1990. So the answer is 1990.", "So the answer is", "1990"),
        ("the answer is X. No. So The Answer Is: St. Louis.\nQuestion", "the answer is", "St. Louis"),
        ("no conclusion", "the answer is", ""),
        ("Rationale\nAnswer:\n'Paris'", "Answer:", "Paris"),
        ("So the answer is", "So the answer is", ""),
    ],
)
def test_answer_extraction(text: str, cue: str, answer: str) -> None:
    assert m.extract_answer(text, cue) == answer


def sample(seed: int, n: int = 300, *, levels: int = 25) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    scores = np.round(rng.standard_normal(n) * 4 + 2 * labels) / 4 if levels else rng.standard_normal(n)
    return labels, scores


@pytest.mark.parametrize("seed", range(5))
def test_ranking_metrics_agree_with_scikit_learn_with_ties_and_weights(seed: int) -> None:
    labels, scores = sample(seed)
    weights = np.random.default_rng(seed).integers(0, 4, len(labels)).astype(float)
    for w in (None, weights):
        assert m.auroc(labels, scores, w) == pytest.approx(sk.roc_auc_score(labels, scores, sample_weight=w))
        expected = sk.average_precision_score(labels, scores, sample_weight=w)
        assert m.auprc(labels, scores, w) == pytest.approx(expected)
        fpr, tpr, _ = sk.roc_curve(labels, scores, sample_weight=w, drop_intermediate=False)
        assert m.recall_at_fpr(labels, scores, w) == pytest.approx(tpr[fpr <= 0.1 + 1e-12].max())
        fired = scores > 0.5
        expected = sk.balanced_accuracy_score(labels, fired, sample_weight=w)
        assert m.balanced_accuracy(labels, fired, w) == pytest.approx(expected)
        assert m.f1_detection(labels, fired, w) == pytest.approx(sk.f1_score(labels, fired, sample_weight=w))
        expected = sk.accuracy_score(labels, fired, sample_weight=w)
        assert m.accuracy(labels, fired, w) == pytest.approx(expected)
        probabilities = 1 / (1 + np.exp(-scores))
        expected = sk.brier_score_loss(labels, probabilities, sample_weight=w)
        assert m.brier(labels, probabilities, w) == pytest.approx(expected)


def test_resamples_at_once_equal_one_at_a_time() -> None:
    labels, scores = sample(0)
    weights = np.random.default_rng(1).integers(0, 3, (len(labels), 7)).astype(float)
    probabilities = 1 / (1 + np.exp(-scores))
    fired = (scores > 0).astype(float)
    for metric, values in [
        *((f, scores) for f in (m.auroc, m.auprc, m.prr, m.recall_at_fpr)),
        *((f, probabilities) for f in (m.ece, m.brier)),
        *((f, fired) for f in (m.accuracy, m.balanced_accuracy, m.f1_detection)),
    ]:
        together = metric(labels, values, weights)
        alone = [metric(labels, values, weights[:, i]) for i in range(7)]
        np.testing.assert_allclose(together, alone, err_msg=metric.__name__)


def test_weights_mean_repetition() -> None:
    labels, scores = sample(2, 60)
    weights = np.random.default_rng(3).integers(0, 4, 60)
    for metric in (m.auroc, m.auprc, m.prr, m.recall_at_fpr):
        repeated = metric(np.repeat(labels, weights), np.repeat(scores, weights))
        assert metric(labels, scores, weights.astype(float)) == pytest.approx(repeated)


def test_ece_by_hand() -> None:
    labels = np.array([0, 1, 1, 1])
    probabilities = np.array([0.12, 0.18, 0.93, 1.0])
    expected = 0.5 * abs(0.15 - 0.5) + 0.5 * abs(0.965 - 1.0)
    assert m.ece(labels, probabilities) == pytest.approx(expected)
    rng = np.random.default_rng(0)
    p = rng.uniform(size=50_000)
    y = (rng.uniform(size=p.size) < p).astype(int)
    assert m.ece(y, p) < 0.01  # calibrated by construction
    assert m.ece(y, p**3) > 0.1  # and no longer


def test_what_ece_exact_probabilities_have_by_chance() -> None:
    rng = np.random.default_rng(1)
    p = rng.uniform(size=300)
    found = [m.ece((rng.uniform(size=300) < p).astype(int), p) for _ in range(400)]
    assert m.ece_by_chance(p) == pytest.approx(np.mean(found), rel=0.05)
    assert m.ece_by_chance(np.tile(p, 16)) == pytest.approx(m.ece_by_chance(p) / 4, rel=0.1)
    # All in one bin of probability q: the mean distance of a share from q, by the normal distribution.
    expected = (0.75 * 0.25 / 400 * 2 / np.pi) ** 0.5
    assert m.ece_by_chance(np.full(400, 0.75)) == pytest.approx(expected, rel=0.05)
    assert m.ece_by_chance(np.ones(5)) == 0


def test_prr_is_one_for_the_oracle_zero_for_chance_and_negative_when_inverted() -> None:
    labels = (np.random.default_rng(0).uniform(size=4000) < 0.3).astype(int)
    noise = np.random.default_rng(1).standard_normal(4000)
    assert m.prr(labels, labels) == pytest.approx(1.0)
    assert m.prr(labels, np.zeros(4000)) == pytest.approx(0.0, abs=1e-9)
    assert abs(m.prr(labels, noise)) < 0.05
    assert m.prr(labels, -labels) < -0.5
    assert 0.2 < m.prr(labels, labels + noise) < 0.9


def test_prr_against_the_sum_over_kept_examples() -> None:
    labels, scores = sample(4, 3000, levels=0)
    right = 1 - labels[np.argsort(scores)]
    kept = np.arange(1, len(right) + 1)
    best = np.sort(right)[::-1]
    area, oracle = (np.mean(np.cumsum(x) / kept) for x in (right, best))
    expected = (area - right.mean()) / (oracle - right.mean())
    assert m.prr(labels, scores) == pytest.approx(expected, abs=0.01)


def test_one_class_is_undefined_and_nan_an_error() -> None:
    ones = np.ones(4)
    assert np.isnan([m.auroc(ones, ones), m.prr(ones, ones), m.recall_at_fpr(ones, ones)]).all()
    with fails("failed", kind=RunError):
        m.auroc(np.array([0, 1]), np.array([0.1, np.nan]))
    with fails("failed", kind=RunError):
        m.Bootstrap(np.arange(2)).interval(np.array([0.1, np.nan]))
    with pytest.raises(ValueError, match="labels"):
        m.auroc(np.array([0, 2]), np.array([0.1, 0.2]))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(-5, 5)), min_size=2, max_size=40))
def test_auroc_is_the_share_of_ordered_pairs(pairs: list[tuple[bool, int]]) -> None:
    labels, scores = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    wins = [(a > b) + (a == b) / 2 for a in scores[labels] for b in scores[~labels]]
    found = m.auroc(labels, scores)
    assert np.isnan(found) if not wins else found == pytest.approx(np.mean(wins))
    if wins:
        assert m.auroc(labels, -scores) == pytest.approx(1 - found)


def test_interval_of_a_mean_has_its_textbook_width() -> None:
    values = np.random.default_rng(0).standard_normal(500)
    interval = m.Bootstrap(np.arange(500)).interval(values)
    assert interval.value == pytest.approx(values.mean())
    expected = 2 * 1.96 * values.std() / np.sqrt(500)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)
    assert m.Bootstrap(np.arange(500)).interval(values) == interval  # seeded
    assert m.Bootstrap(np.arange(500), seed=1).interval(values) != interval


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
    labels = (common + rng.standard_normal(300) > 0).astype(int)
    better = together.difference(common, rng.standard_normal(300), partial(m.auroc, labels))
    assert better.low > 0 and better.value > 0.1


@pytest.mark.parametrize("seed", range(4))
def test_p_values_are_those_of_the_resamples_counted_one_by_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, 60) - rng.integers(0, 2, 60) * 0.6
    groups = rng.integers(0, 25, 60)
    resamples = 150
    # The same draws, plainly: of each resample the members of as many groups as there are, drawn again.
    draw = np.random.default_rng(3)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    means = []
    for _ in range(resamples):
        chosen = draw.integers(len(members), size=len(members))
        means.append(np.concatenate([values[members[i]] for i in chosen]).mean())
    count = sum(abs(mean - values.mean()) >= abs(values.mean()) - 1e-9 for mean in means)
    sample = m.Bootstrap(groups, resamples=resamples, seed=3).sample(values)
    assert sample.p == pytest.approx((1 + count) / (1 + resamples))
    assert sample.interval == m.Bootstrap(groups, resamples=resamples, seed=3).interval(values)


def test_p_values_at_their_ends() -> None:
    bootstrap = m.Bootstrap(np.arange(50), resamples=99)
    same, apart = bootstrap.sample(np.zeros(50)), bootstrap.sample(np.ones(50))
    assert (same.p, apart.p, apart.minus(apart).p) == (1.0, 0.01, 1.0)
    one_class = bootstrap.sample(np.arange(50.0), partial(m.auroc, np.zeros(50)))
    assert np.isnan(one_class.p) and one_class.interval.limits is None


def test_p_values_of_nothing_are_below_their_level_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    found = [m.Bootstrap(np.arange(80), resamples=199).sample(rng.standard_normal(80)).p for _ in range(300)]
    assert 0.02 <= np.mean(np.array(found) < 0.05) <= 0.1
    moved = [m.Bootstrap(np.arange(80), resamples=199).sample(rng.normal(0.6, 1, 80)).p for _ in range(50)]
    assert np.mean(np.array(moved) < 0.05) > 0.9


@settings(max_examples=200)
@given(st.lists(st.sampled_from([0.001, 0.004, 0.01, 0.02, 0.03, 0.2, 0.5, 1.0]), max_size=12))
def test_holm_against_its_formula(p: list[float]) -> None:
    """The formula of statsmodels' multipletests(method="holm"), and Holm's own step-down decision."""
    found = m.holm(p)
    order = sorted(range(len(p)), key=lambda i: p[i])
    largest, expected = 0.0, [0.0] * len(p)
    for rank, i in enumerate(order):
        largest = max(largest, (len(p) - rank) * p[i])
        expected[i] = min(1.0, largest)
    assert found == pytest.approx(expected)
    for level in (0.05, 0.1):
        rejected: set[int] = set()
        for rank, i in enumerate(order):
            if p[i] * (len(p) - rank) >= level:
                break
            rejected.add(i)
        assert {i for i, value in enumerate(found) if value < level} == rejected
