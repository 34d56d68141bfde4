"""Numbers written as words: cardinals, ordinals, scales and roman numerals."""

from __future__ import annotations

import re


def listed(words: str) -> list[str]:
    """The words of a list written as one text."""
    return words.split()


_SMALL = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = listed("twenty thirty forty fifty sixty seventy eighty ninety")
_ORDINAL = listed(
    "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)

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
    """The number that the lower-case ``words`` begin with.

    Returns:
        ``(value, is an ordinal, words used)``, or None when they begin with none.
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
