"""BM25 by the ``bm25s`` package: scores precomputed at indexing time, a query only sums them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from probers.data.corpus import PassageStore
from probers.types import Passage

from . import lexical
from .bm25_disk import open_index

#: From as many passages on queries run as code that numba compiles, which takes 3 s at the first of them
#: and saves 4 ms of each here, more of larger corpora.
COMPILED_FROM = 200_000


class BM25(lexical.LexicalRetriever):
    """Fast BM25; ranks as :class:`~probers.rag.retrievers.rank_bm25.RankBM25` does.

    Passages in a list are indexed in memory. Those of a stored corpus are indexed once on the disk with
    bounded memory, and the index is memory-mapped: a query reads the scores of its own words.

    Args:
        passages: the corpus.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        cache: the folder for indexes of stored corpora.

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
