"""English number words and roman numerals by value."""

from __future__ import annotations

import re

from .language import numbers, table

_TABLE = table("en")
SMALL_WORDS, TENS_WORDS = _TABLE["small"].split(), _TABLE["tens"].split()
ORDINAL_WORDS = _TABLE["small_ordinals"].split()
_TENS = {10 * place: word[:-1] for place, word in enumerate(TENS_WORDS, 2)}
CARDINALS = {w: i for i, w in enumerate(SMALL_WORDS)} | {f"{stem}y": value for value, stem in _TENS.items()}
ORDINALS = {w: i for i, w in enumerate(ORDINAL_WORDS)} | {f"{s}ieth": value for value, s in _TENS.items()}
DECADES = {f"{stem}ies": value for value, stem in _TENS.items()}
SCALES = numbers(_TABLE["large"])
#: Number of shares, by their word, that make a whole.
_SHARES = {w: value for w, value in ORDINALS.items() if value > 2} | {"half": 2, "halve": 2, "quarter": 4}

_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50}
_ROMAN_FORM = re.compile(r"(?:xl|l?x{0,3})(?:ix|iv|v?i{0,3})")


def roman(word: str) -> int | None:
    """Return the value of a lower-case roman numeral below 90, or None."""
    return roman_value(word) if word and _ROMAN_FORM.fullmatch(word) else None


def roman_value(word: str) -> int:
    """Add the values of the letters i, v, x and l, of which a smaller one before a larger is subtracted."""
    values = [_ROMAN[c] for c in word]
    return sum(-v if v < max(values[i:]) else v for i, v in enumerate(values))


def read_cardinal(words: list[str]) -> tuple[float, bool, int] | None:
    """Read the number at the start of the lower-case ``words``: value, whether it is an ordinal, words used.

    "and" joins only inside a number ("one hundred and twenty", "two and a half").
    """
    total = 0.0
    current: float | None = None
    used = position = 0
    ordinal = False
    while position < len(words) and not ordinal:
        word = words[position]
        last = words[position - 1] if position else ""
        parts = _shared(word)
        if word == "half" and current is None:
            current = 0.5
            if words[position + 1 : position + 2] in (["a"], ["an"]):
                if words[position + 2 : position + 3] not in (["million"], ["billion"], ["dozen"]):
                    return None
                position += 1
        elif (
            current and words[position : position + 2] == ["and", "a"] and _shared(*words[position + 2 :][:1])
        ):
            current += 1 / _shared(words[position + 2])
            position += 2
        elif current and current < parts and (current == 1 or word.endswith("s")):
            current /= parts  # "one third", "two thirds"; "twenty third" is an ordinal
        elif word == "and" and used and last in ("hundred", *SCALES):
            position += 1
            continue
        elif word in ("a", "an") and not used and words[1:2] and words[1] in ("hundred", "dozen", *SCALES):
            current = 1.0
        elif word == "a" and not used and _shared(*words[1:2]) and words[2:3] in ([], ["of"]):
            current = 1.0  # "a third", "a quarter of"; "a third album" has an ordinal
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


def _shared(word: str = "") -> int:
    """Return how many shares of the named kind make a whole; 0 where the word names none."""
    return _SHARES.get(word.removesuffix("s"), 0)
