"""BM25 by the ``bm25s`` package: scores precomputed at indexing time, a query only sums them."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s

from probers.types import Passage

from . import lexical


class BM25:
    """Fast BM25 in memory; ranks as :class:`~probers.rag.retrievers.rank_bm25.RankBM25` does.

    Args:
        passages: the corpus, kept in memory.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        progress: show a bar while indexing (off for corpora that take under a second).
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = lexical.K1,
        b: float = lexical.B,
        progress: bool | None = None,
    ) -> None:
        lexical.check_options(k1, b)
        self._passages = list(passages)
        documents = lexical.document_tokens(self._passages)
        shown = len(documents) > 20_000 if progress is None else progress
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.index(documents, show_progress=shown)
        self._vocabulary = frozenset(t for document in documents for t in document)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it."""
        return lexical.search(self._passages, self._vocabulary, self._index.get_scores, queries, k)
