"""AUROC within strata against pairs counted one by one, and against scikit-learn's."""

import numpy as np
import pytest
from refusals import fails
from sklearn.metrics import roc_auc_score

from probers.evaluation.baselines import Strata, pooled_auroc
from probers.evaluation.bootstrap import Bootstrap
from probers.types import RunError


def one_by_one(labels, scores, strata, weights) -> float:
    wins = pairs = 0.0
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] == 1 and labels[j] == 0 and strata[i] == strata[j]:
                pairs += weights[i] * weights[j]
                won = (scores[i] > scores[j]) + (scores[i] == scores[j]) / 2
                wins += weights[i] * weights[j] * won
    return wins / pairs if pairs else float("nan")


def drawn(seed: int, n: int = 60, kinds: int = 4, values: int = 12):
    rng = np.random.default_rng(seed)
    # Few values, so that ties within and across strata are many.
    return rng.integers(0, 2, n), rng.integers(0, values, n) / 4, rng.integers(0, kinds, n)


@pytest.mark.parametrize("seed", range(6))
def test_it_counts_the_pairs_of_each_stratum(seed):
    labels, scores, strata = drawn(seed)
    weights = np.random.default_rng(seed).integers(0, 4, (len(labels), 7))
    weights[:, 0] = 0  # a resample without any pair
    found = pooled_auroc(labels, scores, strata, weights)
    assert found.shape == (7,)
    expected = [one_by_one(labels, scores, strata, column) for column in weights.T]
    assert np.isnan(found[0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    plain = one_by_one(labels, scores, strata, np.ones(len(labels)))
    assert pooled_auroc(labels, scores, strata) == pytest.approx(plain, rel=1e-12)
    # A weight of k is the text k times.
    times = weights[:, 1]
    repeated = pooled_auroc(*(np.repeat(x, times) for x in (labels, scores, strata)))
    assert found[1] == pytest.approx(repeated, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_one_stratum_is_the_auroc_of_scikit_learn(seed):
    labels, scores, _ = drawn(seed, n=300)
    found = pooled_auroc(labels, scores, np.zeros(len(labels), int))
    assert found == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


def test_what_knows_the_length_alone_knows_nothing_within_it():
    rng = np.random.default_rng(0)
    length = rng.integers(1, 6, 3000)
    labels = (rng.random(3000) < length / 6).astype(int)
    knows = length + 2.0 * labels * (rng.random(3000) < 0.3)  # of some more than the length
    strata = Strata.by_length(length, short=True).of
    assert roc_auc_score(labels, length) > 0.7
    assert pooled_auroc(labels, length.astype(float), strata) == 0.5
    assert pooled_auroc(labels, knows, strata) > 0.6
    interval = Bootstrap(np.arange(3000) // 3, resamples=200).interval(
        rng.random(3000) + length, lambda s, w: pooled_auroc(labels, s, strata, w)
    )
    assert interval.low < 0.5 < interval.high
    assert interval.high < 0.55


def test_strata_of_one_class_are_not_compared():
    labels, scores = np.array([1, 1, 0, 1, 0]), np.array([0.0, 1.0, 9.0, 3.0, 2.0])
    assert pooled_auroc(labels, scores, np.array([0, 0, 1, 2, 2])) == 1.0
    assert np.isnan(pooled_auroc(labels, scores, np.array([0, 0, 1, 2, 3])))


def test_strata_are_named_and_crossed():
    length = Strata.by_length(np.array([1, 2, 7, 5, 1]), short=True)
    assert length.names == ("1", "2", "5+")
    kind = Strata.by(["place", "date", "date", "place", "place"])
    both = length.and_by(kind)
    assert [both.names[k] for k in both.of] == ["1 place", "2 date", "5+ date", "5+ place", "1 place"]
    n, events = both.counts(np.array([1, 0, 0, 1, 0]))
    assert dict(zip(both.names, zip(n.tolist(), events.tolist(), strict=True), strict=True)) == {
        "1 place": (2, 1), "2 date": (1, 0), "5+ date": (1, 0), "5+ place": (1, 1),
    }  # fmt: skip
    ranges = Strata.by_length(np.arange(10, 60), short=False)
    assert ranges.names == ("10-19", "20-29", "30-39", "40-49", "50-59")
    assert ranges.counts(np.zeros(50))[0].tolist() == [10] * 5
    assert Strata.by_length(np.full(9, 48), short=False).names == ("48",)


def test_scores_that_are_no_numbers_and_unlike_sizes_are_refused():
    with fails("failed", kind=RunError):
        pooled_auroc(np.array([1, 0]), np.array([np.nan, 1.0]), np.zeros(2, int))
    with pytest.raises(ValueError):
        pooled_auroc(np.array([1, 0]), np.array([0.0, 1.0]), np.zeros(3, int))
