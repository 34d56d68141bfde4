"""Checks shared by the retrievers; tokens, formula and ranking of the BM25 engines.

Both BM25 engines score the same function, Lucene's BM25 (the one Elasticsearch uses):

    score(q, d) = sum over query tokens t of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avg|d|)),
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),

whose idf is never negative, so that a score above 0 means "shares a token", and
both break ties by the order of the corpus. They therefore rank alike and can be
exchanged without changing a result.
"""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import regex

from probers.types import Passage, UserError

from ..protocol import at_least

#: Lucene's and Elasticsearch's defaults.
K1, B = 1.2, 0.75

#: Counts changes of :func:`tokenize` and :func:`tokens_of`: an index made before one is made again.
TOKENS_VERSION = 2

_WORD = re.compile(r"\w+")
#: Words of any script with their vowel signs and accents.
_ANY_WORD = regex.compile(r"[\w\p{M}]+")
#: Scripts that write no spaces between words.
_UNSPACED = regex.compile(r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}ー]+)")


def tokenize(text: str) -> list[str]:
    """Words without their case and form (NFKC): runs of letters, digits, marks and underscores.

    A run of a script without spaces gives its pairs of characters. No stemming, no stop list.
    """
    if text.isascii():
        return _WORD.findall(text.lower())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    tokens: list[str] = []
    for word in _ANY_WORD.findall(folded.replace("i\u0307", "i")):  # of "İ"
        for place, run in enumerate(_UNSPACED.split(word)):
            if place % 2 and len(run) > 1:
                tokens += map("".join, pairwise(run))
            elif run:
                tokens.append(run)
    return tokens


def tokens_of(passage: Passage) -> list[str]:
    """The tokens by which a passage is found: those of its title and its text."""
    return tokenize(f"{passage.title} {passage.text}")


def document_tokens(passages: Sequence[Passage]) -> list[list[str]]:
    """The tokens of every passage.

    Raises:
        UserError: none of them holds a word.
    """
    documents = [tokens_of(p) for p in passages]
    if not any(documents):
        raise no_word(len(documents))
    return documents


class LexicalRetriever:
    """Retriever of passages that share tokens with a query; a subclass scores them.

    Args:
        passages: the corpus.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).

    Raises:
        UserError: an empty corpus, or parameters for which the formula is not a ranking function.
    """

    def __init__(self, passages: Sequence[Passage], k1: float, b: float) -> None:
        check_options(k1, b)
        check_corpus(passages)
        self._passages = passages

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """Up to ``k`` passages per query, best first; fewer when fewer share a token with it.

        Passages of equal scores keep the order of the corpus.

        Raises:
            UserError: ``k`` is below 1.
        """
        at_least("k", k)
        return [self._best(self._scores(tokenize(query)), k) for query in queries]

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        """(len(passages),) of any float type; None when the corpus knows none of the tokens."""
        raise NotImplementedError

    def _candidates(self, scores: np.ndarray, k: int) -> np.ndarray:
        """Rows, in order, of the scores above 0 that reach the ``k``-th largest of more than ``k`` scores."""
        floor = np.partition(scores, -k)[-k]
        return np.flatnonzero(scores >= floor if floor > 0 else scores > 0)

    def _best(self, scores: np.ndarray | None, k: int) -> list[Passage]:
        if scores is None:
            return []
        rows = self._candidates(scores, k) if k < len(scores) else np.flatnonzero(scores > 0)
        order = rows[np.argsort(-scores[rows], kind="stable")][:k]
        return [replace(self._passages[int(i)], score=float(scores[i])) for i in order]


def check_corpus(passages: Sequence[Passage]) -> None:
    """Refuse a corpus without a passage."""
    if not len(passages):
        raise UserError(
            "the corpus is empty: give corpus=testbed or a JSONL file with at least one passage", "empty"
        )


def no_word(passages: int) -> UserError:
    """The error for a corpus without a token."""
    return UserError(
        f"none of the {passages} passages of the corpus contains a word: nothing to search", "empty"
    )


def check_options(k1: float, b: float) -> None:
    """Refuse parameters for which the formula is not a ranking function."""
    at_least("retriever.k1", k1, 0)
    if not 0 <= b <= 1:
        raise UserError(f"retriever.b={b} must be between 0 and 1")


def check_extra(retriever: str, extra: str, packages: Mapping[str, str]) -> None:
    """Refuse to go on without the packages of an extra, given by their modules."""
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        names = " and ".join(missing)
        raise UserError(
            f"retriever={retriever} needs {names}: pip install 'probers[{extra}]'", "missing-extra"
        )
