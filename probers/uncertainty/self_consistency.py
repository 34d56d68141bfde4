"""Self-consistency: share of samples that agree with the greedy one (Wang et al. 2022; SelfCheckGPT)."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import UserError
from .meaning import Same


def self_consistency(greedy: str, answers: Sequence[str], same: Same) -> float:
    """Compute the share of n ``answers`` that mean the same as the ``greedy`` one, in [0, 1].

    An undecided pair does not agree. UserError without answers.
    """
    if not answers:
        raise UserError("samples=0 leaves nothing to compare: draw one sample or more", "missing-value")
    return sum(same(greedy, answer) is True for answer in answers) / len(answers)
