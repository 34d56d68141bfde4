"""Numbers in words, in figures and mixed, by one grammar for all languages; roman numerals.

The words are data (``data/*.yaml``). A number is a sum of parts, each smaller than the room that the part
before leaves ("vingt-deux"; "hundert" has room below 100). A scale multiplies all smaller parts before it, so
that "mil millones" is 10^9. Shares divide ("two thirds"), add ("deux millions et demi") or are multiplied
("half a million"). A text that this grammar does not read to its end is no number.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import regex

from .language import ENGLISH, Language, either

_NO_NAMES = ENGLISH.articles | ENGLISH.vague
CARDINALS = {word: int(value) for word, value in ENGLISH.numerals.items() if word not in _NO_NAMES}
ORDINALS = {word: int(value) for word, value in ENGLISH.ordinals.items() if value < 100}
SMALL_WORDS, TENS_WORDS = ([w for w, v in CARDINALS.items() if (v < 20) is small] for small in (True, False))
ORDINAL_WORDS = [word for word, value in ORDINALS.items() if value < 20]
DECADES = {f"{word[:-1]}ies": value for word, value in CARDINALS.items() if value >= 20}

_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100, "d": 500, "m": 1000}
_ROMAN_FORM = re.compile(r"(?:xl|l?x{0,3})(?:ix|iv|v?i{0,3})")
#: Years in capitals; shorter ones may be initials.
_ROMAN_YEAR = re.compile(r"(?=\w{4})M{1,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
#: Longer mentions (characters) are not read as dates or numbers.
LONGEST_VALUE = 100
#: Largest number of shares, as in "twenty twenty-firsts".
_MOST_SHARES = 20
#: Longest number in words and figures.
_MOST_TOKENS = 24
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})
_WORD_AHEAD = re.compile(r"\s*[^\W_]")
_GAP = regex.compile(r"[\s\u00a0\u202f-]*")


def roman(word: str) -> int | None:
    """Return the value of a lower-case roman numeral below 90, or None."""
    return roman_value(word) if word and _ROMAN_FORM.fullmatch(word) else None


def roman_value(word: str) -> int:
    """Add the values of lower-case roman letters, of which a smaller one before a larger is subtracted."""
    values = [_ROMAN[c] for c in word]
    return sum(-v if v < max(values[i:]) else v for i, v in enumerate(values))


def roman_year(mention: str) -> str:
    """Write a year in roman capitals in figures, as 1945 for MCMXLV; return other mentions as they are."""
    return str(roman_value(mention.lower())) if _ROMAN_YEAR.fullmatch(mention) else mention


class Numeral(NamedTuple):
    """A number that ends at ``end`` of its text.

    ``scale`` is the product of its scales if it has one part ("5 million"); ``about`` marks words of rough
    numbers ("vingtaine"); ``lone`` a word that alone may mean something else; ``written`` a number without
    figures.
    """

    value: float
    end: int
    ordinal: bool
    scale: float
    about: bool
    lone: bool
    written: bool


class _Token(NamedTuple):
    kind: str  # n numeral, d figures, s scale, o ordinal, f share, th ordinal ending, + link, . point, of
    value: float
    word: str
    start: int
    end: int


class Grammar:
    """The grammar of numbers with the words of one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._words: dict[str, tuple[str, float]] = {}
        listed: list[tuple[str, dict[str, float]]] = [
            ("n", dict(language.numerals)), ("s", dict(language.scales)), ("o", dict(language.ordinals)),
            ("f", dict(language.fractions)), ("th", dict.fromkeys(language.ordinal_endings, 0.0)),
            ("+", dict.fromkeys(language.links, 0.0)), (".", dict.fromkeys(language.points, 0.0)),
            ("of", dict.fromkeys(language.of, 0.0)),
        ]  # fmt: skip
        for kind, words in listed:
            for word, value in words.items():
                for form in _spellings(word.lower()):
                    self._words.setdefault(form, (kind, value))
                    if kind == "o" and value > 2 and language.plural:
                        self._words.setdefault(form + language.plural, (kind, value))
        thousands = re.escape(language.thousands)
        sign = r"[.,]" if language.decimal == "," else r"\."
        ratio = r"(?:(?P<mixed>\d{1,3})\s)?(?P<top>\d{1,3})\s?[/⁄]\s?(?P<bottom>\d{1,3})(?!\s?[/⁄\d])"
        whole = rf"(?P<whole>\d{{1,3}}(?:[{thousands}]\d{{3}})+(?!\d)|\d+)?(?P<part>(?<=\d){sign}\d+)?"
        power = (
            r"(?:\^(?P<raised>-?\d{1,2})|(?<=\d)\s?[×x·*]\s?10\^?(?P<power>-?\d{1,2})"
            r"|(?<=\d)e\+?(?P<e>-?\d{1,2}))?"
        )
        figures = rf"(?=[\d¼-¾⅐-⅞]){whole}{power}(?:\s?(?P<vulgar>[¼-¾⅐-⅞]))?(?<=[\d¼-¾⅐-⅞])(?![.,]?\d)"
        token = f"{ratio}|{figures}|(?P<word>{either(self._words)})"
        rough, edge = either(language.unread), r"(?<!\w)" if language.spaced else ""
        rough = rf"{edge}(?:{rough})(?!\w)" if language.spaced else rough
        forms = (rough, f"(?:{token})", f"{edge}(?:{token})")
        self._rough, self._token, self._start = (regex.compile(form, regex.IGNORECASE) for form in forms)

    def starts(self, text: str) -> Iterator[int]:
        """List the places of a text where a number may begin, words within words excepted."""
        yield from (match.start() for match in self._start.finditer(text))

    def read(self, text: str, start: int = 0) -> Numeral | None:
        """Read the longest number at ``start``, or None."""
        tokens: list[_Token] = []
        at: int | None = start
        while at is not None and len(tokens) < _MOST_TOKENS and (token := self._next(text, at)) is not None:
            tokens.append(token)
            gap = _GAP.match(text, token.end)
            at = gap.end() if gap else token.end
        readings = (self._numeral(text, tokens[:count]) for count in range(len(tokens), 0, -1))
        return next((numeral for numeral in readings if numeral), None)

    def uncertain(self, rest: str) -> bool:
        """Tell whether a text behind a number goes on as one or makes it rough: "five or six", "300-odd"."""
        numerals = (self.read(rest, start) for start in self.starts(rest))
        return self._rough.search(rest) is not None or any(
            numeral and not (numeral.lone and numeral.value == 1) for numeral in numerals
        )

    def _next(self, text: str, at: int) -> _Token | None:
        match = self._token.match(text, at)
        if match is None or match.end() == at:
            return None
        if word := match["word"]:
            known = self._words.get(word.lower())
            return known and _Token(*known, word.lower(), at, match.end())
        return _Token("d", self._figures(match.groupdict()), "", at, match.end())

    def _figures(self, groups: dict[str, str | None]) -> float:
        if groups["top"] and groups["bottom"]:
            bottom = int(groups["bottom"])
            return int(groups["mixed"] or 0) + int(groups["top"]) / bottom if bottom else math.nan
        value = digits(groups["whole"] or "0", groups["part"] or "", self.language)
        value += unicodedata.numeric(groups["vulgar"]) if groups["vulgar"] else 0.0
        value = value ** int(groups["raised"]) if groups["raised"] and 1 < value < 1e3 else value
        return value * 10.0 ** int(groups["power"] or groups["e"] or 0)

    def _ends(self, text: str, end: int) -> bool:
        """Tell whether no letter goes on, or only an ending that numbers may have ("neunziger Jahre")."""
        if not self.language.spaced or not text[end : end + 1].isalnum():
            return True
        return self.language.tails is not None and self.language.tails.match(text, end) is not None

    def _numeral(self, text: str, tokens: list[_Token]) -> Numeral | None:
        first, second, last = tokens[0], tokens[min(1, len(tokens) - 1)], tokens[-1]
        if not (last.kind == "d" or self._ends(text, last.end)):
            return None
        rough = second.kind == "n" and second.word in self.language.vague  # "a couple", "une vingtaine"
        counted = tokens[1:] if rough and first.word in self.language.articles else tokens
        result = self._evaluate(self._with_shares(text, counted))
        if result is None or not math.isfinite(result[0]):
            return None
        value, ordinal = result
        single = len(tokens) == 1 and first.kind != "d"
        lone = single and (first.kind == "s" or value in (0, 1) or first.word in self.language.lone)
        scales = [token.value for token in tokens[1:] if token.kind == "s"]
        return Numeral(
            value, last.end, ordinal, math.prod(scales) if len(scales) == len(tokens) - 1 else 1.0,
            any(token.word in self.language.vague for token in tokens), lone,
            all(token.kind != "d" for token in tokens),
        )  # fmt: skip

    def _with_shares(self, text: str, tokens: list[_Token]) -> list[_Token]:
        """Mark ordinals that name shares: "one third", "two thirds", "a third of"; not "twenty-third"."""
        marked, ending = list(tokens), self.language.plural
        for i, (top, token) in enumerate(pairwise(tokens), 1):
            counted = top.kind in ("n", "d") and 0 < top.value <= _MOST_SHARES
            if not counted or token.kind != "o" or token.value <= 2:
                continue
            plural = bool(ending) and token.word.endswith(ending)
            free = top.word not in self.language.articles or not _WORD_AHEAD.match(text, token.end)
            free = free or (i + 1 < len(tokens) and tokens[i + 1].kind == "of")
            if plural or (top.value == 1 and free):
                marked[i] = token._replace(kind="f")
        return marked

    def _evaluate(self, tokens: list[_Token]) -> tuple[float, bool] | None:
        place = next((i for i, token in enumerate(tokens) if token.kind == "f"), None)
        if place is None:
            return self._plain(tokens)
        before, share, after = tokens[:place], tokens[place], tokens[place + 1 :]
        top, start, glued = 1.0, share.start, False  # "zwei einhalb"
        if before and before[-1].kind in ("n", "d"):
            *before, numerator = before
            top, start, glued = numerator.value, numerator.start, numerator.end == share.start
        value = top / share.value
        if top > _MOST_SHARES:
            return None
        articled = len(before) == 1 and before[0].word in self.language.articles and before[0].end != start
        if articled and top > 1:
            before = []  # "eine dreiviertel Stunde"
        if before:
            linked = before[-1].kind == "+"
            whole = self._plain(before[:-1] if linked else before)
            if whole is None or whole[1] or not (linked or glued or before[-1].end == start):
                return None
            last = before[-2] if linked else before[-1]
            if last.kind == "s" and (not linked or (last.value < 1e6 and last.value != 12)):
                return None  # "hunderteinhalb", "mil y medio"
            value = whole[0] + value * (last.value if last.kind == "s" else 1.0)
        # "half [of] [a] million": a million, or the unit that follows
        while after and (after[0].kind == "of" or after[0].word in self.language.articles):
            after = after[1:]
        scaled = after and any(token.kind == "s" for token in before)
        if scaled or any(token.kind != "s" for token in after):
            return None
        return value * math.prod(token.value for token in after), False

    def _plain(self, tokens: Sequence[_Token]) -> tuple[float, bool] | None:
        """Read a number without shares, with its decimals in words."""
        points = [i for i, token in enumerate(tokens) if token.kind == "."]
        if not points:
            return self._sum(tokens)
        bare = (0.0, False) if self.language.english and not points[0] else None  # "point five"
        whole, rest = bare or self._sum(tokens[: points[0]]), list(tokens[points[0] + 1 :])
        scales: list[float] = []
        while rest and rest[-1].kind == "s" and rest[-1].value >= 1e3:
            scales.append(rest.pop().value)
        if len(points) > 1 or whole is None or whole[1] or not rest or any(t.kind == "d" for t in tokens):
            return None
        decimals = ""
        while rest:
            one = all(token.kind == "n" and token.value < 10 for token in rest)
            count = next((n for n in range(1 if one else len(rest), 0, -1) if self._sum(rest[:n])), 0)
            part = self._sum(rest[:count])
            if part is None or part[1]:
                return None
            decimals, rest = decimals + str(int(part[0])), rest[count:]
        return (whole[0] + float(f"0.{decimals}")) * math.prod(scales), False

    def _sum(self, tokens: Sequence[_Token]) -> tuple[float, bool] | None:
        """Add the parts of a number, each of which has room in the one before."""
        joined = self._joined(tokens)
        parts: list[tuple[float, float]] = []  # value and room
        ordinal = linked = False
        previous: _Token | None = None
        for i, token in enumerate(joined):
            value, before = token.value, previous.kind if previous else ""
            if token.kind == "+" and parts and not linked and not ordinal:
                linked = True
                continue
            if token.kind == "th" and parts and i == len(joined) - 1:
                return sum(part for part, _ in parts), True
            scales = token.kind == "s" or (token.kind == "o" and value >= 100 and before in ("n", "d", "s"))
            if token.kind not in ("n", "d", "s", "o") or (ordinal and token.kind != "o"):
                return None
            if scales:
                larger = self._scaled(parts, token, previous, linked=linked)
                if larger is None:
                    return None
                parts = larger
            else:
                if previous:
                    large = previous.kind == "s" and previous.value >= 1e3
                    if (token.kind == "d" and not large) or not 0 < value < parts[-1][1]:
                        return None
                    short = self.language.elides and i == len(joined) - 1 and not linked and token.kind == "n"
                    if short and previous.kind == "s" and previous.value >= 100 and value < 10:
                        value *= previous.value / 10  # 一万五 is 15,000
                parts.append((value, 0.0 if token.kind == "d" else self._room(value)))
            ordinal, linked, previous = token.kind == "o", False, token
        return (sum(part for part, _ in parts), ordinal) if parts and not linked else None

    def _scaled(
        self, parts: list[tuple[float, float]], token: _Token, previous: _Token | None, *, linked: bool
    ) -> list[tuple[float, float]] | None:
        """Multiply the parts that are smaller than a scale, or add or multiply a scale after a larger one."""
        value = token.value
        if value < 1e3 and value not in (10, 100) and (parts or token.word in self.language.bare):
            return [(sum(part for part, _ in parts) * value if parts else value, value)]
        least = next((i for i, (part, _) in enumerate(parts) if part < value), len(parts))
        larger, product = parts[:least], sum(part for part, _ in parts[least:]) * value
        if least == len(parts):
            product = value
            if previous is None:
                if token.word not in self.language.bare and token.kind == "s":
                    return None  # "millions"
            elif previous.kind not in ("s", "d") or (linked and token.word not in self.language.adds):
                return None
            elif previous.kind == "d" or token.word not in self.language.adds:
                *larger, (last, _) = parts  # "a million million", "1,000,000 million"
                product = last * value
        return None if larger and product >= larger[-1][1] else [*larger, (product, value)]

    def _room(self, value: float) -> float:
        figures = str(int(value))
        zeros = len(figures) - len(figures.rstrip("0"))
        return self.language.rooms.get(figures, float(10**zeros) if value >= 20 and zeros else 0.0)

    def _joined(self, tokens: Sequence[_Token]) -> list[_Token]:
        """Join digits in a row (二〇〇三), ones before tens ("fünfundzwanzig"), and a scale over its "of"."""
        joined: list[_Token] = []
        for i, token in enumerate(tokens):
            if token.kind == "of" and tokens[i + 1 : i + 2] and tokens[i + 1].kind == "s" and joined:
                continue
            if not self.language.spaced and token.word in ("零", "〇") and joined and joined[-1].kind == "s":
                token = token._replace(kind="+")
            ones = joined[-2] if len(joined) > 1 and joined[-1].kind == "+" else None
            turned = ones is not None and ones.kind == "n" and 0 < ones.value < 10
            if turned and token.kind in ("n", "o") and 20 <= token.value < 100 and token.value % 10 == 0:
                joined[-2:] = [token._replace(value=token.value + joined[-2].value)]
            else:
                joined.append(token)
        if self.language.spaced or len(joined) < 2 or any(t.kind != "n" or t.value > 9 for t in joined):
            return joined
        row = "".join(str(int(token.value)) for token in joined)
        if len(row) < 3 and "0" not in row:
            return joined  # 七八 is "seven or eight"
        return [joined[0]._replace(value=float(row))]


def _spellings(word: str) -> set[str]:
    """Write a lower-case word as it is, without accents, and with "ue" for "ü"."""
    bare = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", unicodedata.normalize("NFD", word)))
    return {word, bare, word.translate(_UMLAUTS)}


@cache
def grammar(language: Language) -> Grammar:
    """Return the grammar of a language, built once."""
    return Grammar(language)


def digits(whole: str, part: str, language: Language) -> float:
    """Read figures with their decimals; NaN where they have two readings."""
    groups = re.split(f"[{re.escape(language.thousands)}]", whole)
    if len(part) == 4 and len(groups) == 1 and len(whole) <= 3 and part[0] == "," and whole != "0":
        return math.nan  # 1,234 is 1.234, but 1234 in Mexico and in English habits of models
    return float("".join(groups) + part.replace(",", "."))


def in_figures(text: str, language: Language) -> str:
    """Write the numbers in words of a text in figures, with ordinal endings, for the patterns of dates."""
    read, written, behind = grammar(language).read, "", 0
    paired: str | None = None  # first half of "nineteen eighty-four"
    for start in grammar(language).starts(text):
        numeral = read(text, start) if start >= behind else None
        if numeral is None or not numeral.written or numeral.about:
            continue
        whole, article = numeral.value % 1 == 0, text[start : numeral.end].lower() in language.articles
        if not whole or numeral.value >= 1e4 or (numeral.lone and article):
            continue
        figures, between = str(int(numeral.value)), text[behind:start]
        if paired and len(figures) == 2 and re.fullmatch(r"[\s-]", between):
            between = ""
        elif paired and len(figures) == 1 and re.fullmatch(r"[\s-](?:oh|o)[\s-]", between):
            between = "0"
        century = language.english and not numeral.ordinal and 10 <= numeral.value <= 20
        paired = figures if (century and between not in ("", "0")) or (century and not behind) else None
        written += between + figures + (language.ordinal_sign if numeral.ordinal else "")
        behind = numeral.end
    return written + text[behind:]


def value_of(text: str, language: Language) -> float | None:
    """Return the value of a text that is a whole number and nothing else, or None."""
    numeral = grammar(language).read(text)
    return numeral.value if numeral and numeral.end == len(text) and not numeral.ordinal else None
