"""Numbers and dates of a text by value, by the table of its language."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import regex

from .dates import Time
from .language import Language, either, table, words
from .numbers import LONGEST_VALUE, Number, in_plain_signs, read_unit, sign_and_money, unit_and_share
from .numerals import digits, grammar, in_figures, roman_value, value_of

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
#: A number of at most two digits.
_SMALL = {True: r"(?:\d{1,2}|[一二三四五六七八九十]{1,3})", False: r"\d{1,2}"}
#: Symbols as :mod:`probers.words.numbers` has them.
_SYMBOLS = words(table("common")["symbols"])
_MONEY = {"€": "euro", "$": "dollar", "£": "pound sterling", "¥": "yen", "km²": "km2", "m²": "m2"}
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
    year += r"(?!\w)" if language.spaced else r"(?![A-Za-z\p{Han}])"
    patterns = [*language.dates, _ISO, _YEARS, year]
    if not language.spaced:  # "1998 年", a common spacing
        patterns = [re.sub("[年月世](?![\\]紀纪])", r"\\s?\g<0>", pattern) for pattern in patterns]
    flags = regex.IGNORECASE if language.code in ("fr", "es") else 0
    small = _SMALL[not language.spaced]
    meant = {"month": month, "n": small, "reign": reign, "ad": f"(?:{language.after_christ})"}
    meant["bc"] = f"(?P<bc>{language.before_christ})"
    return [
        regex.compile(re.sub(r"\{(month|n|reign|bc|ad)\}", lambda m: meant[m[1]], p), flags) for p in patterns
    ]


def _moment(
    groups: Mapping[str, str | None], language: Language
) -> tuple[str, tuple[int | None, ...]] | None:
    figures = ("y", "m", "d", "y2", "m2", "d2", "century", "of", "decade", "count")
    written = [groups.get(name) for name in figures]
    if any(math.isnan(_han(each, language)) for each in written if each and each != "元"):
        return None  # 二三月

    def number(name: str) -> int | None:
        written = groups.get(name)
        return None if not written else 1 if written == "元" else int(_han(written, language))

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
        return "decade", (decade if decade > 99 else 1900 + decade,)
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
                yield Value(match.start(), match.end() - 1, digits(whole, part, language))
                continue
        if match["part"] and part[0] == "." and language.code in ("de", "fr") and not counted:
            continue  # "3.5" is a section, a version or a day
        value = digits(whole, part, language) * language.scales.get(match["scale"] or "", 1)
        unit = _meant((match["money"] or "").strip() or match["unit"] or "", language)
        yield Value(
            match.start(), match.end(), -value if match["minus"] else value, unit, bool(match["ordinal"])
        )


def _meant(unit: str, language: Language) -> str:
    """Return the English unit of a unit or sign of money, or the unit as written."""
    return language.units.get(unit) or _MONEY.get(unit, unit)


@lru_cache
def _unit_pattern(language: Language) -> regex.Pattern[str]:
    return regex.compile(rf"[\s\u00a0\u202f]{_unit(language)}(?!\w)")


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
        counted = None if numeral.ordinal else _unit_pattern(language).match(text, numeral.end)
        behind = counted.end() if counted else numeral.end
        unit = _meant(counted["unit"], language) if counted else ""
        yield Value(start, behind, numeral.value, unit, numeral.ordinal)


def _han(written: str, language: Language) -> float:
    """Return the value of a whole numeral of digits and Chinese characters; NaN if it has none: "七八"."""
    numeral = grammar(language).read(written)
    return numeral.value if numeral and numeral.end == len(written) else math.nan


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
    if len(mention) > LONGEST_VALUE:
        return None
    text = " ".join(mention.split()).strip(" ,;:()")
    forms = [text]
    while lead := _lead(language).match(forms[-1]):
        forms.append(forms[-1][lead.end() :])
    for month, names in enumerate(language.months, 1):
        if re.fullmatch(names, forms[-1], re.IGNORECASE):
            return Time("day", (None, month, None))
    for written in dict.fromkeys((*forms, *(in_figures(form, language) for form in forms))):
        moments = [m for m in find_moments(written, language) if m.end - m.start == len(written)]
        if moments:
            return Time(moments[0].kind, moments[0].parts)
    return None


@lru_cache
def _lead(language: Language) -> regex.Pattern[str]:
    """Compile the pattern of a day of the week or small word before a time."""
    return regex.compile(rf"(?:{either(language.before_times)})(?:,?\s|(?<=['’]))", regex.IGNORECASE)


@lru_cache
def _bounds(language: Language) -> tuple[regex.Pattern[str], regex.Pattern[str]]:
    """Compile the patterns of bounds before and behind a number."""
    space = r"(?:(?<=')|(?!\w))\s?" if language.spaced else r"\s?"
    before = regex.compile(rf"({either(language.bounds)}){space}", regex.IGNORECASE)
    return before, regex.compile(rf"(.*?)({either(language.bounds_behind)})")


@lru_cache
def _further(language: Language) -> regex.Pattern[str]:
    """Compile the pattern of the words between the two ends of a range."""
    end = r"(?!\w)" if language.spaced else ""
    return regex.compile(rf"\s?(?:[-–—~～〜]|(?:{either(language.ranges)}){end})\s?", regex.IGNORECASE)


@lru_cache(maxsize=8192)
def read_number_in(mention: str, language: Language) -> Number | None:
    """Read the number of a whole mention, with bound, range and unit; None also where it has two readings."""
    if len(mention) > LONGEST_VALUE:
        return None
    text = in_plain_signs(mention).translate(_NARROW).replace("’", "'").strip(" ,;:()。")
    before, behind = _bounds(language)
    bound = ""
    if match := before.match(text):
        bound, text = language.bounds[match[1].lower()], text[match.end() :]
    elif match := behind.fullmatch(text):
        bound, text = language.bounds_behind[match[2]], match[1]
    articles = either(language.articles - language.numerals.keys())
    text = regex.sub(rf"^(?:(?:{articles})\s)+(?=\S)", "", text, flags=regex.IGNORECASE)
    text = regex.sub(rf"^(?:{either(language.minus)})\s?(?=\w)", "-", text, flags=regex.IGNORECASE)
    sign, money, text = sign_and_money(text)
    share = _of_whole(text, language)
    number = share or _number_and_unit(text, money, language)
    if number is None or math.isnan(number.value):
        return None
    return replace(number, value=sign * number.value, bound=bound or number.bound)


def _of_whole(text: str, language: Language) -> Number | None:
    """Read 三分之二 and 3分の2, the whole first."""
    whole, _, some = (part.strip() for part in regex.sub("分之|分の", "|", text, count=1).partition("|"))
    if language.spaced or not some:
        return None
    values = value_of(whole, language), value_of(some, language)
    if values[0] is None or values[1] is None or values[0] <= 0:
        return None
    unit = {100: "%", 1000: "‰"}.get(int(values[0]), "")
    return Number(values[1] if unit else values[1] / values[0], unit)


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
    elif (join := _further(language).match(rest)) and (last := grammar(language).read(rest, join.end())):
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
    if figures or len(unit.split()) > _MOST_UNIT_WORDS:
        return None
    if not rest.strip() and numeral.lone and not numeral.written:
        return None
    named = not language.spaced and text[:1] in _NAMING and numeral.end == 1 and not (known or share)
    if named and rest:
        return None  # 二战, 三国
    article = numeral.lone and text.split()[0].lower() in language.articles
    if article and not known:
        return None  # "eine Brücke"
    return Number(value + share, unit, ordinal, "about" if numeral.about else "", end)


def _known_unit(unit: str, language: Language) -> str:
    """Return the English unit of a unit, sign or code of a currency, or ""."""
    bare = regex.sub(r"^(?:(?:de|of|von)\s|d['’]\s?)", "", unit.strip(" -").replace("\u202f", " "))
    units = {name.lower(): meant for name, meant in language.units.items()}
    known = units.get(bare.lower()) or (_MONEY.get(bare, bare.lower()) if bare in _SYMBOLS else "")
    return known or (read_unit(bare, "") if bare.isupper() and len(bare) == 3 else "")


@lru_cache
def _uncertain(language: Language) -> regex.Pattern[str]:
    """Compile the pattern of a mention that begins with a word of numbers, as a number may."""
    known = {*language.numerals, *language.scales, *language.ordinals, *language.fractions, *language.unread}
    long = {word for word in known if len(word) > 3} if language.spaced and not language.english else set()
    bounds = either({*language.bounds, *language.articles, *language.unread})
    whole = rf"(?:{either(known - language.articles)})(?!\w)" if language.spaced else either(known)
    lead = rf"(?:(?:{bounds})(?!\w)['’]?\s?)*" if language.spaced else rf"(?:{bounds})*"
    return regex.compile(rf"\W*{lead}(?:{whole}{'|' + either(long) if long else ''})", regex.IGNORECASE)


def counts(mention: str, language: Language) -> bool:
    """Tell whether a mention begins like a number, so that spelling decides nothing.

    Outside of English, where names with numbers are not read, one within it is enough.
    """
    if _uncertain(language).match(mention):
        return True
    if language.english:
        return False
    return any(map(str.isdigit, mention)) or next(find_values(mention, language), None) is not None
