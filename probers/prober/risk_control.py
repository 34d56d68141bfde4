"""Risk control: the laxest threshold that can promise a share of wrong texts, by Learn-then-Test.

Angelopoulos et al. 2021 (arXiv:2110.01052). A group (the texts of one question or article) passes a threshold
if one of its texts does, with a score not above it, and counts as wrong if one of its passing texts is wrong.
If n groups pass and k of them are wrong, P(Bin(n, R) <= k) is a p-value of "more than a share R of the groups
that pass are wrong". Thresholds are tested from the strictest to the laxest, each at the level 1 - C, until
one is not rejected. So the last one certified breaks the promise with a probability of at most 1 - C.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from scipy.special import bdtr

from ..options import Limits, Natural
from ..types import RunError, UserError

#: Thresholds to test: they let one twentieth of the groups pass, two twentieths, up to all of them.
#: With a threshold for every group, one wrong group beyond the allowed number would end the sequence.
STEPS = 20
#: The sequence begins where this many wrong groups are allowed: else one wrong label could end it at once.
#: If that would take more than this share of all groups, it begins where fewer are.
SPARE, EARLY = 2, 0.25

_MANY = 1 << 40  # groups, more than anybody has
_Inner = Annotated[float, Limits("a number between 0 and 1", gt=0, lt=1)]


@dataclass(frozen=True, slots=True)
class Promise:
    """A statement about texts like those of validation, true with a probability of ``confidence``.

    At most the share ``risk`` of the groups that pass are wrong. The threshold was chosen on ``groups``
    groups: ``passing`` of them passed, and ``wrong`` of these were wrong.
    """

    risk: _Inner
    confidence: _Inner
    groups: Natural
    passing: Natural
    wrong: Natural

    def __str__(self) -> str:
        risk, confidence = (f"{100 * share:.4g}%" for share in (self.risk, self.confidence))
        return (
            f"of what passes at most {risk} is wrong, each question or article counted once "
            f"({confidence} confidence, chosen on {self.groups} groups)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for JSON."""
        return asdict(self)


def p_value(passing: Any, wrong: Any, risk: float) -> np.ndarray:
    """Compute P(Bin(n, risk) <= k) for n ``passing`` and k ``wrong`` groups, elementwise."""
    return np.asarray(bdtr(np.asarray(wrong, float), np.asarray(passing, int), risk))


def groups_needed(risk: float, confidence: float, wrong: int = 0) -> int:
    """Return the fewest groups that can certify a threshold with this many ``wrong`` groups.

    With none wrong, this is the smallest n with (1 - risk)^n <= 1 - confidence.
    """
    least = most = wrong + 1
    while p_value(most, wrong, risk) > 1 - confidence and most < _MANY:
        most *= 2
    numbers = range(least, most)
    return least + bisect_left(numbers, True, key=lambda n: bool(p_value(n, wrong, risk) <= 1 - confidence))


def passing_groups(
    wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray, threshold: float
) -> tuple[int, int]:
    """Count the groups that pass a threshold, and those of them with a wrong text that passes."""
    passes = scores <= threshold
    return len(set(groups[passes].tolist())), len(set(groups[passes & (wrong > 0)].tolist()))


class _Candidates(NamedTuple):
    """Thresholds (c,) from the strictest to the laxest, the groups that pass each, and the wrong of these."""

    thresholds: np.ndarray
    passing: np.ndarray
    wrong: np.ndarray
    groups: int

    def start(self, risk: float, confidence: float) -> int:
        """Return the index of the first threshold of the sequence, independent of the labels."""
        numbers = [groups_needed(risk, confidence, wrong) for wrong in range(SPARE + 1)]
        early = [number for number in numbers[1:] if number <= EARLY * self.groups]
        return int(np.searchsorted(self.passing, max(early, default=numbers[0])))

    def certified(self, risk: float, confidence: float) -> int | None:
        """Return the index of the last certified threshold of the sequence; None without one."""
        start = self.start(risk, confidence)
        rejected = p_value(self.passing[start:], self.wrong[start:], risk) <= 1 - confidence
        length = int(np.argmin([*rejected, False]))
        return start + length - 1 if length else None


def _candidates(wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray) -> _Candidates:
    """List the thresholds to test: each lies just below the lowest score of the first group that fails it.

    Given that score, the groups that pass are independent draws from those that would, whatever their labels:
    the p-values hold although the thresholds come from the same texts.
    """
    names, place = np.unique(groups, return_inverse=True)
    first, first_wrong = np.full((2, len(names)), np.inf)
    np.minimum.at(first, place, scores)
    np.minimum.at(first_wrong, place, np.where(wrong > 0, scores, np.inf))
    first, first_wrong = np.sort(first), np.sort(first_wrong)
    ranks = np.ceil(len(names) * np.arange(1, STEPS + 1) / STEPS).astype(int)
    passing = np.unique(np.searchsorted(first, first[ranks - 1], side="right"))
    beyond = np.append(first, np.inf)[passing]
    # A finite number, as files and triggers need it, replaces infinity.
    thresholds = np.where(np.isinf(beyond), scores.max() + 1.0, np.nextafter(beyond, -np.inf))
    return _Candidates(thresholds, passing, np.searchsorted(first_wrong, beyond), len(names))


def certify(
    risk: float, confidence: float, wrong: np.ndarray, scores: np.ndarray, groups: np.ndarray | None = None
) -> tuple[float, Promise]:
    """Find the laxest threshold that is certified for R = ``risk`` and C = ``confidence``, with its promise.

    ``wrong`` (n,) is 1 where a text is wrong, which is likelier for higher ``scores`` (n,); ``groups`` (n,)
    None counts every text as one. UserError ``labels`` where the groups are too few, or the strictest
    threshold is not certified; RunError for a score that is not finite.
    """
    wrong, scores = np.asarray(wrong, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    groups = np.arange(len(scores)) if groups is None else np.asarray(groups)
    if not len(wrong) == len(scores) == len(groups):
        raise ValueError(f"{len(wrong)} labels and {len(groups)} groups do not fit {len(scores)} scores")
    if not np.isfinite(scores).all():
        raise RunError("a score to choose a threshold on is not a finite number")
    check_number(risk, confidence, len(np.unique(groups)))
    candidates = _candidates(wrong, scores, groups)
    if (last := candidates.certified(risk, confidence)) is not None:
        passing, errors = int(candidates.passing[last]), int(candidates.wrong[last])
        promise = Promise(risk, confidence, candidates.groups, passing, errors)
        return float(candidates.thresholds[last]), promise
    tried = candidates.start(risk, confidence)
    possible = (share / 100 for share in range(1, 100))
    other = next((r for r in possible if r > risk and candidates.certified(r, confidence) is not None), None)
    fix = "no share can be" if other is None else f"threshold={_typed(other, confidence)} can be"
    raise UserError(
        f"threshold={_typed(risk, confidence)} cannot be promised: of the {candidates.passing[tried]} "
        f"validation groups with the lowest scores {candidates.wrong[tried]} are wrong; {fix}",
        "labels",
    )


def check_number(risk: float, confidence: float, groups: int) -> None:
    """Refuse a number of groups on which nothing could be certified (UserError ``labels``)."""
    if groups >= (needed := groups_needed(risk, confidence)):
        return
    fix = f"use a limit that gives {needed}"
    # The least share that this many groups could promise if none were wrong, rounded up.
    if groups and (least := math.ceil(100 * (1 - (1 - confidence) ** (1 / groups))) / 100) < 1:
        fix += f", or threshold={_typed(least, confidence)} or more"
    message = f"threshold={_typed(risk, confidence)} needs {needed} groups that pass, even if none is wrong"
    raise UserError(f"{message}, and validation has {groups} groups in all: {fix}", "labels")


def _typed(risk: float, confidence: float) -> str:
    return f"risk={risk:g}@{confidence:g}"
