"""The entity at the head of a continuation, and when it is certain that it will not change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probers.text import split_sentences

from ..cuts import Recognise
from ..entities import Entity

#: Characters between the cut and the written entity that still count as "at its head": "the ".
_HEAD = 5
#: Whole words after an entity beyond which nothing was seen to make it longer ("Duke of the ..").
_TAIL = 3


def head_entity(text: str, recognise: Recognise) -> Entity | None:
    """The entity at the head of a continuation, or None."""
    # The continuation begins mid-sentence: a lower-case word before it keeps the
    # first word from being taken for the beginning of a sentence.
    lead = "x" if text[:1].isspace() else "x "
    for entity in recognise(lead + text):
        start, end = entity.start - len(lead), entity.end - len(lead)
        return Entity(start, end, entity.text, entity.type) if 0 <= start <= _HEAD else None
    return None


def one_sentence(text: str) -> bool:
    """Stop rule: a second sentence has begun."""
    return len(split_sentences(text)) > 1


@dataclass(frozen=True, slots=True)
class Settled:
    """Stop rule: a second sentence has begun, or more text cannot change the entity at the head.

    It saves the rest of the sentence, which no label rests on.

    Attributes:
        recognise: finds entities; called a few times per text.
    """

    recognise: Recognise

    def __call__(self, text: str) -> bool:
        words = text.split()
        if len(words) <= _TAIL:
            return False
        if one_sentence(text):
            return True
        entity = head_entity(text, self.recognise)
        # The last word may be a part of one only.
        return entity is None or len(text[entity.end :].split()) > _TAIL


def stop_rule(recognise: Recognise, *, cheap: bool) -> Callable[[str], bool]:
    """The rule to stop a continuation by; a recogniser that is not ``cheap`` is not asked at every word."""
    return Settled(recognise) if cheap else one_sentence
