"""Lexical similarity: likeness of drawn texts word by word (Fomicheva et al. 2020), by ROUGE-L."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from ..types import UserError

_WORD = re.compile(r"[a-z0-9]+")


def lexical_similarity(texts: Sequence[str]) -> float:
    """Compute the mean ROUGE-L of all pairs of ``texts``, in [0, 1]; UserError for fewer than two."""
    if len(texts) < 2:
        told = f"samples={len(texts)} gives no pair of texts to compare: draw two or more"
        raise UserError(told, "missing-value")
    words = [_WORD.findall(text.lower()) for text in texts]
    pairs = list(combinations(words, 2))
    return sum(rouge_l(a, b) for a, b in pairs) / len(pairs)


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """Compute ROUGE-L, F1 of the longest common subsequence of words; 1 for two texts without a word."""
    if not a and not b:
        return 1.0
    common = _longest_common(a, b)
    return 2 * common / (len(a) + len(b))


def _longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    best = [0] * (len(b) + 1)
    for word in a:
        before = 0  # the entry above and to the left
        for j, other in enumerate(b):
            above = best[j + 1]
            best[j + 1] = before + 1 if word == other else max(above, best[j])
            before = above
    return best[-1]
