"""The entity span, and which kind of name a name is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..text import is_stop_word

EntityType = Literal["name", "date", "year", "number", "work", "organisation", "place"]

#: What is named, placed in time or counted: types of one kind can contradict each other.
_KINDS: dict[EntityType, str] = {"date": "time", "year": "time", "number": "number"}


def same_kind(a: EntityType, b: EntityType) -> bool:
    """Tell whether two types are both of names, both of times or both of numbers."""
    return _KINDS.get(a, "name") == _KINDS.get(b, "name")


#: A span [start, end) of a text without its type.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Entity:
    """A span [start, end) of a text, with the text itself and its type."""

    start: int
    end: int
    text: str
    type: EntityType


#: Finds the entities of a text, from left to right.
Recognise = Callable[[str], list[Entity]]


class Cover:
    """The characters of a text that spans have taken; each question costs the span's length."""

    def __init__(self, length: int, spans: Iterable[Span] = ()) -> None:
        self._taken = bytearray(length)
        for start, end in spans:
            self.take((start, end))

    def take(self, span: Span) -> None:
        start, end = span
        self._taken[start:end] = b"\1" * (end - start)

    def free(self, span: Span) -> bool:
        """Tell whether no character of the span is taken."""
        return not any(self._taken[slice(*span)])

    def take_longest(self, spans: Iterable[Span]) -> list[Span]:
        """Takes of the free spans the longest first, of equally long ones the first; returns those taken."""
        kept = []
        for span in sorted(set(spans), key=lambda s: (s[0] - s[1], s[0])):
            if self.free(span):
                self.take(span)
                kept.append(span)
        return kept


_ORGANISATION = re.compile(
    r"\b(?:University|College|Institute|Bank|Party|Company|Corporation|Inc|Ltd|LLC|League|Association|Union|"
    r"Committee|Council|Ministry|Department|Records|Orchestra|Club|F\.?C|Agency|Society|Foundation|Museum|"
    r"Academy|Commission|Parliament|Congress|Senate|Airlines|Airways|Railway|Group|Studios|Pictures|Army|Navy)\b\.?"
)
_PLACE = re.compile(
    r"(?:^|\s)(?:River|Lake|Mountains?|Mount|Islands?|Isle|Street|Avenue|Road|County|City|Township|Bay|Sea|Ocean|"
    r"Valley|Park|Bridge|Castle|Desert|Peninsula|Province|Borough|Hills?|Cape|Fort|Port|Gulf|Strait|Harbou?r|"
    r"Kingdom|Republic|Africa|America|Asia|Europe|Australia|England|Scotland|Wales|Ireland|France|Germany|Italy|"
    r"Spain|Portugal|Russia|China|Japan|India|Canada|Mexico|Brazil|Egypt|Greece|Poland|Sweden|Norway|Denmark|"
    r"Netherlands|Belgium|Austria|Switzerland|Turkey|Iran|Iraq|Israel|London|Paris|Berlin|Rome|Madrid|Moscow|"
    r"Tokyo|Beijing|Chicago|California|Texas|Florida|Virginia|United States|United Kingdom)(?:$|\sof\b)"
)
_FIRST_PLACE = re.compile(
    r"(?:Lake|Mount|Cape|Fort|Gulf of|Isle of|River|City of|Republic of|Kingdom of)\s[A-Z]"
)
_WORK_BEFORE = re.compile(r"\b(?:album|novel|song|single|film|book|opera|poem|play|episode|series|EP),?\s$")
_OTHER_BEFORE = re.compile(
    r"\b(?:bands?|groups?|duo|trio|ensemble|metal|nicknamed?|known as|as the|called|named|dubbed|terms?|"
    r"phrase|title of|means?|meaning)\s*(?:\w+\s)?[\"“(]\s?$"
)


def kind_of_quoted(text: str, span: Span) -> EntityType:
    """Type "work", unless the words before the quote announce a band, a nickname or a term."""
    return "name" if _OTHER_BEFORE.search(text, max(0, span[0] - 30), span[0]) else "work"


def kind_of(text: str, span: Span) -> EntityType:
    """The finest type that is sure; "name" when none is."""
    name = text[slice(*span)]
    if _WORK_BEFORE.search(text, max(0, span[0] - 12), span[0]):
        return "work"
    if _ORGANISATION.search(name):
        return "organisation"
    head = name.partition(" of ")[0]  # "President of the United States" is none
    if _PLACE.search(head) or _FIRST_PLACE.match(name):
        return "place"
    return "name"


_QUOTED = re.compile(r"[\"“]\s?([^\"“”\n]+?)\s?[\"”]")
_MAX_WORDS = 14
#: Share of a title's content words that begin with a capital or a digit.
_CAPITALS = 0.7
_WORD = re.compile(r"[^\W_][\w’'.&-]*")


def find_works(text: str) -> Iterator[Span]:
    """Spans between double quotes that are written like titles, without the quotes."""
    for match in _QUOTED.finditer(text):
        inside = match.group(1).rstrip(",;. ")
        if _is_title(inside):
            yield match.start(1), match.start(1) + len(inside)


def _is_title(inside: str) -> bool:
    words = _WORD.findall(inside)
    if not words or len(words) > _MAX_WORDS or not (words[0][0].isupper() or words[0][0].isdigit()):
        return False
    content = [w for w in words if not is_stop_word(w)] or words
    return sum(w[0].isupper() or w[0].isdigit() for w in content) >= _CAPITALS * len(content)
