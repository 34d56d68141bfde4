"""Signals that read no model: rarity of entities in a corpus (QuCo-RAG, 2026), and ranks of passages.

Rarity is how seldom a corpus names the entities of a question, or two entities together, by counts in a
retriever's own index. Passages that have been searched for, and not read, cost no pass of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from ..types import Passage
from ..words import Entity

#: Columns of :func:`known_of`.
KNOWN = ("retriever_score", "retriever_margin", "question_rarity", "question_words")
#: Passages from which on a question's rarest entity is not rare, as in ``trigger=rarity``.
_FREQUENCY = 10


@runtime_checkable
class Counts(Protocol):
    """A retriever that counts phrases in its passages, title and text as one.

    Case and Unicode form do not matter.
    """

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        """Count the passages that contain each phrase, its words in a row."""
        ...

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Count the passages that contain both phrases of each pair."""
        ...


def rarity(passages: float, below: float) -> float:
    """Score a number of passages: 1 for none, falling, above 1/2 exactly if it is less than ``below``.

    The score is below / (below + passages). With ``below`` at 0 or less it is 0, since no number is less.
    """
    return below / (below + passages) if below > 0 else 0.0


def question_rarity(passages: Sequence[int], below: float, reduction: Literal["lowest", "mean"]) -> float:
    """Score a question by the passages that contain each of its entities; 0 for a question without any."""
    if not passages:
        return 0.0
    return rarity(min(passages) if reduction == "lowest" else sum(passages) / len(passages), below)


def pair_rarity(passages: Sequence[int], below: float, *, every: bool) -> float:
    """Score an entity by the passages that contain it with each of its partners; 0 without a partner.

    It should stand with ``every`` one of them, or else with at least one.
    """
    return rarity((min if every else max)(passages), below) if passages else 0.0


def lowest_frequencies(
    questions: Sequence[str], index: Counts, recognise: Callable[[str], list[Entity]]
) -> list[int | None]:
    """Count the passages of each question's rarest entity; None for a question without an entity."""
    named = [list(dict.fromkeys(entity.text for entity in recognise(text))) for text in questions]
    phrases = list(dict.fromkeys(phrase for names in named for phrase in names))
    known = dict(zip(phrases, index.frequency(phrases), strict=True)) if phrases else {}
    return [min((known[name] for name in names), default=None) for names in named]


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
