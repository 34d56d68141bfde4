"""BM25 by the ``rank_bm25`` package: the plain reference, exact, for small corpora."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rank_bm25 import BM25Okapi

from probers.types import Passage

from . import lexical


class _LuceneOkapi(BM25Okapi):  # type: ignore[misc]
    """rank_bm25's scorer with Lucene's idf.

    Its own idf goes negative for tokens in more than half of the documents and is
    then replaced by a quarter of the average, a rule no other engine shares.
    """

    def _calc_idf(self, nd: Mapping[str, int]) -> None:
        self.idf = {t: math.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for t, n in nd.items()}


class RankBM25:
    """Exact BM25 in pure Python and numpy; every query visits every passage.

    Scores are those of :mod:`.lexical` times the constant ``k1 + 1`` of the
    original formula, which changes no ranking.

    Args:
        passages: the corpus, kept in memory.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = lexical.K1, b: float = lexical.B) -> None:
        lexical.check_options(k1, b)
        self._passages = list(passages)
        self._index: Any = _LuceneOkapi(lexical.document_tokens(self._passages), k1=k1, b=b)
        self._vocabulary = frozenset(self._index.idf)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it."""
        return lexical.search(self._passages, self._vocabulary, self._index.get_scores, queries, k)
