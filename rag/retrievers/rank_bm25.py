"""BM25 by the ``rank_bm25`` package: the plain reference, exact, for small corpora."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from probers.data.cache import duration, size
from probers.types import Passage

from . import lexical

#: Corpora of more passages are warned of.
SMALL = 20_000

# Measured by benchmarks/retrieval.py on Wikipedia passages of 100 words, on one core: memory per passage
# in bytes, seconds per passage to index, seconds per passage for one query of ten words.
_MEMORY, _INDEXING, _QUERY = 10_000, 7.5e-5, 5e-6


class _LuceneOkapi(BM25Okapi):  # type: ignore[misc]
    """rank_bm25's scorer with Lucene's idf.

    Its own idf goes negative for tokens in more than half of the documents and is
    then replaced by a quarter of the average, a rule no other engine shares.
    """

    def _calc_idf(self, nd: Mapping[str, int]) -> None:
        self.idf = {t: math.log1p((self.corpus_size - n + 0.5) / (n + 0.5)) for t, n in nd.items()}


class RankBM25(lexical.LexicalRetriever):
    """Exact BM25 in pure Python and numpy; every query visits every passage.

    Scores are those of :mod:`.lexical` times the constant ``k1 + 1`` of the
    original formula, which changes no ranking. Past :data:`SMALL` passages a line
    on stderr says what memory and time to expect.

    Args:
        passages: the corpus; its tokens are kept in memory.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).

    Raises:
        UserError: an empty corpus, no passage with a word, parameters out of range.
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = lexical.K1, b: float = lexical.B) -> None:
        super().__init__(passages, k1, b)
        if len(passages) > SMALL:
            print(_warning(len(passages)), file=sys.stderr)
        self._index: Any = _LuceneOkapi(lexical.document_tokens(passages), k1=k1, b=b)

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        known = [t for t in tokens if t in self._index.idf]
        return self._index.get_scores(known) if known else None


def _warning(passages: int) -> str:
    return (
        f"retriever=rank_bm25 is meant for up to {SMALL:,} passages; {passages:,} take about "
        f"{size(passages * _MEMORY)} of memory, {duration(passages * _INDEXING)} to index and "
        f"{passages * _QUERY:.2g} s per query of ten words (from what was measured on one core); "
        "retriever=bm25 ranks the same and is faster"
    )
