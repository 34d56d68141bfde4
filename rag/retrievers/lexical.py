"""What the BM25 engines share: tokens, the scored formula, and the choice of the best k.

Both engines score the same function, Lucene's BM25 (the one Elasticsearch uses):

    score(q, d) = sum over query tokens t of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avg|d|)),
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),

whose idf is never negative, so that a score above 0 means "shares a token", and
both break ties by the order of the corpus. They therefore rank alike and can be
exchanged without changing a result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from probers.types import Passage, UserError

if TYPE_CHECKING:
    import numpy as np

#: Lucene's and Elasticsearch's defaults.
K1, B = 1.2, 0.75

_WORD = re.compile(r"\w+")


def tokenize(text: str) -> list[str]:
    """Lower-cased words: maximal runs of letters, digits and underscores; no stemming, no stop list."""
    return _WORD.findall(text.lower())


def document_tokens(passages: Sequence[Passage]) -> list[list[str]]:
    """The tokens of every passage's title and text.

    Raises:
        UserError: there is no passage, or none of them holds a word.
    """
    if not passages:
        raise UserError("the corpus is empty: give corpus=testbed or a JSONL file with at least one passage")
    documents = [tokenize(f"{p.title} {p.text}") for p in passages]
    if not any(documents):
        raise UserError(f"none of the {len(passages)} passages of the corpus holds a word: nothing to search")
    return documents


def check_options(k1: float, b: float) -> None:
    """Refuse parameters for which the formula is not a ranking function."""
    if not k1 >= 0:
        raise UserError(f"retriever.k1={k1} must be 0 or more")
    if not 0 <= b <= 1:
        raise UserError(f"retriever.b={b} must be between 0 and 1")


def best(passages: Sequence[Passage], scores: np.ndarray, k: int) -> list[Passage]:
    """The ``k`` best passages with a score above 0; equal scores keep the corpus order.

    Args:
        passages: the corpus.
        scores: (len(passages),) any float type.
        k: how many at most.

    Raises:
        UserError: ``k`` is below 1.
    """
    import numpy as np

    if k < 1:
        raise UserError(f"k={k} retrieves nothing: give 1 or more")
    if k < len(scores):
        floor = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero((scores >= floor) & (scores > 0))
    else:
        candidates = np.flatnonzero(scores > 0)
    order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return [replace(passages[i], score=float(scores[i])) for i in order]


class Scorer(Protocol):
    """The scores of all passages for one tokenised query."""

    def __call__(self, tokens: list[str]) -> np.ndarray: ...


def search(
    passages: Sequence[Passage], vocabulary: frozenset[str], score: Scorer, queries: Sequence[str], k: int
) -> list[list[Passage]]:
    """Run every query: tokens the corpus does not know are dropped, and none left means no passage."""
    found: list[list[Passage]] = []
    for query in queries:
        tokens = [t for t in tokenize(query) if t in vocabulary]
        found.append(best(passages, score(tokens), k) if tokens else [])
    return found
