"""Entities of a text that a model writes, where labels have them, each with what was known before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..text import split_sentences
from .base import Entity, Recognise

#: Characters between the beginning of a text and an entity that still count as "at its head": "the ".
HEAD = 5
#: Ends of a prompt behind which a text begins: "Answer:", the line break or mark of a chat template.
_BEGINS = (":", "\n", ">", "]")
_STOP = re.compile(r"[.!?]")


@dataclass(frozen=True, slots=True)
class WrittenEntity:
    """An entity of a written text.

    Attributes:
        entity: its span in that text.
        tokens: those that share a character with it; what is known before the first was known
            before anything of the entity was written.
        score: of the position that predicted the first.
    """

    entity: Entity
    tokens: tuple[int, ...]
    score: float


def lead(text: str) -> str:
    """Context of a text that continues within a sentence.

    A lower-case word keeps its first word from being taken for the beginning of a sentence.
    """
    return "x" if text[:1].isspace() else "x "


def head_entity(text: str, recognise: Recognise) -> Entity | None:
    """The entity at the head of a continuation, or None; where a sentence ends before it there is none."""
    before = lead(text)
    for entity in recognise(before + text):
        start, end = entity.start - len(before), entity.end - len(before)
        at_head = 0 <= start <= HEAD and not _STOP.search(text, 0, start)
        return Entity(start, end, entity.text, entity.type) if at_head else None
    return None


def breaks_off(prompt: str) -> bool:
    """Tell whether a prompt ends within a sentence, so that what is written goes on with it."""
    ends = prompt.rstrip(" \t")
    if not ends or ends.endswith(_BEGINS):
        return False
    return split_sentences(f"{ends} X")[-1][0] < len(ends)


def tokens_of(offsets: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """Positions of the tokens that share a character with [start, end) of their text."""
    return [i for i, (a, b) in enumerate(offsets) if a < end and b > start]


def written_entities(
    text: str, recognise: Recognise, *, prompt: str = "", accepted: str = "", openings: bool = False
) -> list[Entity]:
    """The entities that begin in a text, from left to right.

    Args:
        text: what was written last.
        recognise: finds entities.
        prompt: what it was written behind; only how it ends matters.
        accepted: the part of the same text with which the prompt ends.
        openings: also those that begin a sentence, which labels leave out
            (:func:`probers.data.articles.cuts.cut_article`).
    """
    before = accepted if accepted.strip() else lead(text) if breaks_off(prompt) else ""
    whole = before + text
    left_out = set() if openings else {start for start, _ in split_sentences(whole)}
    return [
        Entity(e.start - len(before), e.end - len(before), e.text, e.type)
        for e in recognise(whole)
        if e.start >= len(before) and e.start not in left_out
    ]


def with_scores(
    entities: Sequence[Entity], offsets: Sequence[tuple[int, int]], scores: Sequence[float] | np.ndarray
) -> list[WrittenEntity]:
    """Each entity with the score of the position that predicted its first token.

    Args:
        entities: of a text.
        offsets: [start, end) of each of its n tokens.
        scores: (n,) of the position before each token, the prompt's last before the first.
    """
    found = [(entity, tuple(tokens_of(offsets, entity.start, entity.end))) for entity in entities]
    return [WrittenEntity(entity, tokens, float(scores[tokens[0]])) for entity, tokens in found if tokens]
