"""Whether two entity mentions mean the same: by number, by date, by normalised string."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Literal

from .entities import MONTHS

Verdict = Literal["equivalent", "different", "undecided"]

_MONTH_NUMBER = {name.lower(): index for index, name in enumerate(MONTHS, 1)}
_SCALE = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
_NUMBER = re.compile(
    r"(\d+(?:,\d{3})*(?:\.\d+)?)(?:st|nd|rd|th)?(?:\s+(thousand|million|billion|trillion))?\b(.*)"
)


@dataclass(frozen=True, slots=True)
class Match:
    """A verdict with the stage that reached it and what that stage compared."""

    verdict: Verdict
    stage: str
    evidence: str


@dataclass(frozen=True, slots=True)
class EntityMatcher:
    """Compares an original entity with a generated one, stage by stage.

    Attributes:
        partial: verdict when one name's words are part of the other's
            ("Einstein" and "Albert Einstein"): which is meant cannot be told
            from the two strings alone.
    """

    partial: Verdict = "undecided"

    def match(self, original: str, generated: str) -> Match:
        """The first stage that applies decides: date, number, string.

        Raises:
            ValueError: an empty mention.
        """
        if not original.strip() or not generated.strip():
            raise ValueError(f"cannot compare {original!r} with {generated!r}: one of them is empty")
        return (
            self._by_date(original, generated)
            or self._by_number(original, generated)
            or self._by_string(original, generated)
        )

    def _by_date(self, original: str, generated: str) -> Match | None:
        a, b = parse_date(original), parse_date(generated)
        if a is None or b is None:
            return None
        evidence = f"{_show(a)} / {_show(b)}"
        if a == b:
            return Match("equivalent", "date", evidence)
        shared = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        if all(x == y for x, y in shared) and shared:
            return Match("undecided", "date", evidence)  # one is a part of the other
        return Match("different", "date", evidence)

    def _by_number(self, original: str, generated: str) -> Match | None:
        a, b = parse_number(original), parse_number(generated)
        if a is None or b is None:
            return None
        same = a[0] == b[0] and (a[1] == b[1] or not a[1] or not b[1])
        return Match("equivalent" if same else "different", "number", f"{a[0]:g} {a[1]} / {b[0]:g} {b[1]}")

    def _by_string(self, original: str, generated: str) -> Match:
        a, b = normalise(original), normalise(generated)
        evidence = f"{a} / {b}"
        if a == b:
            return Match("equivalent", "string", evidence)
        words_a, words_b = a.split(), b.split()
        if words_a and words_b and (set(words_a) < set(words_b) or set(words_b) < set(words_a)):
            return Match(self.partial, "partial", evidence)
        return Match("different", "string", evidence)


def normalise(mention: str) -> str:
    """Lower case without diacritics, punctuation, articles or a possessive ending."""
    text = unicodedata.normalize("NFKD", mention)
    text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    text = re.sub(r"[’']s\b", "", text)
    text = re.sub(r"[^\w\s]", " ", text)
    return " ".join(w for w in text.split() if w not in ("the", "a", "an"))


def parse_date(mention: str) -> tuple[int | None, int | None, int | None] | None:
    """``(year, month, day)`` with None for what is not said; None when it is no date.

    A bare four-digit year between 1000 and 2099 is a date.
    """
    words = re.findall(r"[a-z]+|\d+", re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", mention.lower()))
    month = day = year = None
    for word in words:
        if word in _MONTH_NUMBER and month is None:
            month = _MONTH_NUMBER[word]
        elif word.isdigit() and len(word) == 4 and 1000 <= int(word) <= 2099 and year is None:
            year = int(word)
        elif word.isdigit() and len(word) <= 2 and 1 <= int(word) <= 31 and day is None:
            day = int(word)
        elif word not in ("of", "the", "in", "on"):
            return None
    if month is None and (year is None or day is not None):
        return None
    return year, month, day


def parse_number(mention: str) -> tuple[float, str] | None:
    """``(value, unit)`` of "1,500,000", "1.5 million" or "320 km"; None when it is no number."""
    match = _NUMBER.fullmatch(mention.strip().lower())
    if match is None:
        return None
    digits, scale, unit = match.groups()
    return float(digits.replace(",", "")) * _SCALE.get(scale or "", 1.0), unit.strip()


def _show(date: tuple[int | None, int | None, int | None]) -> str:
    return "-".join("?" if part is None else f"{part:02d}" for part in date)
