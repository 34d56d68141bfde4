"""Numbers and dates of a text by value, by the table of its language."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import regex

from .dates import Time
from .language import Language, either, table, words
from .numbers import Number
from .numerals import roman_value

#: Equivalent forms, character by character.
_NARROW = str.maketrans(
    {chr(0xFF10 + i): str(i) for i in range(10)} | {"％": "%", "．": ".", "－": "-", "−": "-"}
)
_DIGITS = {c: i for i, c in enumerate("〇一二三四五六七八九")} | {"零": 0, "○": 0, "两": 2, "兩": 2}
_TENS = {"十": 10, "百": 100, "千": 1000}
_MYRIADS = {"万": 1e4, "萬": 1e4, "億": 1e8, "亿": 1e8, "兆": 1e12}
_HAN = "〇零○一二三四五六七八九十百千万萬億亿兆两兩"
#: German prepositions that contain an article.
_CONTRACTED = words("zum zur im am vom")
#: A number of at most two digits.
_SMALL = {True: r"(?:\d{1,2}|[一二三四五六七八九十]{1,3})", False: r"\d{1,2}"}
#: Symbols as :mod:`probers.words.numbers` has them.
_SYMBOLS = words(table("common")["symbols"])
_MONEY = {"€": "euro", "$": "dollar", "£": "pound-sterling", "¥": "yen", "km²": "km2", "m²": "m2"}
_ISO = r"(?<![\w/.-])(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)(?![\w-])"
_YEARS = r"(?<![\w.,-])(?P<y>[12]\d{3})\s?[–-]\s?(?P<y2>[12]\d{3}|\d\d)(?![\w-])"


class Value(NamedTuple):
    """A number [start, end) of a text; ``value`` is NaN if it has two readings."""

    start: int
    end: int
    value: float
    unit: str = ""
    ordinal: bool = False


class Moment(NamedTuple):
    """A time [start, end) of a text, with kind and parts as in :class:`probers.words.dates.Time`."""

    start: int
    end: int
    kind: str
    parts: tuple[int | None, ...]

    @property
    def is_year(self) -> bool:
        """True for a bare year, such as "1998" and "1998年"."""
        bare = self.kind == "day" and self.parts[1:] == (None, None) and (self.parts[0] or 0) >= 1000
        return bare and self.end - self.start <= 5


def find_moments(text: str, language: Language) -> Iterator[Moment]:
    """Find dates, years, decades, centuries and stretches of years; if some overlap, the first form wins."""
    text, taken = text.translate(_NARROW), bytearray(len(text))
    for pattern in _date_patterns(language):
        for match in pattern.finditer(text):
            start, end = match.span()
            read = _moment(match.groupdict(), language)
            if read is not None and not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                yield Moment(start, end, *read)


@lru_cache
def _date_patterns(language: Language) -> list[regex.Pattern[str]]:
    month, reign = f"(?:{'|'.join(language.months)})", f"(?:{'|'.join(language.reigns) or '(?!)'})"
    followed = either({**language.units, **language.scales, **dict.fromkeys(_SYMBOLS)})
    year = rf"(?<![\w.,$€£#-])(?P<y>1\d{{3}}|20\d\d)(?![\d-])(?![.,]\d)(?!\s?(?:{followed})(?!\w))"
    # "1990er" and "1998年" are other forms; a year within a longer word is none.
    patterns = [
        *language.dates,
        _ISO,
        _YEARS,
        year + (r"(?!\w)" if language.spaced else r"(?![A-Za-z\p{Han}])"),
    ]
    if not language.spaced:  # "1998 年", a common spacing
        patterns = [re.sub("[年月世](?![\\]紀纪])", r"\\s?\g<0>", pattern) for pattern in patterns]
    flags = regex.IGNORECASE if language.code in ("fr", "es") else 0
    small = _SMALL[not language.spaced]
    return [
        regex.compile(p.replace("{month}", month).replace("{n}", small).replace("{reign}", reign), flags)
        for p in patterns
    ]


def _moment(
    groups: Mapping[str, str | None], language: Language
) -> tuple[str, tuple[int | None, ...]] | None:
    def number(name: str) -> int | None:
        written = groups.get(name)
        return None if not written else 1 if written == "元" else int(_han(written))

    def month(name: str) -> int | None:
        written = groups.get(name)
        matches = (i for i, p in enumerate(language.months, 1) if written and re.fullmatch(p, written, re.I))
        return next(matches, None)

    sign = -1 if groups.get("bc") else 1
    if groups.get("of"):
        return "decade", (100 * (number("of") or 0) - 100 + (number("decade") or 0),)
    if century := number("century") or roman_value((groups.get("roman") or "").lower()):
        return "century", (sign * century,)
    if (decade := number("decade")) is not None:
        return "decade", (decade,)
    year, m, d = number("y"), number("m") or month("month"), number("d")
    if groups.get("reign"):
        year = language.reigns[str(groups["reign"])] + (number("count") or 0)
    if not all(low <= part <= high for part, low, high in ((m or 1, 1, 12), (d or 1, 1, 31))):
        return None
    year2, month2, d2 = number("y2"), month("month2"), number("d2")
    if year2 is not None and d is None:
        assert year is not None
        last = year2 if year2 > 99 else 100 * (year // 100) + year2
        return ("range", (year, None, None, last, None, None)) if last > year else None
    if d2 is not None:
        return "range", (year2 if month2 else year, m, d, year2 if month2 else year, month2 or m, d2)
    return "day", (None if year is None else sign * year, m, d)


def find_values(text: str, language: Language) -> Iterator[Value]:
    """Find numbers with their units, in digits and in words, and ordinal numbers; they may overlap."""
    text = text.translate(_NARROW)
    if not language.spaced:
        yield from _in_han(text, language)
        return
    yield from _in_digits(text, language)
    yield from _in_words(text, language)


@lru_cache
def _unit(language: Language) -> str:
    symbols = {s: _MONEY.get(s, s) for s in _SYMBOLS}
    return rf"(?P<unit>{either({**symbols, **language.units})})"


@lru_cache
def _digit_pattern(language: Language) -> regex.Pattern[str]:
    thousands, scales = re.escape(language.thousands), either(language.scales)
    gap = r"[\s\u00a0\u202f-]?"
    return regex.compile(
        r"(?:(?:(?<=[\s(„«“])(?<!\d\s)|^)(?P<minus>[-–](?=[\d€$£])))?(?P<money>[€$£¥]\s?)?(?<![\w.,:])(?<![\w][–/-])"
        rf"(?P<whole>\d{{1,3}}(?:[{thousands}]\d{{3}})+(?!\d)|\d+)(?P<part>[.,]\d+)?(?![.,:/]?\d)"
        rf"(?:(?P<ordinal>{language.ordinal})|(?:{gap}(?P<scale>{scales})(?!\w)(?:\s(?:de|d['’])(?=\s|\w))?)?"
        rf"(?:{gap}{_unit(language)}(?![\w/]))?)"
        r"(?!\.?\w)"
    )


def _in_digits(text: str, language: Language) -> Iterator[Value]:
    for match in _digit_pattern(language).finditer(text):
        whole, part = match["whole"], match["part"] or ""
        counted = match["unit"] or match["scale"] or match["money"]
        if match["ordinal"] and language.code == "de":
            # "3." also ends a sentence; after an article it is an ordinal.
            before = text[: match.start()].split()[-1:]
            leads = before and before[0].lower() in language.articles | _CONTRACTED
            if part or not leads:
                yield Value(match.start(), match.end() - 1, _digits(whole, part, language))
                continue
        if match["part"] and part[0] == "." and language.code in ("de", "fr") and not counted:
            continue  # "3.5" is a section, a version or a day
        value = _digits(whole, part, language) * language.scales.get(match["scale"] or "", 1)
        unit = _meant((match["money"] or "").strip() or match["unit"] or "", language)
        yield Value(
            match.start(), match.end(), -value if match["minus"] else value, unit, bool(match["ordinal"])
        )


def _meant(unit: str, language: Language) -> str:
    """Return the English unit of a unit or sign of money, or the unit as written."""
    return language.units.get(unit) or _MONEY.get(unit, unit)


def _digits(whole: str, part: str, language: Language) -> float:
    groups = re.split(f"[{re.escape(language.thousands)}]", whole)
    if len(part) == 4 and len(groups) == 1 and len(whole) <= 3 and part[0] == "," and whole != "0":
        return math.nan  # 1,234 is 1.234, but 1234 in Mexico and in English habits of models
    return float("".join(groups) + part.replace(",", "."))


@lru_cache
def _word_patterns(language: Language) -> tuple[regex.Pattern[str], ...]:
    numerals, scales = either(language.numerals), either(s for s in language.scales if s[-1] != ".")
    join, scale_join = language.joins
    return (
        regex.compile(rf"(?<![\w-])(?i:{numerals}|{scales})"),
        regex.compile(rf"({scale_join})(?i:({scales}))|({join})(?i:({numerals}))"),
        regex.compile(rf"[\s\u00a0\u202f]{_unit(language)}(?!\w)"),
        regex.compile(rf"(?<![\w-])(?i:{either(language.ordinals)})(?![\w-])"),
    )


def _in_words(text: str, language: Language) -> Iterator[Value]:
    first, further, unit, ordinals = _word_patterns(language)
    value_of = {word.lower(): value for word, value in (*language.numerals.items(), *language.scales.items())}
    behind = 0
    for match in first.finditer(text):
        if match.start() < behind:
            continue
        total, current, end, words = 0.0, 0.0, match.end(), [match.group().lower()]
        best: tuple[float, int, int] | None = None
        step: regex.Match[str] | None = match
        while step is not None:
            word, und = words[-1], len(words) > 1 and (step.group(3) or "").strip() == "und"
            value = value_of[word]
            if value >= 1e3:
                total, current = total + (current or 1) * value, 0.0
            elif value == 100 and current < 20:
                current = (current or 1) * 100
            elif _fits(current, value, und=und):
                current += value
            else:
                break
            end = step.end()
            if not text[end : end + 1].isalnum():
                best = (total + current, end, len(words))
            step = further.match(text, end)
            if step is not None:
                words.append((step.group(2) or step.group(4)).lower())
        if best is None:
            continue
        value, end, used = best
        # "eine", "mil", "Millionen": alone they count nothing.
        lone = used == 1 and (value in (0, 1) or value >= 1e3 or words[0] in language.lone)
        if lone or text[end : end + 1] == "-":
            continue
        counted = unit.match(text, end)
        behind = counted.end() if counted else end
        yield Value(match.start(), behind, value, _meant(counted["unit"], language) if counted else "")
    by_word = {word.lower(): value for word, value in language.ordinals.items()}
    for match in ordinals.finditer(text):
        if re.match(r"\s(?:du|de|des|d['’]|del)\b", text[match.end() :]):
            continue  # "un cinquième du territoire"
        yield Value(match.start(), match.end(), by_word[match.group().lower()], ordinal=True)


def _fits(current: float, value: float, *, und: bool) -> bool:
    """Tell whether a number word may add to those before it: "vingt-deux", "zweiundzwanzig"."""
    if und and 0 < current < 10:
        return value >= 20 and value % 10 == 0
    whole, added = int(current), int(value)
    if not whole:
        return True
    return (whole % 10 ** len(str(added)) == 0 and added > 0) or (whole % 100 in (60, 80) and 0 < added < 20)


def _han(written: str) -> float:
    """Return the value of a numeral of digits and Chinese characters: "3億5000万", "三百二十", "二〇〇三"."""
    total = section = current = 0.0
    row = 0
    for piece in re.findall(r"\d[\d,]*(?:\.\d+)?|.", written):
        if piece[0].isascii():
            current, row = float(piece.replace(",", "")), 0
        elif piece in _DIGITS:
            current, row = (10 * current if row else 0) + _DIGITS[piece], row + 1
        elif piece in _TENS:
            section, current, row = section + (current or 1) * _TENS[piece], 0.0, 0
        else:
            total, section, current, row = total + (section + current or 1) * _MYRIADS[piece], 0.0, 0.0, 0
    return total + section + current


@lru_cache
def _han_pattern(language: Language) -> regex.Pattern[str]:
    numeral = rf"(?:\d+(?:,\d{{3}})*(?:\.\d+)?|[{_HAN}])(?:\d+(?:\.\d+)?|[{_HAN}])*"
    return regex.compile(
        rf"(?P<share>百分之)?(?P<th>第)?(?P<minus>(?<![\d\w])-)?(?P<money>[€$£¥])?(?<![\d.,:A-Za-z_年月数數几幾上好])(?<![A-Za-z][-–])(?P<number>{numeral})(?![\d:])"
        rf"(?:\s?[多余餘数數]?{_unit(language)})?"
    )


def _in_han(text: str, language: Language) -> Iterator[Value]:
    for match in _han_pattern(language).finditer(text):
        written, unit = match["number"], match["unit"] or ""
        digits, after = any(map(str.isascii, written)), text[match.end() : match.end() + 1]
        if not digits and not match["share"]:
            # Characters alone are numbers if they count something or are long: 一方 and 万能 are words.
            goes_on = regex.match(r"\p{Han}", after) is not None
            before = text[max(0, match.start() - 1) : match.start()] if language.code == "ja" else ""
            begun = regex.match(r"[\p{Han}ァ-ヺ]", before) is not None
            short = len(written) == 1 and (not unit or written == "一")
            if short or begun or written[0] in "万萬億亿兆" or (not unit and goes_on):
                continue
        meant = "%" if match["share"] else _meant(match["money"] or unit, language)
        value = _han(written) * (-1 if match["minus"] else 1)
        ordinal = bool(match["th"]) or unit in ("番目", "回目")
        yield Value(match.start(), match.end(), value, "" if unit == "番目" else meant, ordinal)


def read_time_in(mention: str, language: Language) -> Time | None:
    """Read the time that a whole mention names, or None."""
    text = mention.strip(" ,;:()")
    for month, names in enumerate(language.months, 1):
        if re.fullmatch(names, text, re.IGNORECASE):
            return Time("day", (None, month, None))
    moments = [m for m in find_moments(text, language) if m.end - m.start == len(text)]
    return Time(moments[0].kind, moments[0].parts) if moments else None


def read_number_in(mention: str, language: Language) -> Number | None:
    """Read the number, with its unit, of a whole mention; None also for one with two readings."""
    # "3." is an ordinal only where a word follows.
    text = mention.strip(" ,;:()")
    padded = f"{next(iter(sorted(language.articles)), '')} {text} X" if text.endswith(".") else text
    shift = len(padded) - len(text) - 2 if text.endswith(".") else 0
    for value in find_values(padded, language):
        if value.start == shift and value.end - value.start == len(text) and not math.isnan(value.value):
            return Number(value.value, value.unit, value.ordinal)
    return None


def counts(mention: str, language: Language) -> bool:
    """Tell whether a mention holds a digit or number word, so that its spelling decides nothing."""
    return any(c.isnumeric() for c in mention) or next(find_values(mention, language), None) is not None
