"""Numbers and ordinals, in digits or words, with scales, currencies and units."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .base import Span

_UNITS = (
    r"km/h|km²|km2|km|cm|mm|kg|mg|ha|mph|kW|MW|GW|kV|kHz|MHz|GHz|GB|MB|kB|°C|°F|°|ft|mi|lbs?|oz|yd|m²|m|g|t|L|V|W|"
    r"(?:square|cubic|nautical|metric|short|long)\s(?:km|mi|ft|m|miles?|feet|foot|yards?|inches|tons?|tonnes?|"
    r"kilomet(?:re|er)s?|met(?:re|er)s?)|sq\s?(?:mi|km|ft|m)|"
    r"miles?|feet|foot|inches|inch|yards?|met(?:re|er)s?|(?:kilo|centi|milli)met(?:re|er)s?|acres?|hectares?|"
    r"pounds?|tons?|tonnes?|(?:kilo)?grams?|ounces?|lit(?:re|er)s?|gallons?|barrels?|knots?|"
    r"people|inhabitants|residents|percent|per\scent|%|dollars?|euros?|cents|"
    r"years?|months?|weeks?|days?|hours?|minutes?|seconds?|decades?|centuries"
)
_SCALES = r"hundred|thousand|million|billion|trillion|m(?=\s)|bn"
_CURRENCY = r"(?:(?:US|A|C|NZ|HK|CA)?\$|£|€|¥|₱|₹)\s?"
_DIGITS = re.compile(
    rf"(?:{_CURRENCY})?(?<![\w.,])(?<![\w][-–/])\d+(?:,\d{{3}})*(?:\.\d+)?(?:st|nd|rd|th)?"
    rf"(?:[\s-](?:{_SCALES})(?!\w))?(?:[\s-]?(?:{_UNITS})(?![\w-]))?"
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
_ORDINALS = re.compile(
    rf"(?<![\w-])(?:(?:{_TENS})-)?(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|"
    r"twelfth|thirteenth|fourteenth|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth)(?!\w|-\w)",
    re.IGNORECASE,
)
#: "first" and "second" count things only after one of these ("her first album"), not in "who first met".
_COUNTING = re.compile(
    r"(?:\b(?:the|a|an|his|her|their|its|our|my|this|that|and|or|very)|['’]s?)\s+$", re.IGNORECASE
)
_NO_NOUN = re.compile(r"\s+(?:to|was|is|were|of\s+(?:which|these|whom)|time)\b|\s*[,.;]")


def find_numbers(text: str) -> Iterator[Span]:
    """Spans of numbers with their units ("$1.5 million", "40 km", "twelve years") and ordinals.

    "one" alone is a pronoun as often as a number and is left out.
    """
    for match in _DIGITS.finditer(text):
        yield match.span()
    for match in _WORDS.finditer(text):
        if match.group().lower() != "one":
            yield match.span()
    for match in _ORDINALS.finditer(text):
        if match.group().lower() not in ("first", "second") or (
            _COUNTING.search(text, max(0, match.start() - 12), match.start())
            and not _NO_NOUN.match(text, match.end())
        ):
            yield match.span()
