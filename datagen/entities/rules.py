"""Entities of a text by rules alone."""

from __future__ import annotations

from .base import Cover, Entity, EntityType, Span
from .dates import find_dates
from .kinds import kind_of, kind_of_quoted
from .names import find_names
from .numbers import find_numbers
from .works import find_works


def find_entities(text: str, *, fine: bool = False) -> list[Entity]:
    """Entities of a text from left to right, none overlapping another.

    Quoted titles come first, then dates, names and numbers; within each the longest
    span wins, so that "18 July 1995" is one date and not a number, a name and a year.

    Args:
        text: natural text.
        fine: also the types "work", "organisation" and "place" where a cue makes them
            sure; else these are "name".
    """
    cover = Cover(len(text))
    found: dict[Span, EntityType] = {}
    for span in cover.take_longest(find_works(text)):
        found[span] = kind_of_quoted(text, span) if fine else "name"
    dates = dict(find_dates(text))
    for span in cover.take_longest(dates):
        found[span] = dates[span]
    for span in cover.take_longest(find_names(text, cover)):
        found[span] = kind_of(text, span) if fine else "name"
    for span in cover.take_longest(find_numbers(text)):
        found[span] = "number"
    return [Entity(start, end, text[start:end], kind) for (start, end), kind in sorted(found.items())]
