"""BM25 in this process: fast by the ``bm25s`` package, and plain by ``rank_bm25`` as the reference."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
from rank_bm25 import BM25Okapi

from probers.data.cache import duration, size
from probers.data.corpus import PassageStore
from probers.types import Passage

from . import lexical
from .bm25_disk import open_index

log = logging.getLogger(__name__)

#: From as many passages on queries run as code that numba compiles, which takes 3 s at the first of them
#: and saves 4 ms of each here, more of larger corpora.
COMPILED_FROM = 200_000

#: Corpora of more passages get a warning with ``rank_bm25``.
SMALL = 20_000
# Measured by benchmarks/retrieval.py on Wikipedia passages of 100 words, on one core: memory per passage
# in bytes, seconds per passage to index, seconds per passage for one query of ten words.
_MEMORY, _INDEXING, _QUERY = 10_000, 7.5e-5, 5e-6


class BM25(lexical.LexicalRetriever):
    """Fast BM25 by precomputed scores, which a query only sums; ranks as :class:`RankBM25` does.

    Passages in a list are indexed in memory. Those of a stored corpus are indexed once on the disk with
    bounded memory, and the index is memory-mapped: a query reads the scores of its own words.

    Args:
        passages: the corpus.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        cache: folder for the indexes of corpora that are too large for memory.

    Raises:
        UserError: an empty corpus, no passage with a word, parameters out of range.
        RunError: the cache cannot be written to, or lacks room.
    """

    def __init__(
        self,
        passages: Sequence[Passage],
        *,
        k1: float = lexical.K1,
        b: float = lexical.B,
        cache: str | Path = "runs/cache/bm25",
    ) -> None:
        super().__init__(passages if isinstance(passages, PassageStore) else list(passages), k1, b)
        if isinstance(passages, PassageStore):
            self._index: Any
            self._index, vocabulary = open_index(passages, k1, b, Path(cache))
            self._number = vocabulary.get
        else:
            documents = lexical.document_tokens(self._passages)
            self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
            self._index.index(documents, show_progress=len(passages) > 20_000)  # else under a second
            self._number = self._index.vocab_dict.get
        self._compiled = len(passages) >= COMPILED_FROM
        if self._compiled:
            self._index.activate_numba_scorer()

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        known = [n for n in map(self._number, tokens) if n is not None]
        return self._index.get_scores_from_ids(known) if known else None

    def _candidates(self, scores: np.ndarray, k: int) -> np.ndarray:
        if not self._compiled:
            return super()._candidates(scores, k)
        from bm25s.numba.selection import topk

        values, rows = topk(scores, k + 1)  # by a heap, which keeps no order among equal scores
        if values[k] < values[k - 1]:
            return np.sort(rows[:k])
        # As many as k share their scores with others, which may come before them in the corpus.
        return np.flatnonzero(scores >= values[k] if values[k] > 0 else scores > 0)


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
            log.warning("%s", _warning(len(passages)))
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
