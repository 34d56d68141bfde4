"""Entity spans by rules: names, dates, years and numbers with their units.

The rules stand alone, without any model. A name is a run of capitalised words,
joined over connectors ("University of the Arts"); a function word that only the
beginning of a sentence made upper-case is not part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from probers.text import STOP_WORDS, split_sentences

EntityType = Literal["name", "date", "year", "number"]

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_MONTH = "|".join(MONTHS)
_UNITS = "km|m|cm|mm|kg|g|t|miles?|feet|metres?|meters?|kilomet(?:re|er)s?|people|inhabitants|percent|%"
_SCALES = "thousand|million|billion|trillion"
_DATE = re.compile(
    rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)?\s+(?:of\s+)?(?:{_MONTH})(?:\s*,?\s*\d{{4}})?"
    rf"|(?:{_MONTH})\s+\d{{1,2}}(?:st|nd|rd|th)?(?:\s*,?\s*\d{{4}})?"
    rf"|(?:{_MONTH})\s+\d{{4}})\b"
)
_YEAR = re.compile(r"\b(?:1[0-9]|20)\d{2}\b(?!\s*(?:" + _UNITS + r"|" + _SCALES + r")\b)(?![,.]\d)")
_NUMBER = re.compile(
    rf"(?<![\w.,])\d+(?:,\d{{3}})*(?:\.\d+)?(?:st|nd|rd|th)?(?:\s+(?:{_SCALES}))?(?:\s*(?:{_UNITS})(?!\w))?"
)
_WORD = re.compile(r"[^\W\d_](?:[\w’'.&-]*\w)?")
_CONNECTORS = frozenset(
    [
        "of",
        "the",
        "de",
        "del",
        "della",
        "di",
        "da",
        "du",
        "la",
        "le",
        "van",
        "von",
        "der",
        "den",
        "and",
        "for",
        "in",
        "on",
    ]
)
#: Connectors that may open the second half of a name but never stand alone between two names.
_WEAK = frozenset(["and", "in", "on", "for"])


@dataclass(frozen=True, slots=True)
class Entity:
    """A span [start, end) of a text, with the text itself and its type."""

    start: int
    end: int
    text: str
    type: EntityType


def find_entities(text: str) -> list[Entity]:
    """Entities of a text from left to right, none overlapping another.

    Dates are looked for first, then years, numbers and names, so that "18 July
    1995" is one date and not a number, a name and a year.
    """
    taken: list[Entity] = []
    for pattern, kind in ((_DATE, "date"), (_YEAR, "year"), (_NUMBER, "number")):
        for match in pattern.finditer(text):
            if not any(e.start < match.end() and match.start() < e.end for e in taken):
                taken.append(Entity(match.start(), match.end(), match.group(), kind))  # type: ignore[arg-type]
    starts = {start for start, _ in split_sentences(text)}
    for start, end in _names(text, starts):
        if not any(e.start < end and start < e.end for e in taken):
            taken.append(Entity(start, end, text[start:end], "name"))
    return sorted(taken, key=lambda e: e.start)


def _names(text: str, sentence_starts: set[int]) -> Iterator[tuple[int, int]]:
    words = [(m.start(), m.end()) for m in _WORD.finditer(text)]
    position = 0
    while position < len(words):
        start, end = words[position]
        word = text[start:end]
        initial = start in sentence_starts
        if not word[0].isupper() or (initial and word.lower() in STOP_WORDS):
            position += 1
            continue
        position, end = _extend(text, words, position)
        if not (word.lower() in STOP_WORDS and text[start:end] == word):  # "I", "He" mid-sentence
            yield start, end


def _extend(text: str, words: list[tuple[int, int]], first: int) -> tuple[int, int]:
    """The word index after the name that begins at ``first``, and the name's end offset."""
    end = words[first][1]
    position = first + 1
    while position < len(words):
        ahead = position
        while ahead < len(words) and ahead - position < 2:
            if not _adjacent(text, words[ahead - 1][1], words[ahead][0]):
                break
            if text[slice(*words[ahead])] not in _CONNECTORS:
                break
            ahead += 1
        bridge = [text[slice(*w)] for w in words[position:ahead]]
        if bridge and bridge[0] in _WEAK:
            break
        if ahead >= len(words) or not _adjacent(text, words[ahead - 1][1], words[ahead][0]):
            break
        if not text[words[ahead][0]].isupper():
            break
        end = words[ahead][1]
        position = ahead + 1
    return position, end


def _adjacent(text: str, end: int, start: int) -> bool:
    """Whether only a space lies between two words."""
    return text[end:start] == " "
