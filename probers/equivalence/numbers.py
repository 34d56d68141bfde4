"""Numbers by value: digits and words, ordinals, scales, money and units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: What a comparison by value says; "partial" is left to the matcher's option of that name.
Relation = Literal["equivalent", "different", "partial"]

#: Longer mentions (characters) are not read as dates or numbers.
LONGEST_VALUE = 100

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINAL = (
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
).split()
CARDINALS: dict[str, int] = {w: i for i, w in enumerate(_SMALL)} | {w: 10 * i for i, w in enumerate(_TENS, 2)}
ORDINALS: dict[str, int] = {w: i for i, w in enumerate(_ORDINAL)} | {
    w[:-1] + "ieth": 10 * i for i, w in enumerate(_TENS, 2)
}
SCALES: dict[str, float] = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
DECADES: dict[str, int] = {w[:-1] + "ies": 10 * i for i, w in enumerate(_TENS, 2)}

_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50}
_ROMAN_FORM = re.compile(r"(?:xl|l?x{0,3})(?:ix|iv|v?i{0,3})")


def roman(word: str) -> int | None:
    """The value of a lower-case roman numeral below 90, or None."""
    if not word or not _ROMAN_FORM.fullmatch(word):
        return None
    values = [_ROMAN[c] for c in word]
    return sum(-v if v < max(values[i:]) else v for i, v in enumerate(values))


def read_cardinal(words: list[str]) -> tuple[float, bool, int] | None:
    """The number that the lower-case ``words`` begin with: value, whether it is an ordinal, words used.

    "and" joins only inside a number ("one hundred and twenty").
    """
    total = 0.0
    current: float | None = None
    used = position = 0
    ordinal = False
    while position < len(words) and not ordinal:
        word = words[position]
        last = words[position - 1] if position else ""
        if word == "half" and current is None:
            current = 0.5
            if words[position + 1 : position + 2] in (["a"], ["an"]):
                if words[position + 2 : position + 3] not in (["million"], ["billion"], ["dozen"]):
                    return None
                position += 1
        elif words[position : position + 3] == ["and", "a", "half"] and current is not None:
            current += 0.5
            position += 2
        elif word == "and" and used and last in ("hundred", *SCALES):
            position += 1
            continue
        elif word in ("a", "an") and not used and words[1:2] and words[1] in ("hundred", "dozen", *SCALES):
            current = 1.0
        elif word in CARDINALS or word in ORDINALS:
            value = CARDINALS.get(word, ORDINALS.get(word, 0))
            room = current is None or (current >= 20 and current % 10 == 0 and value < 10)
            if not (room or (current and current >= 100 and current % 100 == 0)):
                break
            current = (current or 0) + value
            ordinal = word in ORDINALS
        elif word in ("hundred", "hundredth"):
            current = (1 if current is None else current) * 100
            ordinal = word == "hundredth"
        elif word == "dozen":
            current = (1 if current is None else current) * 12
        elif word.removesuffix("th") in SCALES:
            total += (1 if current is None else current) * SCALES[word.removesuffix("th")]
            current = None
            ordinal = word.endswith("th")
        else:
            break
        position += 1
        used = position
    return (total + (current or 0.0), ordinal, used) if used else None


_DIGITS = re.compile(
    r"(\d+(?:(?:,\s?|\s)\d{3})*(?:\.\d+)?)(st|nd|rd|th)?(?:\s*-?\s*(thousand|million|billion|trillion)s?)?\b(.*)"
)
_ROUGH = re.compile(
    r"(?:about|around|nearly|almost|over|approximately|some|roughly|at least|up to|more than|less than|"
    r"fewer than|circa)\s+"
)
_SYMBOLS = {"us$": "dollar", "$": "dollar", "£": "pound", "€": "euro", "¥": "yen"}
#: unit: (quantity it measures, size in that quantity's base unit)
_UNITS: dict[str, tuple[str, float]] = {}
for _quantity, _table in {
    "length": "mm 0.001 millimetre 0.001 cm 0.01 centimetre 0.01 m 1 metre 1 km 1000 kilometre 1000 "
    "inch 0.0254 in 0.0254 ft 0.3048 foot 0.3048 feet 0.3048 yard 0.9144 mi 1609.344 mile 1609.344",
    "mass": "g 1 gram 1 kg 1000 kilogram 1000 t 1000000 tonne 1000000 lb 453.592 oz 28.3495 ounce 28.3495",
    "area": "sq km 1 square kilometre 1 km² 1 km2 1 hectare 0.01 ha 0.01 acre 0.00404686 square mile 2.58999 "
    "sq mi 2.58999",
    "time": "s 1 second 1 min 60 minute 60 h 3600 hour 3600 day 86400 week 604800",
    "months": "month 1 year 12 decade 120",
    "people": "people 1 person 1 inhabitant 1 resident 1",
    "percent": "% 1 percent 1 per cent 1",
    "degrees": "°c 1 degree celsius 1 degrees celsius 1",
    "dollar": "dollar 1 us dollar 1 u.s. dollar 1",
    "pound": "pound 1",
    "euro": "euro 1",
    "yen": "yen 1",
}.items():
    for _name, _size in re.findall(r"([^\d\s][^\d]*?2?) ([\d.]+)(?:\s|$)", _table):
        _UNITS[_name] = (_quantity, float(_size))


@dataclass(frozen=True, slots=True)
class Number:
    """A value with its unit as written (lower case), "" without one; ``rough`` for "about 5"."""

    value: float
    unit: str = ""
    ordinal: bool = False
    rough: bool = False

    def __str__(self) -> str:
        shown = f"{self.value:.12g}{' (ordinal)' if self.ordinal else ''} {self.unit}".strip()
        return f"about {shown}" if self.rough else shown


def compare_numbers(a: Number, b: Number, *, tolerance: float = 0.01) -> Relation:
    """Tell whether two numbers are the same quantity; a missing unit agrees with any unit of measure.

    Units of one quantity are converted, and ``tolerance`` is the relative difference allowed then, since
    conversions are rounded; equal units compare exactly.
    """
    unit_a, unit_b = _measure(a.unit), _measure(b.unit)
    if unit_a and unit_b:
        if unit_a[0] != unit_b[0]:
            return "different"
        x, y = a.value * unit_a[1], b.value * unit_b[1]
        allowed = tolerance if unit_a[1] != unit_b[1] else 1e-9
        same = abs(x - y) <= allowed * max(abs(x), abs(y))
    elif a.unit and b.unit and _singular(a.unit) != _singular(b.unit):
        return "different"
    else:
        same = a.value == b.value
    if not same:
        return "different"
    if a.ordinal != b.ordinal or a.rough != b.rough:
        return "partial"
    bare = bool(a.unit) != bool(b.unit) and not (unit_a or unit_b)
    return "partial" if bare else "equivalent"  # "first" / "first battle" is a part, "580" / "580 km" is not


def same_unit(a: str, b: str) -> bool:
    """Tell whether two units, or nouns of counted things, measure one quantity; "" only matches itself."""
    x, y = _measure(a), _measure(b)
    return x[0] == y[0] if x and y else _singular(a) == _singular(b)


def read_number(mention: str) -> Number | None:
    """The number a mention begins with and its unit, or None when it begins with none."""
    if len(mention) > LONGEST_VALUE:
        return None
    text = " ".join(mention.lower().split()).strip(' ,;:"“”()').removeprefix("the ")
    rough = _ROUGH.match(text)
    text = text[rough.end() :] if rough else text
    money = ""
    for symbol, name in _SYMBOLS.items():
        if text.startswith(symbol):
            text, money = text[len(symbol) :].strip(), name
            break
    match = _DIGITS.fullmatch(text)
    if match:
        digits, ordinal, scale, unit = match.groups()
        value = float(re.sub(r"[,\s]", "", digits)) * SCALES.get(scale or "", 1.0)
        return Number(value, _unit(unit, money), bool(ordinal), bool(rough))
    spelled = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", text).split()
    if spelled[:2] == ["one", "half"]:
        spelled = spelled[1:]
    found = read_cardinal(spelled)
    if found is None:
        return None
    value, is_ordinal, used = found
    return Number(value, _unit(" ".join(spelled[used:]), money), is_ordinal, bool(rough))


def parse_number(mention: str) -> tuple[float, str] | None:
    """``(value, unit)`` of "1,500,000", "1.5 million" or "320 km"; None when it is no exact number."""
    number = read_number(mention)
    return None if number is None or number.rough else (number.value, number.unit)


def _unit(written: str, money: str) -> str:
    return money or written.strip(" ,.-").removeprefix("of ").strip()


def _singular(unit: str) -> str:
    unit = unit.replace("meter", "metre").replace("inches", "inch")
    return unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit


def _measure(unit: str) -> tuple[str, float] | None:
    return _UNITS.get(unit) or _UNITS.get(_singular(unit))
