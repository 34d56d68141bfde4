"""Word2Vec cosine between names, from a vector file in the word2vec format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .names import normalise


@dataclass(frozen=True, slots=True)
class Cosine:
    """Similarity in [-1, 1], or None with the words that have no vector."""

    value: float | None
    unknown: tuple[str, ...] = ()


def cosine(a: str, b: str, vectors: Any) -> Cosine:
    """Cosine of the mean vectors of the words that two names do not share.

    Shared words say nothing about whether the rest means the same, and averaging them in would
    make "Nobel Prize in Physics" and "Nobel Prize in Chemistry" all but one. A word without
    a vector leaves the cosine undecided: the mean of the others would be the similarity of
    two other names.
    """
    written = [_words(a), _words(b)]
    shared = written[0].keys() & written[1].keys()
    means, unknown = [], []
    for mention, words in zip((a, b), written, strict=True):
        found = []
        for word, forms in words.items():
            if word in shared:
                continue
            key = next((k for k in forms if k in vectors.key_to_index), None)
            if key is None:
                unknown.append(word)
            else:
                found.append(vectors.get_vector(key))
        if not found:
            unknown = unknown or [mention]
        else:
            means.append(np.mean(found, axis=0, dtype=np.float64))
    if unknown:
        return Cosine(None, tuple(dict.fromkeys(unknown)))
    size = float(np.linalg.norm(means[0]) * np.linalg.norm(means[1]))
    return Cosine(float(np.dot(means[0], means[1])) / size) if size else Cosine(None, (a, b))


def _words(mention: str) -> dict[str, tuple[str, ...]]:
    """The words of a name, each with the forms a vector file may have it in."""
    words: dict[str, tuple[str, ...]] = {}
    for written in mention.split():
        bare = "".join(c for c in written if c.isalnum())
        for word in normalise(written).split():
            words[word] = (bare, word, word.capitalize())
    return words
