"""Dates in their common forms: full, without a day, ISO, decades, centuries, BC, bare years."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .base import Cover, EntityType, Span

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
_MONTH = "|".join(MONTHS) + r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)(?:\.|(?=\s+\d))"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?(?:\s?[–-]\s?\d{1,2})?"
_ERA = r"(?:BCE|BC|CE|AD|B\.C\.E?\.?|A\.D\.)"
_ORDINAL = (
    r"\d{1,2}(?:st|nd|rd|th)|(?:twenty-)?(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)|tenth|"
    r"eleventh|twelfth|thirteenth|fourteenth|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth"
)
_QUANTITY = (
    r"(?:km|m|cm|mm|kg|g|t|ft|mi|acres?|hectares?|miles?|feet|met(?:re|er)s?|kilomet(?:re|er)s?|people|"
    r"inhabitants|percent|%|thousand|million|billion|trillion)"
)
_DATES = [
    re.compile(p)
    for p in (
        rf"\b{_DAY}\s+(?:of\s+)?(?:{_MONTH})(?:\s*,?\s*\d{{4}}(?!\d))?(?!\w)",
        rf"\b(?:{_MONTH})\s+(?:the\s+)?{_DAY}(?!\d|,\d{{3}})(?:\s*,?\s*\d{{4}}(?!\d))?(?!\w)",
        rf"\b(?:{_MONTH})(?:\s+of|,)?\s+\d{{4}}(?!\w|,\d)",
        r"(?<![\w-])\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![\w-])",
        rf"(?<![\w.,])(?:AD|A\.D\.)\s?\d{{1,4}}\b|(?<![\w.,])\d{{1,5}}(?:[–-]\d{{1,5}})?\s?{_ERA}(?!\w)",
        rf"\b(?i:{_ORDINAL})(?:\s|-)(?:(?:and|to)\s(?:\w+\s)?(?i:{_ORDINAL})\s)?[Cc]entur(?:y|ies)(?:\s{_ERA})?(?!\w)",
        r"(?<![\w.,])(?:\d{3}0['’]?s|['’]?\d0s)(?!\w)",
        r"(?<![\w.,$£€–-])[12]\d{3}[–/-]\d\d(?![\w–-])",
        r"(?<!\w)['’]\d\d(?![\w'’])",
    )
]
_YEAR = re.compile(rf"(?<![\w.,$£€#])(?:1[0-9]|20)\d{{2}}\b(?!\s*{_QUANTITY}(?!\w))(?![,.]\d)(?!-\w)")
_LONE_MONTH = re.compile(
    rf"\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|of|early|late|mid|that|last|next|following)[\s-]({'|'.join(MONTHS)})"
    r"(?!\w|\s+[A-Z\d])"
)


def find_dates(text: str) -> Iterator[tuple[Span, EntityType]]:
    """Dates and years of the text, each with its type; of overlapping ones the fuller.

    "July 18, 1995" is one date; a bare year from 1000 to 2099 is a "year".
    """
    cover = Cover(len(text))
    for pattern in _DATES:
        for match in pattern.finditer(text):
            if cover.free(match.span()):
                cover.take(match.span())
                yield match.span(), "date"
    for match in _LONE_MONTH.finditer(text):
        if cover.free(match.span(1)):
            cover.take(match.span(1))
            yield match.span(1), "date"
    for match in _YEAR.finditer(text):
        if cover.free(match.span()):
            yield match.span(), "year"
