"""Numbers by value: sign, digits and words, fractions, scales, money, units and times of day."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal, NamedTuple

import regex

from .language import ENGLISH, Language, either, numbers, pairs, table
from .numerals import LONGEST_VALUE, grammar, in_figures, value_of

#: Results of a comparison by value; the matcher's option ``partial`` decides about "partial".
Relation = Literal["equivalent", "different", "partial"]

#: Relative difference of numbers that may be the same where one is "about" so many.
_ABOUT = 0.2

_TABLE = table("en")
_BOUNDS = pairs(_TABLE["bounds"])
_BOUND = re.compile(
    "|".join(
        re.escape(w) + (r"\s+" if w.isalpha() or " " in w else r"\s*") for w in sorted(_BOUNDS, key=len)[::-1]
    )
)
_VULGAR = "¼-¾⅐-⅞"
#: A numeral, with or without a fraction in digits after it; never a part of a longer one.
_NUMERAL = re.compile(
    rf"(?:(\d+(?:(?:,\s?|[\s'’])\d{{3}}(?!\d)|,\d\d(?=,\d))*(?:\.\d+)?|\.\d+)(?!\d)(?!\s?/|\s\d+\s?/)|(?=[{_VULGAR}\d]))"
    rf"(?:\s?([{_VULGAR}])|(?:(\d+)\s)?(\d{{1,3}})\s?[/⁄]\s?(\d{{1,3}}))?(?![,.:/]?\d)"
)
_POWER = re.compile(r"(?:\s?[×x]\s?10\^?|e\+?)(-?\d{1,2})(?![\d.])", re.IGNORECASE)
_RAISED = re.compile(r"(?<=\d)[⁰¹²³⁴-⁹⁻]+")
_LONG_SCALE = re.compile(rf"[\s-]*({either(ENGLISH.scales)})s?\b")
_SHORT_SCALE = re.compile(r"\s?(k|m|mn|mln|b|bn|tn)\b", re.IGNORECASE)
_SHORT_SCALES = numbers(_TABLE["short_scales"])
_UP_TO = re.compile(r"\s?(?:-|–|—|\bto\b|\band\b)\s?(?=[-\d.$£€¥])")
_UNIT_UP_TO = re.compile(rf"\s?(%|°\s?[CF]?|[^\W\d_]+){_UP_TO.pattern}")
_BETWEEN = re.compile(r"(?:between|from)\s(?=\D{0,3}\d.*(?:\band\b|\bto\b|[-–—]))", re.IGNORECASE)
_N_IN_M = re.compile(r"(.+?) (?:in|out of) (?:every )?(?!in\b)(.+)")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s?([^\W\d_]+\b|['’′\"″])?,?\s?(?:and\s)?")
_FOOT_SIGNS = dict.fromkeys("'’′", "ft") | dict.fromkeys('"″', "in")
_CLOCK = re.compile(r"(\d{1,2})(?:[:.]([0-5]\d))?(?::([0-5]\d))?\s?(?:([ap])\.?\s?m\.?|o['’]clock)")
_CLOCK_24 = re.compile(r"(\d{1,2})[:h]([0-5]\d)(?::([0-5]\d))?()(?:\s?(?:h|hrs|hours))?")
_HOURS = {"noon": 12, "midday": 12, "midnight": 0, "12 noon": 12, "12 midnight": 0}
#: Other signs for minus, raised digits and spaces.
_SIGNS = str.maketrans("−‒﹣－⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "----0123456789-")


class Scale(NamedTuple):
    """Quantity that a unit measures, and its size and zero in the base unit."""

    quantity: str
    size: float = 1.0
    zero: float = 0.0


_PLAIN = Scale("number")
#: Sign, code or name of a currency, and the currency.
_CURRENCIES = pairs(_TABLE["currencies"])
_MONEY = [*dict.fromkeys(_CURRENCIES.values())]
_CURRENCY = re.compile("|".join(re.escape(s) for s in sorted(_CURRENCIES, key=len)[::-1] if len(s) < 4))
_DOLLARS = frozenset(name for name in _MONEY if name.endswith("dollar"))
_CENTS = {name: f"{name.replace(' ', '_')}:1 cent:.01" for name in _MONEY if name not in _TABLE["sizes"]}
#: Unit -> each of its meanings: a pound is money or mass.
_UNITS: dict[str, list[Scale]] = {}
for _quantity, _listed in (_TABLE["sizes"] | _CENTS).items():
    for _name, _size in numbers(_listed).items():
        _zero = -17.7778 if _size == 0.555556 else 0.0  # Fahrenheit's in Celsius
        _UNITS.setdefault(_name, []).append(Scale(_quantity, _size, _zero))
#: Words after a unit of measure that do not change its quantity.
_DIMENSION = re.compile(
    r"\s(?:long|high|tall|wide|deep|thick|old|away|(?:above|below) sea level|"
    r"in (?:length|height|width|depth|size|area))"
)


def same_unit(a: str, b: str) -> bool:
    """Tell whether two units, or nouns of counted things, measure one quantity; "" only matches itself."""
    x, y = meanings(a), meanings(b)
    return bool({s.quantity for s in x} & {s.quantity for s in y}) if x and y else singular(a) == singular(b)


def read_unit(written: str, money: str) -> str:
    """Read the unit written after a number, or the currency before it."""
    unit = written.lower().replace("µ", "μ").replace("-", " ").strip(" ,.").removeprefix("of ").strip()
    unit = _CURRENCIES.get(unit) or _CURRENCIES.get(singular(unit)) or unit
    return money or _DIMENSION.sub("", unit)


@cache
def _ending_share(language: Language) -> regex.Pattern[str]:
    shares, links, articles = map(either, (language.fractions, language.links, language.articles))
    if not language.spaced:
        return regex.compile(rf"(?P<unit>.+)(?P<share>{shares})")
    return regex.compile(
        rf"(?P<unit>.*\S)\s(?:{links})\s(?:(?:{articles})\s)?(?P<share>{shares})", regex.IGNORECASE
    )


def unit_and_share(unit: str, language: Language) -> tuple[str, float]:
    """Split "year and a half", "hora y media", "年半" into the unit and the share of one more."""
    match = _ending_share(language).fullmatch(unit.strip())
    return (match["unit"], 1 / language.fractions[match["share"].lower()]) if match else (unit, 0.0)


def singular(unit: str) -> str:
    """Return a unit or noun without its plural, in British spelling."""
    unit = unit.replace("meter", "metre").replace("liter", "litre").replace("inches", "inch")
    return unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit


def meanings(unit: str) -> list[Scale]:
    """List the quantities that a unit can measure, with their scales; none for a counted noun."""
    return _UNITS.get(unit) or _UNITS.get(singular(unit)) or []


#: Units of a time of day: with a known half of the day, and without ("3:00").
_CLOCKS = ("clock", "clock of twelve hours")


@dataclass(frozen=True, slots=True)
class Number:
    """A value or a range of values, with its unit as written (lower case).

    Attributes:
        value: with its sign; minutes since midnight for a time of day.
        unit: a currency, a unit of measure, the counted noun or "clock"; "" without one.
        ordinal: it numbers ("third") and does not count.
        bound: "about", "over" or "under" as said before it, or "".
        end: the other end of a range ("5 to 10 km"), or None.
    """

    value: float
    unit: str = ""
    ordinal: bool = False
    bound: str = ""
    end: float | None = None

    def __str__(self) -> str:
        end = "" if self.end is None else f" to {self.end:.12g}"
        shown = f"{self.value:.12g}{end}{' (ordinal)' if self.ordinal else ''} {self.unit}".strip()
        return f"{self.bound} {shown}".strip()

    def ends(self) -> tuple[float, float]:
        """Return the least and the greatest value that it allows; "about 5" is taken as 5."""
        end = self.value if self.end is None else self.end
        return (-math.inf if self.bound == "under" else self.value, math.inf if self.bound == "over" else end)


def compare_numbers(a: Number, b: Number, *, tolerance: float = 0.01) -> Relation:
    """Tell whether two numbers are the same quantity; one overlapping range may be part of another.

    A missing unit agrees with any unit of measure. Units of one quantity are converted, and ``tolerance``
    is then the relative difference allowed, since conversions are rounded; equal units compare exactly.
    """
    if a.unit in _CLOCKS and b.unit in _CLOCKS:
        if a.value == b.value and a.unit == b.unit:
            return "equivalent"
        return "partial" if a.unit != b.unit and (a.value - b.value) % 720 == 0 else "different"
    relations = {_compare_ends(a, b, scales, tolerance) for scales in _conversions(a.unit, b.unit)}
    if "equivalent" not in relations:
        near = "about" in (a.bound, b.bound) and relations and math.isclose(a.value, b.value, rel_tol=_ABOUT)
        return "partial" if near or "partial" in relations else "different"
    if a.ordinal != b.ordinal or a.bound != b.bound:
        return "partial"
    if a.unit != b.unit and {a.unit, b.unit} <= _DOLLARS:
        return "partial"
    bare = bool(a.unit) != bool(b.unit) and not (meanings(a.unit) or meanings(b.unit))
    return "partial" if bare else "equivalent"  # "first" / "first battle" is a part, "580" / "580 km" is not


def may_convert(a: Number, b: Number) -> bool:
    """Tell whether two units may agree though no table says so: inflected nouns, or an unknown unit."""
    if not (a.unit and b.unit) or a.ordinal or b.ordinal or same_unit(a.unit, b.unit):
        return False
    unknown = [not meanings(unit) for unit in (a.unit, b.unit)]
    return any(unknown) and (a.ends() == b.ends() or not all(unknown))


def _conversions(a: str, b: str) -> list[tuple[Scale, Scale]]:
    """List scales on which two units can be compared, none where they measure different things."""
    x, y = meanings(a), meanings(b)
    if not a or not b:
        shares = [s for s in x + y if s.quantity == "share"]  # "half" / "50%"
        return [(_PLAIN, _PLAIN), *((_PLAIN, s) if y else (s, _PLAIN) for s in shares)]
    if {a, b} <= _DOLLARS:
        return [(_PLAIN, _PLAIN)]
    if not (x and y):
        return [(_PLAIN, _PLAIN)] if singular(a) == singular(b) else []
    return [(s, t) for s in x for t in y if s.quantity == t.quantity]


def _compare_ends(a: Number, b: Number, scales: tuple[Scale, Scale], tolerance: float) -> Relation:
    x, y = ([end * s.size + s.zero for end in n.ends()] for n, s in zip((a, b), scales, strict=True))
    relative = tolerance if scales[0].size != scales[1].size else 1e-9
    if all(math.isclose(p, q, rel_tol=relative, abs_tol=relative) for p, q in zip(x, y, strict=True)):
        return "equivalent"
    (low, high), (least, most) = x, y
    inside = least <= low <= most if low == high else low <= least <= high if least == most else False
    return "partial" if inside or (low < most and least < high) else "different"


@lru_cache(maxsize=8192)
def read_number(mention: str) -> Number | None:
    """Read the number at the start of a mention and its unit, or None."""
    if len(mention) > LONGEST_VALUE:
        return None
    text = in_plain_signs(mention).strip(' ,;:"“”()')
    text = re.sub(r"^the ", "", text, flags=re.IGNORECASE)
    kind = ""
    if bound := _BOUND.match(text.lower()):
        kind, text = _BOUNDS[bound.group().strip()], text[bound.end() :]
    lower = text.lower()
    number = _clock(lower) or _compound(in_figures(lower, ENGLISH)) or _share(lower)
    number = number or _in_digits(text) or _in_words(lower)
    return number and replace(number, bound=kind or number.bound)


def _clock(text: str) -> Number | None:
    if text in _HOURS:
        return Number(60 * _HOURS[text], "clock")
    match = _CLOCK.fullmatch(text) or _CLOCK_24.fullmatch(text)
    if not match:
        return None
    hour, minute, half = int(match[1]), int(match[2] or 0) + int(match[3] or 0) / 60, match[4]
    if hour > (12 if half else 24):
        return None
    known = half or not 1 <= hour <= 12
    hour = hour % 12 + (12 if half == "p" else 0) if half else hour
    return Number(60 * hour + minute, _CLOCKS[0 if known else 1])


def _compound(text: str) -> Number | None:
    """Read a measure in two or three units ("6 ft 2 in", "1 hour 30 minutes"), in the last of them."""
    measures = [*_PARTS.finditer(text)]
    if not 2 <= len(measures) <= 3 or "".join(match[0] for match in measures) != text:
        return None
    units = [_FOOT_SIGNS.get(match[2], match[2] or "") for match in measures]
    if not units[-1] and meanings(units[-2]) == meanings("ft"):
        units[-1] = "in"
    if units[-1] == "m" and meanings(units[-2]) == meanings("h"):
        units[-1] = "min"
    scales = [{scale.quantity: scale.size for scale in meanings(unit)} for unit in units]
    if not (shared := set(scales[0]).intersection(*scales[1:])):
        return None
    sizes = [scale[min(shared)] for scale in scales]
    values = [float(match[1]) for match in measures]
    if any(v * s >= above for v, s, above in zip(values[1:], sizes[1:], sizes, strict=False)):
        return None
    return Number(sum(v * s for v, s in zip(values, sizes, strict=True)) / sizes[-1], units[-1])


def _share(text: str) -> Number | None:
    """Read "one in five" and "9 out of 10"."""
    if (match := _N_IN_M.fullmatch(text)) is None:
        return None
    some, whole = (value_of(written, ENGLISH) or 0.0 for written in match.groups())
    return Number(some / whole) if 0 < some < whole else None


def _in_digits(text: str) -> Number | None:
    text = _BETWEEN.sub("", text)
    sign, money, text = sign_and_money(text)
    if (first := _numeral(text)) is None:
        return None
    value, rest = first
    if ordinal := re.match(r"(?:st|nd|rd|th)\b", rest):
        return Number(value, read_unit(rest[ordinal.end() :], money), ordinal=True)
    value, rest, scaled = _scaled(value, rest, money)
    end, join = None, _UP_TO.match(rest) or _UNIT_UP_TO.match(rest)
    before = join[1] if join and join.re is _UNIT_UP_TO else ""
    if join:
        sign_of_end, money_of_end, tail = sign_and_money(rest[join.end() :])
        if second := _numeral(tail):
            end, rest, scaled_end = _scaled(*second, money or money_of_end)
            end *= sign_of_end
            value *= scaled_end if scaled == 1 else 1  # "5 to 10 million"
    bound = "over" if rest.startswith("+") else ""
    rest = rest.removeprefix("+")
    unit = read_unit(rest, money)
    if before and end is not None and singular(read_unit(before, money)) != singular(unit):
        return None  # "5 minutes to 2 hours"
    if unit[:1].isdigit() or (rest[:1].isalpha() and not meanings(unit)):
        return None  # "2 million 300 thousand", "3D", "20S"
    return Number(sign * value, unit, bound=bound, end=end)


def in_plain_signs(text: str) -> str:
    """Write other signs for minus, raised digits and runs of spaces in one form."""
    return " ".join(_RAISED.sub(r"^\g<0>", text).translate(_SIGNS).split())


def sign_and_money(text: str) -> tuple[int, str, str]:
    """Read sign and currency before a numeral, in either order, and return the rest."""
    sign, money = 1, ""
    for _ in range(3):
        minus = re.match(r"(?:-|\+|minus\s|negative\s|plus\s)\s?", text, re.IGNORECASE)
        coin = None if money else _CURRENCY.match(text.lower())
        if minus:
            sign, text = -1 if minus.group()[0].lower() in "-mn" else 1, text[minus.end() :]
        elif coin:
            money, text = _CURRENCIES[coin.group()], text[coin.end() :].lstrip()
    return sign, money, text


def _numeral(text: str) -> tuple[float, str] | None:
    """Read the numeral at the start of a text, fractions included, and return the rest."""
    match = _NUMERAL.match(text)
    if not (match and match.group()):
        return None
    digits, vulgar, whole, top, bottom = match.groups()
    value = float(re.sub(r"[,\s'’]", "", digits or whole or "0"))
    if vulgar:
        value += unicodedata.numeric(vulgar)
    elif top and bottom:
        if not 0 < int(top) < int(bottom):
            return None
        value += int(top) / int(bottom)
    rest = text[match.end() :]
    if raised := re.match(r"\^(-?\d{1,2})(?!\d)", rest):
        return (value ** int(raised[1]), rest[raised.end() :]) if 1 < value < 1000 else None
    power = _POWER.match(rest)
    return (value * 10.0 ** int(power[1]), rest[power.end() :]) if power else (value, rest)


def _scaled(value: float, rest: str, money: str) -> tuple[float, str, float]:
    """Multiply a value by the scale written after it; return also the rest and the scale."""
    long, short = _LONG_SCALE.match(rest.lower()), _SHORT_SCALE.match(rest)
    if long:
        scale = ENGLISH.scales[long[1]]
        value, rest, further = _scaled(value * scale, rest[long.end() :], money)
        return value, rest, scale * further
    if short:
        after = rest[short.end() :].strip(" -").lower()
        counted = {scale.quantity for scale in meanings(after)} & {"people", *_MONEY}
        glued = short.group()[0] in "KM" or short.group() == "k"
        if money or counted or glued or short[1].lower() in ("mn", "mln", "bn", "tn"):
            scale = _SHORT_SCALES[short[1].lower()]
            return value * scale, rest[short.end() :], scale
    return value, rest, 1.0


def _in_words(text: str) -> Number | None:
    sign, money, text = sign_and_money(text)
    numeral = grammar(ENGLISH).read(text)
    if numeral is None:
        unit, share = unit_and_share(text, ENGLISH)  # "year and a half"
        return Number(sign * (1 + share), read_unit(unit, money)) if share and meanings(unit) else None
    unit, share = unit_and_share(text[numeral.end :], ENGLISH)
    unit, bare = read_unit(unit, money), numeral.lone and text.split()[0] in ENGLISH.articles
    glued = not numeral.written and text[numeral.end : numeral.end + 1].isalpha()
    if not meanings(unit) and (glued or bare or grammar(ENGLISH).uncertain(text[numeral.end :])):
        return None  # "3D", "a thing", "five or six", "half past three"
    return Number(sign * (numeral.value + share), unit, numeral.ordinal, "about" if numeral.about else "")
