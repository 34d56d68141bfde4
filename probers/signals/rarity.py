"""Rarity: how seldom a corpus names the entities of a question, or two entities together (QuCo-RAG, 2026).

It does not read the model: all scores come from counts of passages in a retriever's own index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from ..words import Entity


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
