"""Dates by value: days, months, years, decades, centuries, seasons and ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from .language import ENGLISH, pairs, table
from .numbers import Relation
from .numerals import DECADES, LONGEST_VALUE, in_figures, roman

_MONTH = {name.lower(): index for index, name in enumerate(ENGLISH.months, 1)}
_SHORT = {name[:3]: index for name, index in _MONTH.items()} | {"sept": 9}
_WEEKDAY = re.compile(
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:mon|tue|wed|thu|fri|sat|sun)\b\.?(?=,))[\s,]*\b(?=.)"
)
#: A day's first moment in a time stamp, a two-digit year after the name of a month.
_UNSAID = re.compile(r"(?<=\d)[t ]00:00(?::00)?z?$|(?:(?<=\s)'|(?<=[a-z]-))\d\d$")
_ERA = re.compile(r"\b(?:(b\.?\s?c\.?(?:\s?e\b\.?)?)|(a\.?\s?d\b\.?|c\.?\s?e\b\.?))(?!\w)")
_LEAD = re.compile(
    r"(?:(?:the|in|on|from|from the|of|the year|year)\s+)*"
    r"(?:(early|mid|late|circa|around|about|before|after|c\.|ca\.?|~|spring|summer|autumn|fall|winter|"
    r"(?:beginning|start|middle|end) of)(?:[\s-]+|(?<=~)))?"
    r"(?:(?:of|the|in)\s+)*"
)
_RANGE = re.compile(r"(.*?\d[^–—]*?)\s*(?:–|—|\bto\b|\buntil\b|\bthrough\b|(?<=\d{4})[-/](?=\d))\s*(.*\d.*)")
#: Two days of one month: "5–7 July 1990", "July 5–7, 1990".
_DAYS = re.compile(
    rf"(?P<month>(?:{'|'.join([*_MONTH, *_SHORT])})\.?\s)?(\d\d?)\s?(?:-|–|—|to|and)\s?(\d\d?)"
    rf"(?(month)|\s(?P<after>{'|'.join([*_MONTH, *_SHORT])})\.?)(?:,?\s(?P<year>\d{{4}}))?"
)
#: The year first, or last, after day and month in either order.
_NUMERIC = re.compile(r"(\d{4})([-/.])(\d\d?)\2(\d\d?)|(\d\d?)([-/.])(\d\d?)\6(\d{4}|\d\d)")
_CENTURIES = re.compile(
    r"(\w+)(?:[\s-]century)?\s(?:and|to|or|until|through)\s(?:(?:the|early|mid|late)[\s-])*([\w-]+?)[\s-]centur(?:y|ies)"
)
_QUALIFIERS = pairs(table("en")["qualifiers"])
#: Days with a name of their own, as month and day.
_NAMED_DAYS = {name: tuple(map(int, day.split("-"))) for name, day in pairs(table("en")["days"]).items()}
_LITTLE = ("of", "the", "in", "on")
Day = tuple[int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Time:
    """A point or stretch of time.

    Attributes:
        kind: "day" (with ``parts`` year, month, day), "decade" (its first year),
            "century" (its number), "range" (two days, six parts) or "either" (one of two days
            in figures whose order is not known, six parts).
        parts: None for missing parts; years before Christ are negative.
        qualifier: "early", "circa", "summer" and the like, or "".
    """

    kind: str
    parts: tuple[int | None, ...]
    qualifier: str = ""

    @property
    def days(self) -> list[tuple[int | None, ...]]:
        """Parts of its only day, or of both days."""
        return [self.parts[:3], self.parts[3:]] if len(self.parts) > 3 else [self.parts]

    def years(self) -> tuple[int, int] | None:
        """Return its first and last year, or None when it has no year."""
        first, last = self.parts[0], self.parts[3 if self.kind == "range" else 0]
        if first is None or last is None:
            return None
        if self.kind == "century":
            first = 100 * first - 99 * (first > 0)
        return first, first + {"century": 99, "decade": 9}.get(self.kind, last - first)

    def __str__(self) -> str:
        shown = ("-".join("?" if part is None else f"{part:02d}" for part in day) for day in self.days)
        text = (" or " if self.kind == "either" else " to ").join(shown)
        named = "" if self.kind in ("day", "either") else self.kind
        return " ".join(filter(None, (self.qualifier, named, text)))


def compare_times(a: Time, b: Time) -> Relation:
    """Tell whether two times are the same, exclude each other, or one is a part of the other."""
    if "either" in (a.kind, b.kind) and (a.kind, a.parts) != (b.kind, b.parts):
        x, y = ([Time("day", day) for day in t.days] if t.kind == "either" else [t] for t in (a, b))
        relations = {compare_times(p, q) for p in x for q in y}
        return "different" if relations == {"different"} else "partial"
    if a.kind != b.kind:
        for day, stretch in ((a, b), (b, a)):
            if day.kind == "day" and stretch.kind == "range" and day.parts[0] is None:
                return "partial" if any(_agree(day.parts, end) for end in stretch.days) else "different"
        first, second = a.years(), b.years()
        if first is None or second is None:
            return "partial"
        return "different" if first[1] < second[0] or second[1] < first[0] else "partial"
    if a.parts != b.parts:
        return "partial" if _agree(a.parts, b.parts) else "different"
    if a.qualifier == b.qualifier:
        return "equivalent"
    return "different" if a.qualifier and b.qualifier else "partial"


def _agree(a: tuple[int | None, ...], b: tuple[int | None, ...]) -> bool:
    """Tell whether two times have parts in common and contradict each other in none."""
    shared = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return bool(shared) and all(x == y for x, y in shared)


@lru_cache(maxsize=8192)
def read_time(mention: str) -> Time | None:
    """Read the time a mention names, or None when it names none."""
    if len(mention) > LONGEST_VALUE:
        return None
    if open_ended := re.fullmatch(r"\s*(\d{4})\s?[-–—]\s*", mention):  # "1915-": a life's first year
        return Time("range", (int(open_ended[1]), None, None, None, None, None))
    text = " ".join(mention.lower().replace("’", "'").replace("‘", "'").split()).strip(' ,.;:-–—"“”()')
    if text in _NAMED_DAYS:
        return Time("day", (None, *_NAMED_DAYS[text]))
    text = in_figures(text, ENGLISH)
    text = _WEEKDAY.sub("", text, count=1) if re.search(r"\d", text) else text
    lead = _LEAD.match(text)
    assert lead is not None  # each of its parts may be missing
    written, body = lead[1] or "", text[lead.end() :]
    if re.fullmatch(r"'\d\d", body):  # of this century or the last
        return Time("either", (1900 + int(body[1:]), None, None, 2000 + int(body[1:]), None, None))
    body = _UNSAID.sub("", body)
    if numeric := _NUMERIC.fullmatch(body):
        return _numeric(numeric)
    qualifier = _QUALIFIERS.get(written, written)
    for kind, read in (("decade", _decade), ("century", _century), ("day", _day)):
        if (parts := read(body)) is not None:
            return Time(kind, parts, qualifier)
    return _centuries(body) or _days(body) or _range(body)


def _decade(text: str) -> tuple[int] | None:
    if match := re.fullmatch(r"(1\d|20|')?(\d0)'?s", text):
        return (int((match[1] or "'").replace("'", "19") + match[2]),)
    *before, last = re.split(r"[\s-]+", text)
    if last in DECADES and (not before or re.fullmatch(r"1\d|20", " ".join(before))):
        return (int(before[0] if before else 19) * 100 + DECADES[last],)
    return None


def _century(text: str) -> tuple[int] | None:
    if not (match := re.fullmatch(r"(.+?)[\s-]+(?:century|c\.?(?=$|\s))(.*)", text)):
        return None
    words = match[1].replace("-", " ").split()
    if len(words) == 1 and (numeral := roman(words[0].removesuffix("th"))):
        words = [f"{numeral}th"]
    number = re.fullmatch(r"(\d+)(?:st|nd|rd|th)", " ".join(words))
    era = _ERA.fullmatch(match[2].strip())
    if number is None or (match[2].strip() and not era):
        return None
    return (-int(number[1]) if era and era[1] else int(number[1]),)


def _centuries(text: str) -> Time | None:
    """Read two centuries in one: "18th and early 19th century"."""
    if not (match := _CENTURIES.fullmatch(text)):
        return None
    first, last = (_century(f"{word} century") for word in match.groups())
    return first and last and Time("range", (100 * first[0] - 99, None, None, 100 * last[0], None, None))


def _range(text: str) -> Time | None:
    if not (match := _RANGE.fullmatch(text)):
        return None
    left, right = match.groups()
    first = _day(left.strip(" ,"))
    if first is not None and first[0] and re.fullmatch(r"\d\d", right):
        year = first[0] - first[0] % 100 + int(right)
        right = str(year + 100 * (year <= first[0]))  # "1999/00"
    last = _day(right.strip(" ,"))
    return first and last and Time("range", (*first, *last))


def _day(text: str) -> Day | None:
    era = _ERA.search(text)
    text = _ERA.sub(" ", text)
    words = re.findall(r"[^\W\d_]+|\d+", re.sub(r"(\d)(?:st|nd|rd|th)\b", r"\1", text))
    month = day = year = None
    dated = any(w in _MONTH or w in _SHORT for w in words)  # a small number is a day only beside a month
    short = any(map(str.isdigit, words))
    for word in words:
        if month is None and (word in _MONTH or (short and word in _SHORT)):
            month = _MONTH.get(word) or _SHORT[word]
        elif word.isdigit() and year is None and (len(word) == 4 and 1000 <= int(word) <= 2099):
            year = int(word)
        elif dated and day is None and word.isdigit() and len(word) <= 2 and 1 <= int(word) <= 31:
            day = int(word)
        elif word.isdigit() and era and year is None and int(word) > 0 and len(word) <= 4:
            year = int(word)
        elif word not in _LITTLE:
            return None
    if month is None and (year is None or day is not None):
        return None
    return (-year if year and era and era.group(1) else year), month, day


def _days(text: str) -> Time | None:
    if not (match := _DAYS.fullmatch(text)):
        return None
    month, first, last, after, year = match.groups()
    begin, end = (_day(f"{day} {(month or after).strip(' .')} {year or ''}") for day in (first, last))
    return begin and end and Time("range", (*begin, *end))


def _numeric(match: re.Match[str]) -> Time | None:
    """Read a date in figures: with dots the day is first; else the month may be, if neither is above 12."""
    year_first, _, middle, end, first, sign, second, year_last = match.groups()
    if year_first:
        days: list[tuple[int | None, int, int]] = [(int(year_first), int(middle), int(end))]
    else:
        year = int(year_last) if len(year_last) == 4 else None  # "95" may be of any century
        days = [(year, int(second), int(first)), (year, int(first), int(second))]
    days = [(y, m, d) for y, m, d in dict.fromkeys(days) if 1 <= m <= 12 and 1 <= d <= 31]
    if len(days) == 2 and sign != ".":
        return Time("either", (*days[0], *days[1]))
    return Time("day", days[0]) if days else None
