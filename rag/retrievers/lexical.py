"""Tokens, formula and ranking of BM25, its plain engine, and checks shared by the retrievers.

Both BM25 engines score Lucene's BM25, which is Elasticsearch's::

    score(q, d) = sum over query tokens t of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avg|d|)),
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),

whose idf is never negative, so that a score above 0 means "shares a token". Both break ties by the order of
the corpus. They rank alike and can be exchanged without changing a result.

They also count the passages that hold phrases, alone and together, from the places of tokens, which are
gathered when the first phrase is counted. A place is the number of a token in the corpus read as one
sequence, with one empty place after every passage, so that no phrase runs over the end of a passage. The
places of a token are in order. Those of a phrase are found from its rarest token by bisection in the places
of the others, moved by their distance (positional postings, Manning et al. 2008, section 2.4.2).
"""

from __future__ import annotations

import logging
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from probers.data.cache import duration, size
from probers.data.corpus import Rows, as_passages
from probers.types import Passage, UserError
from probers.words.text import tokenize as tokenize

from ..protocol import at_least

log = logging.getLogger(__name__)

#: Defaults of Lucene and Elasticsearch.
K1, B = 1.2, 0.75

#: Version of :func:`tokenize` and :func:`tokens_of`; an index of an earlier version is made again.
TOKENS_VERSION = 2
#: Files of the places of a stored corpus: of all tokens, where each token's begin, where each passage begins.
PLACES, POINTERS, BEGINNINGS = "places.npy", "pointers.npy", "beginnings.npy"
#: Approximate number of tokens read at a time from a stored corpus, which bounds the memory of making.
BLOCK = 8_000_000
#: Phrases with their passages, and tokens with their numbers, kept in memory.
_PHRASES, _NUMBERS = 2048, 1_000_000
#: The passages of an unknown token.
NOWHERE = np.zeros(0, dtype=np.int32)


def tokens_of(passage: Passage) -> list[str]:
    """Tokenize a passage's title and text."""
    return tokenize(passage.titled)


def document_tokens(passages: Sequence[Passage]) -> list[list[str]]:
    """Tokenize every passage; a corpus without a word is a UserError."""
    documents = [tokens_of(p) for p in passages]
    check_words(any(documents), len(documents))
    return documents


def check_words(words: object, passages: int) -> None:
    """Refuse a corpus without a token."""
    if not words:
        raise UserError(f"none of the {passages} passages of the corpus contains a word", "empty")


class Places:
    """Places of T distinct tokens in N passages with P tokens.

    Args:
        number: number of a token, None for an unknown one.
        places: (P,) unsigned, those of one token after those of another.
        pointers: (T + 1,) where the places of each token begin.
        beginnings: (N + 1,) the place where each passage begins, and the end.
    """

    def __init__(
        self, number: Callable[[str], int | None], places: np.ndarray, pointers: np.ndarray,
        beginnings: np.ndarray,
    ) -> None:  # fmt: skip
        self._number, self._places = number, np.asarray(places)
        self._pointers, self._beginnings = np.asarray(pointers), np.asarray(beginnings)

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> Places:
        """Number the tokens of documents and gather their places, in memory."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        flat, lengths = array("i"), array("i")
        for tokens in documents:
            flat.extend(map(numbers.__getitem__, tokens))
            lengths.append(len(tokens))
        ids = np.frombuffer(flat, dtype=np.int32)
        beginnings = _beginnings(lengths)
        pointers = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=len(numbers)))])
        # One empty place stands after every passage.
        places = np.arange(len(ids)) + np.repeat(np.arange(len(lengths)), np.frombuffer(lengths, np.int32))
        ordered = places[np.argsort(ids, kind="stable")].astype(beginnings.dtype)
        return cls(numbers.get, ordered, pointers, beginnings)

    @classmethod
    def load(cls, folder: Path, number: Callable[[str], int | None]) -> Places:
        """Map the files that :func:`write_places` made."""
        names = (PLACES, POINTERS, BEGINNINGS)
        return cls(number, *(np.load(folder / n, mmap_mode="r", allow_pickle=False) for n in names))

    def rows(self, phrase: Sequence[str]) -> np.ndarray:
        """List the rows of the passages that hold some tokens in a row, in order; none for no tokens."""
        numbers = [self._number(token) for token in phrase]
        if not numbers or None in numbers:
            return NOWHERE
        each = [(self._of(number), offset) for offset, number in enumerate(numbers) if number is not None]
        each.sort(key=lambda pair: len(pair[0]))
        (places, first), *others = each
        for longer, offset in others:
            wanted = places + np.array(offset - first).astype(places.dtype)  # below 0 wraps around, and back
            places = places[among(wanted, longer)]
        rows = np.searchsorted(self._beginnings, places, side="right") - 1
        return np.unique(rows).astype(np.int32)

    def _of(self, number: int) -> np.ndarray:
        start, end = self._pointers[number : number + 2]
        return self._places[start:end]


def among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Tell which values are in a sorted array; bisection makes a frequent token cheap beside a rare one."""
    present: np.ndarray = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return present


def write_places(
    documents: Iterable[Sequence[str]], folder: Path, number: Callable[[str], int | None], tokens: int, *,
    block: int = BLOCK,
) -> dict[str, Any]:  # fmt: skip
    """Fill a folder with the places of documents, whose vocabulary has ``tokens`` tokens.

    The documents are read once into a file of token numbers, which is then sorted block by block: memory
    holds one block, 16 bytes per token of the vocabulary and 24 per document.
    """
    numbered = lru_cache(_NUMBERS)(number)
    flat, lengths = folder / "tokens.bin", array("i")
    frequencies = np.zeros(tokens, dtype=np.int64)
    with flat.open("wb") as file:
        ids = array("i")

        def write() -> None:
            np.add(frequencies, np.bincount(np.frombuffer(ids, np.int32), minlength=tokens), out=frequencies)
            file.write(ids.tobytes())

        for words in documents:
            ids.extend(map(numbered, words))  # type: ignore[arg-type]  # the vocabulary has them all
            lengths.append(len(words))
            if len(ids) >= block:
                write()
                ids = array("i")
        write()
    beginnings = _beginnings(lengths)
    pointers = np.concatenate([[0], np.cumsum(frequencies)])
    total, filled = int(pointers[-1]), pointers[:-1].copy()
    kind = beginnings.dtype
    places = np.lib.format.open_memmap(folder / PLACES, "w+", kind, (total,))
    sequence = np.memmap(flat, np.int32, "r", shape=(total,)) if total else np.zeros(0, np.int32)
    ends = np.cumsum(np.frombuffer(lengths, dtype=np.int32), dtype=np.int64)
    for start in range(0, total, block):
        numbers = np.asarray(sequence[start : start + block])
        order = np.argsort(numbers, kind="stable")
        here = np.arange(start, start + len(numbers))
        # A place is the token's number in the sequence, and one more for every passage before it.
        here += np.searchsorted(ends, here, side="right")
        distinct, firsts, sizes = np.unique(numbers[order], return_index=True, return_counts=True)
        targets = np.repeat(filled[distinct] - firsts, sizes) + np.arange(len(numbers))
        places[targets] = here[order].astype(kind)
        filled[distinct] += sizes
    places.flush()
    flat.unlink()
    np.save(folder / POINTERS, pointers, allow_pickle=False)
    np.save(folder / BEGINNINGS, beginnings, allow_pickle=False)
    return {"passages": len(lengths), "tokens": total}


def _beginnings(lengths: array[int]) -> np.ndarray:
    """Compute the place where each passage begins, and the end."""
    sizes = np.frombuffer(lengths, dtype=np.int32).astype(np.int64) + 1
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return ends.astype(np.uint32 if ends[-1] < 2**31 else np.uint64)


class LexicalRetriever:
    """Retriever of passages that share tokens with a query; a subclass scores them."""

    def __init__(self, passages: Rows, k1: float, b: float) -> None:
        check_options(k1, b)
        self._passages = as_passages(passages)

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Find up to ``k`` passages that share a token with a query, best first, equals in corpus order."""
        at_least("k", k)
        return [self._best(self._scores(tokenize(query)), k) for query in queries]

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        """Count the passages that hold each phrase, like :class:`~probers.signals.rarity.Counts`."""
        return [len(self._holding(phrase)) for phrase in phrases]

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Count the passages that hold both phrases of each pair."""
        rows = (sorted(map(self._holding, pair), key=len) for pair in pairs)
        return [int(among(fewer, more).sum()) for fewer, more in rows]

    @cached_property
    def _holding(self) -> Callable[[str], np.ndarray]:
        """Function that lists the rows of the passages that hold a phrase; none for one without a token."""
        return lru_cache(_PHRASES)(self._find)

    def _find(self, phrase: str) -> np.ndarray:
        tokens = tokenize(phrase)
        if len(tokens) == 1:
            return self._rows(tokens[0])
        # A phrase with a token that is nowhere needs no places.
        known = all(len(self._rows(token)) for token in set(tokens))
        return self._places.rows(tokens) if tokens and known else NOWHERE

    @cached_property
    def _places(self) -> Places:
        """Places of all tokens, made when the first phrase of several tokens is counted."""
        return Places.of(map(tokens_of, self._passages))

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        """Compute scores (len(passages),) of any float type; None if the corpus knows none of the tokens."""
        raise NotImplementedError

    def _rows(self, token: str) -> np.ndarray:
        """List the rows of the passages that hold a token, in order."""
        raise NotImplementedError

    def _candidates(self, scores: np.ndarray, k: int) -> np.ndarray:
        """List, in order, the rows of scores above 0 that reach the ``k``-th largest of all."""
        floor = np.partition(scores, -k)[-k]
        return np.flatnonzero(scores >= floor if floor > 0 else scores > 0)

    def _best(self, scores: np.ndarray | None, k: int) -> list[Passage]:
        if scores is None:
            return []
        rows = self._candidates(scores, k) if k < len(scores) else np.flatnonzero(scores > 0)
        order = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return [replace(self._passages[int(i)], score=float(scores[i])) for i in order]


#: Most passages without a warning for ``rank_bm25``.
SMALL = 20_000
# Measured by benchmarks/retrieval.py on Wikipedia passages of 100 words, on one core: bytes of memory per
# passage, seconds per passage to index, seconds per passage for one query of ten words.
_MEMORY, _INDEXING, _QUERY = 10_000, 7.5e-5, 5e-6


class RankBM25(LexicalRetriever):
    """Exact BM25 in pure Python and numpy by ``rank_bm25``, the reference; a query visits every passage.

    Scores are the formula at the top of this file times ``k1 + 1``, a constant of the original formula. Past
    :data:`SMALL` passages a line on stderr says what memory and time to expect.

    Args:
        passages: the corpus; its tokens are kept in memory.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).

    Raises:
        UserError: an empty corpus, no passage with a word, parameters out of range.
    """

    def __init__(self, passages: Rows, *, k1: float = K1, b: float = B) -> None:
        from rank_bm25 import BM25Okapi

        super().__init__(passages, k1, b)
        if (count := len(self._passages)) > SMALL:
            log.warning(
                "retriever=rank_bm25 is meant for up to %s passages; %s take about %s of memory, %s to index "
                "and %.2g s per query of ten words (measured on one core); retriever=bm25 ranks the same and "
                "is faster",
                f"{SMALL:,}", f"{count:,}", size(count * _MEMORY), duration(count * _INDEXING),
                count * _QUERY,
            )  # fmt: skip
        self._index: Any = BM25Okapi(document_tokens(self._passages), k1=k1, b=b)
        # The package's own idf is negative for tokens in more than half of the documents.
        holding = Counter(chain.from_iterable(self._index.doc_freqs))
        self._index.idf = {t: math.log1p((count - n + 0.5) / (n + 0.5)) for t, n in holding.items()}

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        known = [t for t in tokens if t in self._index.idf]
        return self._index.get_scores(known) if known else None

    @cached_property
    def _postings(self) -> dict[str, np.ndarray]:
        postings = defaultdict[str, list[int]](list)
        for row, tokens in enumerate(self._index.doc_freqs):
            for token in tokens:
                postings[token].append(row)
        return {token: np.array(rows, dtype=np.int32) for token, rows in postings.items()}

    def _rows(self, token: str) -> np.ndarray:
        return self._postings.get(token, NOWHERE)


def check_options(k1: float, b: float) -> None:
    """Refuse parameters for which the formula is not a ranking function."""
    at_least("retriever.k1", k1, 0.0)
    if not 0 <= b <= 1:
        raise UserError(f"retriever.b={b} must be between 0 and 1")
