"""Thresholds that promise a share of wrong ones: p-values, sequence, refusals, and the promise kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import count

import numpy as np
import pytest
from helpers.refusals import fails
from scipy.stats import binom

from probers.prober.decision import ALWAYS, ThresholdRule
from probers.prober.risk_control import STEPS, Promise, groups_needed, p_value, passing_groups
from probers.types import RunError

RISKS, CONFIDENCES = (0.01, 0.05, 0.1, 0.3, 0.5, 0.9), (0.5, 0.9, 0.95, 0.999)


def logistic(rng: np.random.Generator, n: int, slope: float = 2.5) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of n texts, P(wrong) = sigmoid(slope * score - 1.5)."""
    scores = rng.standard_normal(n)
    return (rng.uniform(size=n) < chance(scores, slope)).astype(int), scores


def chance(scores: np.ndarray, slope: float = 2.5) -> np.ndarray:
    return 1 / (1 + np.exp(1.5 - slope * scores))


@cache
def fewest(risk, confidence, wrong):
    """The fewest groups of which so many may be wrong, one by one."""
    return next(n for n in count(wrong + 1) if binom.cdf(wrong, n, risk) <= 1 - confidence)


def plain(risk, confidence, wrong, scores, groups):
    """The threshold by the definition, in loops; None where it is refused."""
    starts = [fewest(risk, confidence, k) for k in (0, 1, 2)]
    start = max(n for n in starts if n <= len(set(groups)) / 4 or n == starts[0])
    names = sorted(set(groups))
    lowest = sorted(min(s for s, g in zip(scores, groups, strict=True) if g == name) for name in names)
    certified = None
    for step in range(1, STEPS + 1):
        level = lowest[-(-step * len(names) // STEPS) - 1]
        following = [low for low in lowest if low > level]
        threshold = np.nextafter(following[0], -np.inf) if following else max(scores) + 1
        texts = [(g, w) for w, s, g in zip(wrong, scores, groups, strict=True) if s <= threshold]
        n, k = len({g for g, _ in texts}), len({g for g, w in texts if w})
        if n < start:
            continue
        if binom.cdf(k, n, risk) > 1 - confidence:
            break
        certified = threshold, n, k
    return certified


def test_p_values_are_binomial_tails_and_so_many_groups_are_needed_and_no_fewer() -> None:
    n, k = map(np.ravel, np.meshgrid(np.arange(1, 200, 7), np.arange(0, 60, 5)))
    for risk in RISKS:
        np.testing.assert_allclose(p_value(n, np.minimum(k, n), risk), binom.cdf(np.minimum(k, n), n, risk))
        for confidence in CONFIDENCES:
            for wrong in (0, 1, 2):
                needed = groups_needed(risk, confidence, wrong)
                assert binom.cdf(wrong, needed, risk) <= 1 - confidence < binom.cdf(wrong, needed - 1, risk)


def test_it_is_the_definition_in_loops() -> None:
    rng, refused = np.random.default_rng(0), 0
    for i in range(60):
        n = int(rng.integers(1, 120))
        wrong, scores = logistic(rng, n)
        scores = np.round(scores, 1 + i % 3)  # with ties
        groups = rng.integers(0, max(1, n // (1 + i % 4)), n)
        risk, confidence = RISKS[2 + i % 4], CONFIDENCES[i % 3]
        chosen = ThresholdRule("risk", risk, confidence).choose(wrong, scores, groups, refuse=False)
        expected = plain(risk, confidence, wrong.tolist(), scores.tolist(), groups.tolist())
        if expected is None:
            refused += 1
            assert chosen.value == ALWAYS and chosen.promise is None and "labels" not in chosen.refused
            continue
        promise = Promise(risk, confidence, len(set(groups.tolist())), *expected[1:])
        assert chosen == (expected[0], promise, "")
        counted = passing_groups(wrong, scores, groups, chosen.value)
        assert counted == (promise.passing, promise.wrong)
    assert 8 < refused < 52


def test_what_could_be_promised_instead_can_be_and_no_less() -> None:
    wrong, scores = logistic(np.random.default_rng(3), 400)
    for risk in (0.01, 0.02):
        with fails("labels", f"threshold=risk={risk}@0.9") as caught:
            ThresholdRule("risk", risk, 0.9)(wrong, scores)
        rule = ThresholdRule.parse(str(caught.value).rpartition("threshold=")[2].split()[0])
        assert rule.choose(wrong, scores).promise is not None
        less = ThresholdRule("risk", round(rule.value - 0.01, 2), 0.9)
        assert less.choose(wrong, scores, refuse=False).value == ALWAYS


def test_refusals_by_number() -> None:
    rule = ThresholdRule("risk", 0.1, 0.95)
    rule.check_number(29)
    with fails("labels", "29 groups", "28 groups", "risk=0.11@0.95"):
        rule.check_number(28)
    with fails("labels", "29", "0 groups"):
        rule(np.zeros(0), np.zeros(0))
    with fails("labels", "0.1@0.95", "no share"):
        rule(np.ones(50), np.arange(50.0))
    with fails("failed", kind=RunError):
        rule(np.zeros(50), np.full(50, np.nan))


def breaking(risk: float, levels: np.ndarray, shares: np.ndarray) -> Callable[[float], bool]:
    """Say of a threshold whether too many of what passes are wrong; ``shares`` of wrong ones are by level."""

    def breaks(threshold: float) -> bool:
        passing = int(np.searchsorted(levels, threshold, side="right"))
        return passing > 0 and bool(shares[passing - 1] > risk)

    return breaks


#: Of the simulated texts the true share of wrong ones among those that pass.
GRID = np.linspace(-6, 6, 24001)
_DENSITY = np.exp(-(GRID**2) / 2)
TRUTH = np.cumsum(_DENSITY * chance(GRID)) / np.cumsum(_DENSITY)


def largest_with_the_risk(risk: float, wrong: np.ndarray, scores: np.ndarray) -> float:
    """The plain threshold: the largest at which the share of wrong validation texts is not above the risk."""
    order = np.argsort(scores)
    passing = np.flatnonzero(np.cumsum(wrong[order]) / np.arange(1, len(order) + 1) <= risk)
    return float(scores[order][passing[-1]]) if len(passing) else ALWAYS


@pytest.mark.parametrize(("risk", "confidence", "n"), [(0.1, 0.95, 300), (0.2, 0.9, 150)])
def test_the_promise_is_kept_where_the_plain_threshold_breaks_it(risk, confidence, n) -> None:
    rng, rule, draws = np.random.default_rng(1), ThresholdRule("risk", risk, confidence), 1000
    breaks, broken, plainly, certified = breaking(risk, GRID, TRUTH), 0, 0, 0
    for _ in range(draws):
        wrong, scores = logistic(rng, n)
        chosen = rule.choose(wrong, scores, refuse=False)
        certified += chosen.promise is not None
        broken += breaks(chosen.value)
        plainly += breaks(largest_with_the_risk(risk, wrong, scores))
    assert broken <= binom.ppf(0.999, draws, 1 - confidence)
    assert certified > draws * 0.8  # it is of use too
    assert plainly > binom.ppf(0.999, draws, 0.3)


def test_the_promise_is_kept_of_groups_whose_texts_are_alike() -> None:
    """Counted as texts, what one question has in common would be taken for several witnesses."""
    rng, draws, risk = np.random.default_rng(2), 400, 0.2
    rule, broken, by_text = ThresholdRule("risk", risk, 0.9), 0, 0
    groups, everything = np.repeat(np.arange(80), 6), np.repeat(np.arange(100_000), 6)

    def draw(of: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shared, scores = logistic(rng, of[-1] + 1)
        return shared[of], scores[of] + 0.01 * rng.standard_normal(len(of))

    wrong, scores = draw(everything)
    order = np.argsort(scores)
    breaks = breaking(risk, scores[order], np.cumsum(wrong[order]) / np.arange(1, len(order) + 1))
    for _ in range(draws):
        drawn = draw(groups)
        broken += breaks(rule.choose(*drawn, groups, refuse=False).value)
        by_text += breaks(rule.choose(*drawn, refuse=False).value)
    assert broken <= binom.ppf(0.999, draws, 0.1) < by_text
