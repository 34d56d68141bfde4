"""Word2Vec cosine between names, from a file of vectors or from vectors trained on a run's own articles."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..checksums import sealed, take, unsealed
from ..files import check_file, write_text
from ..types import Article, UserError, first_line
from .language import ENGLISH, Language
from .spelling import normalise
from .text import join_sentences, split_sentences, tokenize

log = logging.getLogger(__name__)


@lru_cache(maxsize=2)
def load_vectors(path: str) -> Any:
    """Load gensim ``KeyedVectors`` from a word2vec file: text, or binary when it ends in ``.bin``."""
    try:
        check_file(path)
        with open(path, "rb") as file:
            start = file.read(2)
    except OSError as e:
        raise UserError(f"the vector file {path} cannot be read: {e.strerror}", "bad-file") from e
    if start[:1] == b"\x80" or path.endswith((".kv", ".model", ".pkl", ".pickle")):
        reason = f"{path} is a pickled gensim file, which is not opened: save it with save_word2vec_format"
        raise UserError(reason, "bad-file")
    from gensim.models import KeyedVectors

    try:
        binary = path.removesuffix(".gz").endswith(".bin")
        vectors = KeyedVectors.load_word2vec_format(path, binary=binary)
    except (ValueError, EOFError, UnicodeDecodeError, IndexError) as e:
        form = "a line with the number of words and their width, then every word with its numbers"
        raise UserError(f"{path} is not in the word2vec format: {form}", "bad-file") from e
    vectors.fill_norms()
    return vectors


@dataclass(frozen=True, slots=True)
class Cosine:
    """Similarity in [-1, 1], or None, then with the words without a vector if these are the reason."""

    value: float | None
    unknown: tuple[str, ...] = ()


def cosine(a: str, b: str, vectors: Any, *, spaced: bool = True) -> Cosine:
    """Compute the cosine of the mean vectors of the words that two names do not share.

    Shared words say nothing about the meaning of the rest, and averaging them in would make "Nobel
    Prize in Physics" and "Nobel Prize in Chemistry" almost equal. A word without a vector leaves no cosine:
    the mean of the others would compare two other names. There is no cosine either if one name has no
    word that the other lacks. The words of a script that is not ``spaced`` are its pairs of characters.
    """
    written = [_words(name if spaced else " ".join(tokenize(name))) for name in (a, b)]
    shared = written[0].keys() & written[1].keys()
    means, unknown = [], []
    for words in written:
        keys = {
            word: next((form for form in forms if form in vectors.key_to_index), None)
            for word, forms in words.items()
            if word not in shared
        }
        unknown += [word for word, key in keys.items() if key is None]
        if known := [vectors.get_vector(key) for key in keys.values() if key is not None]:
            means.append(np.mean(known, axis=0, dtype=np.float64))
    if unknown or len(means) < 2:  # one of them may have no word that the other has not
        return Cosine(None, tuple(dict.fromkeys(unknown)))
    size = float(np.linalg.norm(means[0]) * np.linalg.norm(means[1]))
    return Cosine(float(np.dot(means[0], means[1])) / size if size else None)


def _words(mention: str) -> dict[str, tuple[str, ...]]:
    """Split a name into words, each with its possible forms in a vector file."""
    return {
        word: ("".join(c for c in written if c.isalnum()), word, word.capitalize())
        for written in mention.split()
        for word in normalise(written).split()
    }


class TooFewError(UserError):
    """Error of too few articles to train vectors on."""


#: Least number of articles for vectors by default: with fewer, hardly a name would have one.
FEW = 200
#: Rarer words have no vector, and so leave a comparison undecided.
MIN_COUNT = 5
_SKIP_GRAM = {"sg": 1, "vector_size": 100, "window": 5, "epochs": 10}


def train_vectors(
    articles: Iterable[Article], path: Path, *, seed: int, least: int = 0, language: Language = ENGLISH
) -> None:
    """Train Word2Vec (skip-gram, Mikolov et al. 2013), centre it and write it in the word2vec format, binary.

    Centring subtracts the mean of all vectors from each (Mu and Viswanath 2018). The articles, natural text,
    are read once and written to a file of words beside ``path``, which gensim then streams: memory
    grows with the vocabulary, not with the articles. It uses one thread, so that equal articles give equal
    vectors. Vectors of an earlier run are kept, unless they are damaged.

    Raises:
        TooFewError: fewer articles than ``least``, or no word occurs often enough.
    """
    if trained(path):
        return
    from gensim.models import Word2Vec

    count = 0
    words, beside = path.with_suffix(".words"), path.with_name(f".{path.name}.tmp.bin")
    try:
        with open(words, "w", encoding="utf-8") as file:
            for article in articles:
                count += 1
                text = join_sentences(article.sentences)
                for start, end in split_sentences(text, language):
                    sentence = text[start:end] if language.spaced else " ".join(tokenize(text[start:end]))
                    file.write(normalise(sentence) + "\n")
        if count < least:
            reason = f"{count} articles are fewer than the {least} that vectors are trained on"
            raise TooFewError(reason, "empty")
        log.info("training word vectors on %s articles -> %s", f"{count:,}", path)
        try:
            model = Word2Vec(corpus_file=str(words), min_count=MIN_COUNT, seed=seed, workers=1, **_SKIP_GRAM)
        except RuntimeError as error:  # an empty vocabulary
            reason = f"matcher.vectors=own: no word occurs {MIN_COUNT} times in the articles"
            remedy = 'raise the limit, give a vector file or pass matcher.vectors=""'
            raise TooFewError(f"{reason}; {remedy}", "empty") from error
        # The common part of all vectors says nothing, and with few articles they share nearly everything:
        # with 300 articles, two words drawn at random have a cosine of 0.99.
        model.wv.vectors -= model.wv.vectors.mean(axis=0)
        model.wv.save_word2vec_format(str(beside), binary=True)
        os.replace(beside, path)
        write_text(_record(path), sealed({"files": take(path.parent, [path.name])}))
    finally:
        words.unlink(missing_ok=True)
        beside.unlink(missing_ok=True)


def trained(path: Path) -> bool:
    """Tell whether vectors of :func:`train_vectors` exist; log those that are damaged."""
    if not path.exists():
        return False
    try:
        if unsealed(_record(path))["files"] == take(path.parent, [path.name]):
            return True
        what = f"{path} was altered"
    except FileNotFoundError:
        what = f"{path} has no checksum beside it"
    except (OSError, ValueError) as error:
        what = f"{_record(path)} {first_line(error)}"
    log.info("%s: training the vectors again", what)
    return False


def _record(path: Path) -> Path:
    return path.with_suffix(".json")
