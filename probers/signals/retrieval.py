"""Signals of a question before a retrieval is read: the ranks of its passages, its rarity, its length.

The passages have been searched for, which costs no pass of the model, and not been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..types import Passage
from .rarity import question_rarity

#: Columns of :func:`known_of`.
KNOWN = ("retriever_score", "retriever_margin", "question_rarity", "question_words")
#: Passages from which on a question's rarest entity is not rare, as in ``trigger=rarity``.
_FREQUENCY = 10


def retriever_ranks(passages: Sequence[Passage]) -> dict[str, float | None]:
    """Return the best passage's score and its margin over the second; None where nothing was found."""
    scores = [p.score for p in passages[:2] if p.score is not None]
    if not scores:
        return {"retriever_score": None, "retriever_margin": None}
    return {"retriever_score": scores[0], "retriever_margin": scores[0] - (*scores, 0.0)[1]}


def known_of(columns: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    """Make :data:`KNOWN` (n,) each of the columns of a store.

    These are ``question`` (n texts), and what is there of ``retriever_score``, ``retriever_margin`` and
    ``question_frequency``. A question for which nothing was found has scores of 0, and one without an entity
    a rarity of 0, as in ``trigger=rarity``.
    """
    n = len(columns["question"])

    def numbers(name: str) -> np.ndarray:
        values = columns[name] if name in columns else [None] * n
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    named = [[] if np.isnan(passages) else [passages] for passages in numbers("question_frequency")]
    return {
        "retriever_score": np.nan_to_num(numbers("retriever_score")),
        "retriever_margin": np.nan_to_num(numbers("retriever_margin")),
        "question_rarity": np.array([question_rarity(each, _FREQUENCY, "lowest") for each in named]),
        "question_words": np.array([float(len(text.split())) for text in columns["question"]]),
    }
