"""Numbers and dates of a text by value, by the table of its language."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import regex

from .dates import Time, read_time
from .language import Language, either, table, words
from .numbers import Number, in_plain_signs, read_number, read_unit, sign_and_money, unit_and_share
from .numerals import LONGEST_VALUE, digits, grammar, in_figures, roman_value, value_of
from .text import Cover

#: Equivalent forms, character by character.
_NARROW = str.maketrans(
    {chr(0xFF10 + i): str(i) for i in range(10)} | {"％": "%", "．": ".", "－": "-", "−": "-"}
)
_HAN = "〇零○一二三四五六七八九十百千万萬億亿兆两兩"
#: German prepositions that contain an article.
_CONTRACTED = words("zum zur im am vom")
#: Characters of numbers that alone begin names too.
_NAMING = "一二三四五六七八九十百千万萬"
#: Most words of a counted noun.
_MOST_UNIT_WORDS = 4
#: Symbols as :mod:`probers.words.numbers` has them.
_SYMBOLS = words(table("common")["symbols"])
_MONEY = {"€": "euro", "$": "dollar", "£": "pound sterling", "¥": "yen", "km²": "km2", "m²": "m2"}
_ISO = r"(?<![\w/.-])(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)(?![\w-])"
_YEARS = r"(?<![\w.,-])(?P<y>[12]\d{3})\s?[–-]\s?(?P<y2>[12]\d{3}|\d\d)(?![\w-])"
#: Groups of a date's pattern that are figures.
_FIGURES = ("y", "m", "d", "y2", "m2", "d2", "century", "of", "decade", "count")


class Value(NamedTuple):
    """A number [start, end) of a text; ``value`` is NaN if it has two readings."""

    start: int
    end: int
    value: float
    unit: str = ""
    ordinal: bool = False


class Moment(NamedTuple):
    """A time [start, end) of a text."""

    start: int
    end: int
    time: Time

    @property
    def is_year(self) -> bool:
        """True for a bare year, such as "1998" and "1998年"."""
        bare = self.time.kind == "day" and self.time.parts[1:] == (None, None)
        return bare and (self.time.parts[0] or 0) >= 1000 and self.end - self.start <= 5


class _Patterns:
    """Patterns of the numbers and times of a language, with the words of its table."""

    def __init__(self, language: Language) -> None:
        spaced, end = language.spaced, r"(?!\w)" if language.spaced else ""
        unit = rf"(?P<unit>{either({*_SYMBOLS, *language.units})})"
        self.dates = list(_dates(language))
        self.unit = regex.compile(rf"[\s\u00a0\u202f]{unit}(?!\w)")
        # Numbers with their units, in digits or also in Chinese characters.
        gap, thousands = r"[\s\u00a0\u202f-]?", re.escape(language.thousands)
        han = rf"(?:\d+(?:,\d{{3}})*(?:\.\d+)?|[{_HAN}])(?:\d+(?:\.\d+)?|[{_HAN}])*"
        self.number = regex.compile(
            r"(?:(?:(?<=[\s(„«“])(?<!\d\s)|^)(?P<minus>[-–](?=[\d€$£])))?(?P<money>[€$£¥]\s?)?(?<![\w.,:])(?<![\w][–/-])"
            rf"(?P<whole>\d{{1,3}}(?:[{thousands}]\d{{3}})+(?!\d)|\d+)(?P<part>[.,]\d+)?(?![.,:/]?\d)"
            rf"(?:(?P<ordinal>{language.ordinal})|(?:{gap}(?P<scale>{either(language.scales)})(?!\w)(?:\s(?:de|d['’])(?=\s|\w))?)?"
            rf"(?:{gap}{unit}(?![\w/]))?)(?!\.?\w)"
            if spaced
            else r"(?P<share>百分之)?(?P<th>第)?(?P<minus>(?<![\d\w])-)?(?P<money>[€$£¥])?"
            rf"(?<![\d.,:A-Za-z_年月数數几幾上好])(?<![A-Za-z][-–])(?P<number>{han})(?![\d:])(?:\s?[多余餘数數]?{unit})?"
        )
        # Days of the week and small words before a time, bounds before and behind a number, and the words
        # between the ends of a range.
        self.lead = _folded(rf"(?:{either(language.before_times)})(?:,?\s|(?<=['’]))")
        apart = r"(?:(?<=')|(?!\w))" if spaced else ""
        self.bound = _folded(rf"({either(language.bounds)}){apart}\s?")
        self.bound_behind = regex.compile(rf"(.*?)({either(language.bounds_behind)})")
        self.further = _folded(rf"\s?(?:[-–—~～〜]|(?:{either(language.ranges)}){end})\s?")
        self.articles = _folded(rf"^(?:(?:{either(language.articles - language.numerals.keys())})\s)+(?=\S)")
        self.minus = _folded(rf"^(?:{either(language.minus)})\s?(?=\w)")
        # The beginning of a mention that may be a number.
        listed = language.numerals, language.scales, language.ordinals, language.fractions, language.unread
        known = {word for words in listed for word in words}
        long = {word for word in known if len(word) > 3} if spaced and not language.english else set()
        bounds = either({*language.bounds, *language.articles, *language.unread})
        whole = rf"(?:{either(known - language.articles)})(?!\w)" if spaced else either(known)
        lead = rf"(?:(?:{bounds})(?!\w)['’]?\s?)*" if spaced else rf"(?:{bounds})*"
        self.uncertain = _folded(rf"\W*{lead}(?:{whole}{'|' + either(long) if long else ''})")


_patterns = cache(_Patterns)


def _folded(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.IGNORECASE)


def _dates(language: Language) -> Iterator[regex.Pattern[str]]:
    followed = either({*language.units, *language.scales, *_SYMBOLS})
    year = rf"(?<![\w.,$€£#-])(?P<y>1\d{{3}}|20\d\d)(?![\d-])(?![.,]\d)(?!\s?(?:{followed})(?!\w))"
    # "1990er" and "1998年" are other forms; a year within a longer word is none.
    year += r"(?!\w)" if language.spaced else r"(?![A-Za-z\p{Han}])"
    parts = {
        "month": f"(?:{'|'.join(language.months)})", "reign": f"(?:{either(language.reigns)})",
        "bc": f"(?P<bc>{language.before_christ})", "ad": f"(?:{language.after_christ})",
        "n": r"\d{1,2}" if language.spaced else r"(?:\d{1,2}|[一二三四五六七八九十]{1,3})",
    }  # fmt: skip
    for pattern in (*language.patterns("dates", **parts), _ISO, _YEARS, year):
        if not language.spaced:  # "1998 年", a common spacing
            pattern = re.sub("[年月世](?![\\]紀纪])", r"\\s?\g<0>", pattern)
        yield regex.compile(pattern, regex.IGNORECASE if language.code in ("fr", "es") else 0)


def find_moments(text: str, language: Language) -> Iterator[Moment]:
    """Find dates, years, decades, centuries and stretches of years; if some overlap, the first form wins."""
    text, cover = text.translate(_NARROW), Cover(len(text))
    for pattern in _patterns(language).dates:
        for match in pattern.finditer(text):
            if (time := _time(match.groupdict(), language)) and cover.take(match.span()):
                yield Moment(match.start(), match.end(), time)


def _month(name: str, language: Language) -> int | None:
    """Return the number of a month by its name, or None."""
    return next((i for i, names in enumerate(language.months, 1) if re.fullmatch(names, name, re.I)), None)


def _time(groups: Mapping[str, str | None], language: Language) -> Time | None:
    written = {name: (groups.get(name) or "").replace("元", "1") for name in _FIGURES}
    figures = {name: _han(each, language) for name, each in written.items() if each}
    if any(map(math.isnan, figures.values())):
        return None  # 二三月
    number = {name: int(value) for name, value in figures.items()}.get
    month, month2 = (_month(groups.get(name) or "", language) for name in ("month", "month2"))
    sign = -1 if groups.get("bc") else 1
    if groups.get("of"):
        return Time("decade", (100 * (number("of") or 0) - 100 + (number("decade") or 0),))
    if century := number("century") or roman_value((groups.get("roman") or "").lower()):
        return Time("century", (sign * century,))
    if (decade := number("decade")) is not None:
        return Time("decade", (decade if decade > 99 else 1900 + decade,))
    year, m, d = number("y"), number("m") or month, number("d")
    if groups.get("reign"):
        year = language.reigns[str(groups["reign"])] + (number("count") or 0)
    if not all(low <= part <= high for part, low, high in ((m or 1, 1, 12), (d or 1, 1, 31))):
        return None
    year2, d2 = number("y2"), number("d2")
    if year2 is not None and d is None:
        assert year is not None
        last = year2 if year2 > 99 else 100 * (year // 100) + year2
        return Time("range", (year, None, None, last, None, None)) if last > year else None
    if d2 is not None:
        return Time("range", (year2 if month2 else year, m, d, year2 if month2 else year, month2 or m, d2))
    return Time("day", (None if year is None else sign * year, m, d))


def find_values(text: str, language: Language) -> Iterator[Value]:
    """Find numbers with their units, in digits and in words, and ordinal numbers; they may overlap."""
    text = text.translate(_NARROW)
    if not language.spaced:
        yield from _in_han(text, language)
        return
    yield from _in_digits(text, language)
    yield from _in_words(text, language)


def _in_digits(text: str, language: Language) -> Iterator[Value]:
    for match in _patterns(language).number.finditer(text):
        (start, end), whole, part = match.span(), match["whole"], match["part"] or ""
        counted = match["unit"] or match["scale"] or match["money"]
        if match["ordinal"] and language.code == "de":
            # "3." also ends a sentence; after an article it is an ordinal.
            before = text[:start].split()[-1:]
            leads = before and before[0].lower() in language.articles | _CONTRACTED
            if part or not leads:
                yield Value(start, end - 1, digits(whole, part, language))
                continue
        if part[:1] == "." and language.code in ("de", "fr") and not counted:
            continue  # "3.5" is a section, a version or a day
        value = digits(whole, part, language) * language.scales.get(match["scale"] or "", 1)
        unit = _meant((match["money"] or "").strip() or match["unit"] or "", language)
        yield Value(start, end, -value if match["minus"] else value, unit, bool(match["ordinal"]))


def _meant(unit: str, language: Language) -> str:
    """Return the English unit of a unit or sign of money, or the unit as written."""
    return language.units.get(unit) or _MONEY.get(unit, unit)


def _in_words(text: str, language: Language) -> Iterator[Value]:
    behind = 0
    for start in grammar(language).starts(text):
        numeral = grammar(language).read(text, start) if start >= behind else None
        if numeral is None or numeral.lone or not numeral.written or text[start - 1 : start] == "-":
            continue
        after = text[numeral.end : numeral.end + 8]
        led = text[start : numeral.end].split()[0].lower() in language.articles and numeral.value < 2
        shared = numeral.ordinal and re.match(r"\s(?:du|de|des|d['’]|del)\b", after)
        if led or shared or after[:1] == "-" or after[:1].isalnum():
            continue  # "un cinquième du territoire"
        counted = None if numeral.ordinal else _patterns(language).unit.match(text, numeral.end)
        behind = counted.end() if counted else numeral.end
        unit = _meant(counted["unit"], language) if counted else ""
        yield Value(start, behind, numeral.value, unit, numeral.ordinal)


def _han(written: str, language: Language) -> float:
    """Return the value of a whole numeral of digits and Chinese characters; NaN if it has none: "七八"."""
    numeral = grammar(language).read(written)
    return numeral.value if numeral and numeral.end == len(written) else math.nan


def _in_han(text: str, language: Language) -> Iterator[Value]:
    for match in _patterns(language).number.finditer(text):
        written, unit = match["number"], match["unit"] or ""
        digits, after = any(map(str.isascii, written)), text[match.end() : match.end() + 1]
        if not digits and not match["share"]:
            # Characters alone are numbers if they count something or are long: 一方 and 万能 are words.
            goes_on = regex.match(r"\p{Han}", after) is not None
            before = text[max(0, match.start() - 1) : match.start()] if language.code == "ja" else ""
            begun = regex.match(r"[\p{Han}ァ-ヺ]", before) is not None
            if match.group() in language.plain:
                continue
            short = len(written) == 1 and (not unit or written == "一")
            if short or begun or written[0] in "万萬億亿兆" or (not unit and goes_on):
                continue
        meant = "%" if match["share"] else _meant(match["money"] or unit, language)
        value = _han(written, language) * (-1 if match["minus"] else 1)
        ordinal = bool(match["th"]) or unit in ("番目", "回目")
        yield Value(match.start(), match.end(), value, "" if unit == "番目" else meant, ordinal)


@lru_cache(maxsize=8192)
def read_time_in(mention: str, language: Language) -> Time | None:
    """Read the time that a whole mention names, in figures or in words, or None."""
    if language.english:
        return read_time(mention)
    if len(mention) > LONGEST_VALUE:
        return None
    text = " ".join(mention.split()).strip(" ,;:()")
    forms = [text]
    while lead := _patterns(language).lead.match(forms[-1]):
        forms.append(forms[-1][lead.end() :])
    if month := _month(forms[-1], language):
        return Time("day", (None, month, None))
    for written in dict.fromkeys((*forms, *(in_figures(form, language) for form in forms))):
        for moment in find_moments(written, language):
            if moment.end - moment.start == len(written):
                return moment.time
    return None


@lru_cache(maxsize=8192)
def read_number_in(mention: str, language: Language) -> Number | None:
    """Read the number of a whole mention, with bound, range and unit; None also where it has two readings."""
    if language.english:
        return read_number(mention)
    if len(mention) > LONGEST_VALUE:
        return None
    text = in_plain_signs(mention).translate(_NARROW).replace("’", "'").strip(" ,;:()。")
    patterns, bound = _patterns(language), ""
    if match := patterns.bound.match(text):
        bound, text = language.bounds[match[1].lower()], text[match.end() :]
    elif match := patterns.bound_behind.fullmatch(text):
        bound, text = language.bounds_behind[match[2]], match[1]
    sign, money, text = sign_and_money(patterns.minus.sub("-", patterns.articles.sub("", text)))
    number = _of_whole(text, language) or _number_and_unit(text, money, language)
    if number is None or math.isnan(number.value):
        return None
    return replace(number, value=sign * number.value, bound=bound or number.bound)


def _of_whole(text: str, language: Language) -> Number | None:
    """Read 三分之二 and 3分の2, the whole first."""
    whole, _, some = (part.strip() for part in regex.sub("分之|分の", "|", text, count=1).partition("|"))
    if language.spaced or not some:
        return None
    divisor, value = value_of(whole, language), value_of(some, language)
    if not divisor or value is None:
        return None
    unit = {100: "%", 1000: "‰"}.get(int(divisor), "")
    return Number(value if unit else value / divisor, unit)


def _number_and_unit(text: str, money: str, language: Language) -> Number | None:
    numeral = grammar(language).read(text.removeprefix("第"))
    if numeral is None:
        unit, share = unit_and_share(text, language)  # "hora y media"
        known = _known_unit(unit, language)
        return Number(1 + share, known) if share and known else None
    ordinal = numeral.ordinal or text.startswith("第")
    rest, value, end = text.removeprefix("第")[numeral.end :], numeral.value, None
    if (ending := regex.match(rf"(?:{language.ordinal})", f"{rest} x")) and not numeral.written:
        ordinal, rest = True, rest[ending.end() :]
    elif (to := _patterns(language).further.match(rest)) and (last := grammar(language).read(rest, to.end())):
        end, rest = last.value, rest[last.end :]
        value *= last.scale if numeral.scale == 1 else 1.0
    glued = language.spaced and numeral.written and rest[:1].isalnum()
    rest, share = unit_and_share(rest, language)
    if not language.spaced and (half := re.match("[个個]?半[个個]?", rest)):  # 两个半小时
        rest, share = rest[half.end() :], 0.5
    known = money or _known_unit(rest, language)
    if glued or (not known and grammar(language).uncertain(rest)):
        return None
    unit = known or rest.strip(" .-").lower()
    figures = any(map(str.isdigit, unit.replace("m2", "").replace("m3", "")))
    bare = not rest.strip() and numeral.lone and not numeral.written
    if figures or bare or len(unit.split()) > _MOST_UNIT_WORDS:
        return None
    if not language.spaced and text[:1] in _NAMING and numeral.end == 1 and rest and not (known or share):
        return None  # 二战, 三国
    if numeral.lone and not known and text.split()[0].lower() in language.articles:
        return None  # "eine Brücke"
    return Number(value + share, unit, ordinal, "about" if numeral.about else "", end)


def _known_unit(unit: str, language: Language) -> str:
    """Return the English unit of a unit, sign or code of a currency, or ""."""
    bare = regex.sub(r"^(?:(?:de|of|von)\s|d['’]\s?)", "", unit.strip(" -").replace("\u202f", " "))
    units = {name.lower(): meant for name, meant in language.units.items()}
    known = units.get(bare.lower()) or (_MONEY.get(bare, bare.lower()) if bare in _SYMBOLS else "")
    return known or (read_unit(bare, "") if bare.isupper() and len(bare) == 3 else "")


def counts(mention: str, language: Language) -> bool:
    """Tell whether a mention begins like a number, so that spelling decides nothing.

    Outside of English, where names with numbers are not read, one within it is enough.
    """
    if _patterns(language).uncertain.match(mention):
        return True
    if language.english:
        return False
    return any(map(str.isdigit, mention)) or next(find_values(mention, language), None) is not None
