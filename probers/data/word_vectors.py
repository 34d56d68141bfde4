"""Word vectors from files in the word2vec format."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..types import UserError


@lru_cache(maxsize=2)
def load_vectors(path: str) -> Any:
    """Gensim ``KeyedVectors`` from a word2vec file: text, or binary when it ends in ``.bin``.

    Raises:
        UserError: no such file, a pickled file, or one that is not in the word2vec format.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(2)
    except OSError as e:
        raise UserError(f"the vector file {path} cannot be read: {e.strerror}") from e
    if start[:1] == b"\x80" or path.endswith((".kv", ".model", ".pkl", ".pickle")):
        raise UserError(
            f"{path} is a pickled gensim file, which is not opened: save it with save_word2vec_format"
        )
    from gensim.models import KeyedVectors

    try:
        binary = path.removesuffix(".gz").endswith(".bin")
        vectors = KeyedVectors.load_word2vec_format(path, binary=binary)
    except (ValueError, EOFError, UnicodeDecodeError, IndexError) as e:
        raise UserError(f"{path} is not a vector file in the word2vec format: {e}") from e
    vectors.fill_norms()
    return vectors
