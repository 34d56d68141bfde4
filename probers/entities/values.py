"""Dates and numbers in their common forms, in digits or words, and the characters covered by spans."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from ..text import MONTHS

#: A span [start, end) of a text without its type.
Span = tuple[int, int]


class Cover:
    """The characters of a text that spans cover."""

    def __init__(self, length: int) -> None:
        self._taken = bytearray(length)

    def take(self, span: Span) -> None:
        start, end = span
        self._taken[start:end] = b"\1" * (end - start)

    def free(self, span: Span) -> bool:
        return not any(self._taken[slice(*span)])

    def take_longest(self, spans: Iterable[Span]) -> list[Span]:
        """Take the free spans, the longest first, then from left to right, and return them."""
        kept = []
        for span in sorted(set(spans), key=lambda s: (s[0] - s[1], s[0])):
            if self.free(span):
                self.take(span)
                kept.append(span)
        return kept


_MONTH = "|".join(MONTHS) + r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)(?:\.|(?=\s+\d))"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?(?:\s?[–-]\s?\d{1,2})?"
_ERA = r"(?:BCE|BC|CE|AD|B\.C\.E?\.?|A\.D\.)"
_FIRST_TO_NINTH = "first|second|third|fourth|fifth|sixth|seventh|eighth|ninth"
_TENTH_TO_TWENTIETH = (
    "tenth|eleventh|twelfth|thirteenth|fourteenth|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|"
    "twentieth"
)
_ORDINAL = rf"\d{{1,2}}(?:st|nd|rd|th)|(?:twenty-)?(?:{_FIRST_TO_NINTH})|{_TENTH_TO_TWENTIETH}"
_QUANTITY = (
    r"(?:km|m|cm|mm|kg|g|t|ft|mi|acres?|hectares?|miles?|feet|met(?:re|er)s?|kilomet(?:re|er)s?|people|"
    r"inhabitants|percent|%|thousand|million|billion|trillion|tons?|tonnes?|pounds|yards?|dollars|euros|square|"
    r"cubic|years|hours|minutes)"
)
#: Nouns before which four digits are part of the name and no year ("Route 1709", "Song Contest 2004").
NUMBERED = frozenset(
    """Route Routes Highway Road FM RM SR UR SH CR Loop Spur Type Model Flight Class Mark Number Act Contest
    Festival Games Olympics Cup Championship Championships Awards Expo""".split()
)
_NUMBERED = re.compile(r"(\w+)\s$")
_DATES = [
    re.compile(p)
    for p in (
        rf"\b{_DAY}\s+(?:of\s+)?(?:{_MONTH})(?:\s*,?\s*\d{{4}}(?!\d))?(?!\w)",
        rf"\b(?:{_MONTH})\s+(?:the\s+)?{_DAY}(?!\d|,\d{{3}})(?:\s*,?\s*\d{{4}}(?!\d))?(?!\w)",
        rf"\b(?:{_MONTH})(?:\s+of|,)?\s+\d{{4}}(?!\w|,\d)",
        r"(?<![\w/.-])\d{4}([-/.])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])(?![\w-])",
        r"(?<![\w/.,-])(?:0?[1-9]|[12]\d|3[01])([-/.])(?:0?[1-9]|[12]\d|3[01])\1(?:[12]\d{3}|\d\d)(?![\w/-]|\.\d)",
        rf"(?<![\w.,])(?:AD|A\.D\.)\s?\d{{1,4}}\b|(?<![\w.,])\d{{1,5}}(?:[–-]\d{{1,5}})?\s?{_ERA}(?!\w)",
        rf"\b(?i:{_ORDINAL})(?:\s|-)(?:(?:and|to)\s(?:\w+\s)?(?i:{_ORDINAL})\s)?"
        rf"(?:century|Century(?!\s[A-Z][a-z])|[Cc]enturies)(?:\s{_ERA})?(?!\w)",  # not "20th Century Fox"
        r"\b(?i:spring|summer|autumn|fall|winter)\s(?:of\s)?[12]\d{3}(?!\w|,\d)",
        r"(?<![\w.,])(?:\d{3}0['’]?s|['’]?\d0s)(?!\w)",
        r"(?<![\w.,$£€–-])[12]\d{3}(?:[–/-]\d\d|/[12]\d{3})(?![\w–-])",
        r"(?<!\w)['’]\d\d(?![\w'’])",
    )
]
_YEAR = re.compile(
    rf"(?<![\w.,$£€#])(?:1[0-9]|20)\d{{2}}\b(?!\s*{_QUANTITY}(?!\w))(?![,.]\d)"
    r"(?!-(?!(?:1[0-9]|20)\d{2}(?!\d))\w)"  # "1819-1892" are two years, "1960-like" is none
)
_LONE_MONTH = re.compile(
    rf"\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|of|early|late|mid|that|last|next|following)[\s-]({'|'.join(MONTHS)})"
    r"(?!\w|\s+[A-Z\d])"
)


def find_dates(text: str) -> Iterator[tuple[Span, Literal["date", "year"]]]:
    """Find dates and bare years from 1000 to 2099; of overlapping ones take the fuller."""
    cover = Cover(len(text))
    for pattern in (*_DATES, _LONE_MONTH, _YEAR):
        for match in pattern.finditer(text):
            span = match.span(1 if pattern is _LONE_MONTH else 0)  # without the words before a lone month
            before = _NUMBERED.search(text, max(0, span[0] - 20), span[0]) if pattern is _YEAR else None
            if before and before.group(1) in NUMBERED:
                continue
            if cover.free(span):
                cover.take(span)
                yield span, "year" if pattern is _YEAR else "date"


_UNITS = (
    r"km/h|k?m/s|[µμ][gm]|km²|km2|km|cm|mm|kg|mg|ha|mph|kW|MW|GW|kV|kHz|MHz|GHz|GB|MB|kB|°C|°F|°|ft|mi|lbs?|oz|yd|m²|m|g|t|L|V|W|"
    r"(?:square|cubic|nautical|metric|short|long)\s(?:km|mi|ft|m|miles?|feet|foot|yards?|inches|tons?|tonnes?|"
    r"kilomet(?:re|er)s?|met(?:re|er)s?)|sq\s?(?:mi|km|ft|m)|"
    r"degrees?|miles?|feet|foot|inches|inch|yards?|met(?:re|er)s?|(?:kilo|centi|milli)met(?:re|er)s?|acres?|hectares?|"
    r"pounds?|tons?|tonnes?|(?:kilo)?grams?|ounces?|lit(?:re|er)s?|gallons?|barrels?|knots?|"
    r"people|inhabitants|residents|percent|per\scent|%|dollars?|euros?|cents|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|decades?|centuries"
)
_SCALES = (
    r"(?:[\s-](?:hundred|thousand|million|billion|trillion|lakh|crore|m(?=\s))|\s?(?:mn|bn|tn)|"
    r"(?(money)[kKmMbB]|[kM]))(?!\w)"
)
_CURRENCY = r"(?:(?:US|A|C|NZ|HK|CA)?\$|£|€|¥|₱|₹)\s?"
#: A minus not joined to the text before it: "at -40 °C", but not "10-20" and "10 – 20".
_MINUS = r"(?:(?:(?<=[\s(\"“])(?<!\d\s)|(?<!.))(?:[-−–](?=[\d.$£€])|[Mm]inus\s))"
_DIGITS = re.compile(
    rf"{_MINUS}?(?P<money>{_CURRENCY})?(?<![\w.,])(?<![\w][-–/])\d+(?:,\d{{3}}|,\d\d(?=,\d))*(?:\.\d+)?(?![.,]?\d)"
    rf"(?:st|nd|rd|th|\s?[¼-¾⅐-⅞]|/\d{{1,3}}(?![\w/])|\s?×\s?10[⁰¹²³⁴-⁹⁻]+)?"
    rf"(?:{_SCALES})?(?:[\s-]?(?:{_UNITS})(?![\w-]))?"
)
_NOON = r"\s?(?:[ap]m|AM|PM|[ap]\.m\.|[AP]\.M\.)(?!\w)"
_CLOCK = re.compile(
    rf"(?<![\w.,:])(?:[0-2]?\d:[0-5]\d(?::[0-5]\d)?(?![\w:])(?:{_NOON})?|(?:1[0-2]|[1-9]){_NOON})"
)
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_BASE = rf"(?:(?:{_TENS})(?:-(?:{_ONES}))?|{_TEENS}|{_ONES})"
_WORDS = re.compile(
    rf"(?<![\w-])(?:{_BASE}(?:[\s-](?:hundred|thousand|million|billion|trillion|dozen)(?:\s(?:and\s)?{_BASE})?)*)"
    rf"(?:[\s-](?:{_UNITS})(?![\w-]))?(?![\w-])",
    re.IGNORECASE,
)
_SHARES = "third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth"
_FRACTIONS = re.compile(
    rf"(?<![\w-])(?:one[\s-](?:{_SHARES})|(?!one)(?:{_ONES})[\s-](?:{_SHARES})s)(?![\w-])", re.IGNORECASE
)
_ORDINALS = re.compile(
    rf"(?<![\w-])(?:(?:{_TENS})-)?(?:{_FIRST_TO_NINTH}|{_TENTH_TO_TWENTIETH})(?!\w|-\w)", re.IGNORECASE
)
#: "first" and "second" count things only after one of these ("her first album"), not in "who first met".
_COUNTING = re.compile(
    r"(?:\b(?:the|a|an|his|her|their|its|our|my|this|that|and|or|very)|['’]s?)\s+$", re.IGNORECASE
)
_NO_NOUN = re.compile(r"\s+(?:to|was|is|were|of\s+(?:which|these|whom)|time)\b|\s*[,.;]")


def find_numbers(text: str) -> Iterator[Span]:
    """Find numbers with their units ("$1.5 million", "40 km", "twelve years") and ordinals.

    "one" alone is left out: it is a pronoun as often as a number.
    """
    for pattern in (_CLOCK, _FRACTIONS, _DIGITS, _WORDS, _ORDINALS):
        for match in pattern.finditer(text):
            start, end = match.span()
            word = match.group().lower()
            glued = pattern is _DIGITS and text[end : end + 1].isalpha()  # "3D", "20S" and "1UP"
            uncounted = word in ("first", "second") and (
                not _COUNTING.search(text, max(0, start - 12), start) or _NO_NOUN.match(text, end)
            )
            if not (glued or uncounted or word == "one"):
                yield start, end
