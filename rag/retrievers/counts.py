"""Counts of phrases in the passages of an index, alone and together, from the postings of their tokens.

Postings name the passages that hold a token, without its places. The candidates of a phrase are the passages
that hold all of its tokens. Up to :data:`READ` candidates are read, and those with the tokens in a row count.
A larger number counts as it is, since a phrase whose words meet that often is not rare either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

#: Most candidates that are read for one count.
READ = 16
#: Numbers kept in memory: phrases with their passages, and passages with their tokens.
_PHRASES, _TEXTS = 2048, 4096

#: The postings of an unknown token.
NOWHERE = np.zeros(0, dtype=np.int32)

#: Tokens of a phrase, in order.
Phrase = tuple[str, ...]


class PhraseReader:
    """Finder of phrases in passages; ``tokens`` gives those of the passage at a row of the corpus."""

    def __init__(self, tokens: Callable[[int], Sequence[str]]) -> None:
        self._text = lru_cache(_TEXTS)(lambda row: _joined(tokens(row)))

    def holding(self, rows: Sequence[int], phrases: Sequence[Phrase]) -> list[int]:
        """List the rows whose passages hold the tokens of each phrase in a row."""
        wanted = [_joined(phrase) for phrase in phrases]
        return [row for row in rows if all(map(self._text(row).__contains__, wanted))]


def _joined(tokens: Sequence[str]) -> str:
    return f" {' '.join(tokens)} "  # no token contains a space


class PhraseCounts:
    """Counts from postings in memory, or mapped to it.

    Args:
        tokenize: cuts a phrase into the index's tokens.
        postings: the rows of the passages that hold a token, in order; empty for an unknown one.
        tokens: the tokens of the passage at a row.
    """

    def __init__(
        self, tokenize: Callable[[str], Sequence[str]], postings: Callable[[str], np.ndarray],
        tokens: Callable[[int], Sequence[str]],
    ) -> None:  # fmt: skip
        self._tokenize, self._postings, self._reader = tokenize, postings, PhraseReader(tokens)
        self._of = lru_cache(_PHRASES)(self._found)

    def count(self, group: Sequence[str]) -> int:
        """Count the passages that hold all phrases of a group; 0 for an empty phrase."""
        found = [self._of(phrase) for phrase in group]
        rows = intersection([rows for rows, _ in found])
        unread = [phrase for _, phrase in found if len(phrase) > 1]
        if not 0 < len(rows) <= READ or not unread:
            return len(rows)
        return len(self._reader.holding(rows.tolist(), unread))

    def _found(self, text: str) -> tuple[np.ndarray, Phrase]:
        """Find the candidates of a phrase, and its tokens."""
        phrase = tuple(self._tokenize(text))
        return intersection([self._postings(token) for token in dict.fromkeys(phrase)]), phrase


def intersection(lists: Sequence[np.ndarray]) -> np.ndarray:
    """Intersect sorted arrays without repeats; no arrays give an empty one.

    Each element of the shortest is looked up in the others by bisection, so that a frequent token costs
    little beside a rare one.
    """
    if not lists:
        return NOWHERE
    common, *longer = sorted(lists, key=len)
    for rows in longer:
        if not len(common):
            break
        places = np.minimum(np.searchsorted(rows, common), len(rows) - 1)
        common = common[rows[places] == common]
    return common


def inverted(documents: Iterable[Iterable[str]]) -> dict[str, np.ndarray]:
    """Make the postings of documents, each given by its distinct tokens."""
    found: dict[str, list[int]] = {}
    for number, tokens in enumerate(documents):
        for token in tokens:
            found.setdefault(token, []).append(number)
    return {token: np.array(numbers, dtype=np.int32) for token, numbers in found.items()}
