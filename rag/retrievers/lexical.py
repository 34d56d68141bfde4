"""What the BM25 engines share: tokens, the scored formula, and the choice of the best k.

Both engines score the same function, Lucene's BM25 (the one Elasticsearch uses):

    score(q, d) = sum over query tokens t of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / avg|d|)),
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)),

whose idf is never negative, so that a score above 0 means "shares a token", and
both break ties by the order of the corpus. They therefore rank alike and can be
exchanged without changing a result.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from probers.types import Passage, UserError

#: Lucene's and Elasticsearch's defaults.
K1, B = 1.2, 0.75

#: Counts changes of :func:`tokenize` and :func:`tokens_of`: an index made before one is made again.
TOKENS_VERSION = 1

#: The scores of all passages for the tokens of one query; None when the corpus knows none of them.
Scorer = Callable[[list[str]], "np.ndarray | None"]

_WORD = re.compile(r"\w+")


def tokenize(text: str) -> list[str]:
    """Lower-cased words: maximal runs of letters, digits and underscores; no stemming, no stop list."""
    return _WORD.findall(text.lower())


def tokens_of(passage: Passage) -> list[str]:
    """The tokens by which a passage is found: those of its title and its text."""
    return tokenize(f"{passage.title} {passage.text}")


def document_tokens(passages: Sequence[Passage]) -> list[list[str]]:
    """The tokens of every passage.

    Raises:
        UserError: there is no passage, or none of them holds a word.
    """
    check_corpus(passages)
    documents = [tokens_of(p) for p in passages]
    if not any(documents):
        raise no_word(len(documents))
    return documents


def check_corpus(passages: Sequence[Passage]) -> None:
    """Refuse a corpus without a passage."""
    if not len(passages):
        raise UserError("the corpus is empty: give corpus=testbed or a JSONL file with at least one passage")


def no_word(passages: int) -> UserError:
    """The error for a corpus without a token."""
    return UserError(f"none of the {passages} passages of the corpus holds a word: nothing to search")


def check_extra(retriever: str, extra: str, modules: Sequence[str]) -> None:
    """Refuse to go on without the packages of an extra, whose names are those of its modules, nearly."""
    names = {"opensearchpy": "opensearch-py"}
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        packages = " and ".join(names.get(m, m.replace("_", "-")) for m in missing)
        raise UserError(f"retriever={retriever} needs {packages}: pip install 'probers[{extra}]'")


def check_options(k1: float, b: float) -> None:
    """Refuse parameters for which the formula is not a ranking function."""
    if not k1 >= 0:
        raise UserError(f"retriever.k1={k1} must be 0 or more")
    if not 0 <= b <= 1:
        raise UserError(f"retriever.b={b} must be between 0 and 1")


def check_k(k: int) -> None:
    """Refuse a number of passages that retrieves none."""
    if k < 1:
        raise UserError(f"k={k} retrieves nothing: give 1 or more")


def candidates(scores: np.ndarray, k: int) -> np.ndarray:
    """Rows, in order, of the scores above 0 that reach the ``k``-th largest of more than ``k`` scores."""
    floor = np.partition(scores, -k)[-k]
    return np.flatnonzero(scores >= floor if floor > 0 else scores > 0)


def best(
    passages: Sequence[Passage],
    scores: np.ndarray,
    k: int,
    select: Callable[[np.ndarray, int], np.ndarray] = candidates,
) -> list[Passage]:
    """The ``k`` best passages with a score above 0; equal scores keep the corpus order.

    Args:
        passages: the corpus.
        scores: (len(passages),) any float type.
        k: how many at most, 1 or more.
        select: does what :func:`candidates` does.
    """
    rows = select(scores, k) if k < len(scores) else np.flatnonzero(scores > 0)
    order = rows[np.argsort(-scores[rows], kind="stable")][:k]
    return [replace(passages[int(i)], score=float(scores[i])) for i in order]


def search(
    passages: Sequence[Passage],
    score: Scorer,
    queries: Sequence[str],
    k: int,
    select: Callable[[np.ndarray, int], np.ndarray] = candidates,
) -> list[list[Passage]]:
    """Run every query; one whose words the corpus does not know finds no passage.

    Raises:
        UserError: ``k`` is below 1.
    """
    check_k(k)
    found: list[list[Passage]] = []
    for query in queries:
        scores = score(tokenize(query))
        found.append([] if scores is None else best(passages, scores, k, select))
    return found
