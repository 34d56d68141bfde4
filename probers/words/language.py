"""Languages as tables of words and patterns, and detection of the language of texts."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import regex
import yaml

from ..types import UserError

log = logging.getLogger(__name__)


@cache
def table(name: str) -> dict[str, Any]:
    """Read a file of words and patterns: "common", or the code of a language."""
    path = Path(__file__).parent / "data" / f"{name}.yaml"
    table: dict[str, Any] = yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return table


def words(listed: str) -> frozenset[str]:
    """Split a list at its spaces; "_" is a space within a word."""
    return frozenset(word.replace("_", " ") for word in listed.split())


def pairs(listed: str) -> dict[str, str]:
    """Map words to values, written "word|another:value" with spaces between groups; "_" is a space."""
    groups = (group.replace("_", " ").rsplit(":", 1) for group in listed.split())
    return {word: value for names, value in groups for word in names.split("|")}


def numbers(listed: str) -> dict[str, float]:
    """Map words to numbers, written like :func:`pairs`."""
    return {word: float(value) for word, value in pairs(listed).items()}


def english(name: str) -> frozenset[str]:
    """Return a list of English words for the rules of English."""
    return words(table("en")["lists"][name])


def either(listed: Iterable[str]) -> str:
    """Build a regular expression for any of some words, longer ones first; without any it never matches."""
    longest = sorted(listed, key=lambda word: (-len(word), word))
    return "|".join(map(regex.escape, longest)) or "(?!)"


#: Readers of a field by its type; other fields are as the table has them.
_READERS: dict[str, Callable[[Any], Any]] = {
    "frozenset[str]": words, "tuple[str, ...]": tuple, "Mapping[str, str]": pairs,
    "Mapping[str, float]": numbers,
    "Mapping[str, int]": lambda listed: {word: int(value) for word, value in pairs(listed).items()},
    "re.Pattern[str] | None": lambda written: re.compile(written) if written else None,
}  # fmt: skip
#: What a table without the field has, "" for all others.
_MISSING = {
    "spaced": True, "elides": False, "capitals": 0.0, "ordinal": "(?!)", "decimal": ",",
    "thousands": ".\u00a0\u202f '’",
}  # fmt: skip


class Language:
    """One language, such as "de", "German"; a field of its table is read when it is first needed.

    What a missing field would describe is not recognised in it.
    The rules of ``dates`` have the groups d, m, month, y, d2, m2, month2, y2, bc, century, decade and reign,
    "{month}" for any month, "{n}" for a number of at most two digits, "{bc}" and "{ad}" for the eras, and
    "{reign}" for any of ``reigns``.
    """

    function_words: frozenset[str]  # frequent lower-case words that are no names and identify the language
    titles: frozenset[str]  # lower-case words whose full stop never ends a sentence
    abbreviations: frozenset[str]  # words whose full stop ends one before a word of ``starters``
    starters: frozenset[str]  # words that begin sentences
    closing: str  # quotation marks after sentences
    opening: str  # quotation marks before sentences
    numbered: re.Pattern[str] | None  # words whose full stop makes an ordinal of them ("3. Mai")
    goes_on: re.Pattern[str] | None  # continuation of a sentence after a quotation with an end mark
    spaced: bool  # words are written with spaces between them
    works: tuple[str, ...]  # opening and closing marks around titles of works
    sure: str  # opening marks of those that hold nothing else
    announced: str  # regular expression of the words before other marks around a title; "" is anything
    capitals: float  # share of the content words of a title that begin with a capital
    months: tuple[str, ...]  # regular expressions of the twelve months
    before_christ: str  # regular expression of the era before Christ
    after_christ: str  # regular expression of the era after Christ
    reigns: Mapping[str, int]  # names of eras with the year before their first
    thousands: str  # characters within numerals
    decimal: str  # sign before decimals
    numerals: Mapping[str, float]  # number words below 1,000
    scales: Mapping[str, float]  # number words that multiply the numbers before them
    bare: frozenset[str]  # scales that begin a number, as in "mille", "hundred people"
    adds: frozenset[str]  # scales that are added to a larger one, as in "mille cent"
    rooms: Mapping[str, float]  # numbers with more room than their zeros say: "soixante-dix" (by value)
    elides: bool  # a last digit counts the next smaller power: 一万五 is 15,000
    ordinals: Mapping[str, float]  # words of ordinal numbers
    ordinal_endings: frozenset[str]  # endings that make an ordinal of a number in words
    ordinal: str  # regular expression of the endings of ordinal numbers in digits
    ordinal_sign: str  # one of them
    fractions: Mapping[str, float]  # words of shares, with how many make a whole
    plural: str  # ending of several shares ("two thirds")
    links: frozenset[str]  # words between two parts of a number
    points: frozenset[str]  # words before decimals
    of: frozenset[str]  # words between a number and its scale, or a share and its whole
    tails: re.Pattern[str] | None  # endings of number words that are not read: "neunziger"
    vague: frozenset[str]  # number words that mean about as many
    unread: frozenset[str]  # words of no certain number
    lone: frozenset[str]  # number words that alone may mean something else
    bounds: Mapping[str, str]  # words before a number, with "about", "over" or "under"
    bounds_behind: Mapping[str, str]  # such words behind it
    minus: frozenset[str]  # words before a negative number
    ranges: frozenset[str]  # words between the ends of a range
    before_times: frozenset[str]  # days of the week and small words before a time
    units: Mapping[str, str]  # words of units, with the English unit that each means
    plain: frozenset[str]  # capitalised or quoted words that are no names
    places: frozenset[str]  # words that certainly mean a place
    honorifics: frozenset[str]  # lower-case titles before a full name, which do not change it
    articles: frozenset[str]  # lower-case words that may stand before a name
    endings: frozenset[str]  # inflectional endings of the words of a name

    def __init__(self, code: str, name: str) -> None:
        self.code, self.name = code, name

    def __getattr__(self, field: str) -> Any:
        if (kind := Language.__annotations__.get(field)) is None:
            raise AttributeError(f"a language has no {field}")
        written = table(self.code).get(field, _MISSING.get(field, ""))
        value = self.__dict__[field] = _READERS.get(kind, lambda written: written)(written)
        return value

    def __repr__(self) -> str:
        return f"Language({self.code!r})"

    @property
    def english(self) -> bool:
        """True if the rules for English are used instead of this table."""
        return self.code == "en"

    def patterns(self, field: str, **parts: str) -> list[str]:
        """Return the regular expressions of a field, with their parts in braces filled in.

        Those are ``parts``, the table's parts, and any word of one of its lists.
        """
        written = table(self.code)

        def part(name: str) -> str:
            if name in parts:
                return parts[name]
            inner = written.get("parts", {}).get(name)
            return filled(inner) if inner else either(words(written["lists"][name]))

        def filled(pattern: str) -> str:
            return re.sub(r"\{([a-z]+)\}", lambda match: part(match[1]), pattern)

        return list(map(filled, written.get(field, ())))

    @cached_property
    def names(self) -> list[regex.Pattern[str]]:
        """Regular expressions of names, with the group "name"."""
        return [regex.compile(each) for each in self.patterns("names", places=either(self.places))]

    def is_function_word(self, word: str) -> bool:
        return word.lower().replace("’", "'") in self.function_words

    def tail(self, text: str) -> list[str]:
        """Return the words of a text; in a script without spaces its characters."""
        return text.split() if self.spaced else [c for c in text if not c.isspace()]


ENGLISH = Language("en", "English")
#: Supported languages by their code.
LANGUAGES = {
    each.code: each
    for each in (
        ENGLISH, Language("de", "German"), Language("fr", "French"), Language("es", "Spanish"),
        Language("zh", "Chinese"), Language("ja", "Japanese"),
    )
}  # fmt: skip


def language_named(code: str, option: str = "language") -> Language:
    """Return the language of a code (UserError: unsupported code)."""
    if code not in LANGUAGES:
        listed = ", ".join(f"{each.code} ({each.name})" for each in LANGUAGES.values())
        raise UserError(f"{option}={code} is not supported: choose {listed}", "unsupported")
    return LANGUAGES[code]


#: Number of characters read of a text.
_LOOK = 3000
#: Least number of words in Latin script that tell a language, and least number to call it unknown.
_FEW, _ENOUGH = 10, 40
#: Share of function words of a known language; in running text it is .3 to .5.
_LEAST = 0.18
#: Least share of the texts in one language.
_MOST = 0.9
_WORD = regex.compile(r"[\p{Latin}]+")


@cache
def _vocabularies() -> dict[str, frozenset[str]]:
    latin = {code: each.function_words for code, each in LANGUAGES.items() if each.spaced}
    return latin | {name: words(listed) for name, listed in table("common")["unsupported"].items()}


@lru_cache(maxsize=65536)
def _script(character: str) -> str:
    name = unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""
    return "KANA" if name in ("KATAKANA-HIRAGANA", "KATAKANA", "HIRAGANA") else name


def language_in(text: str) -> str:
    """Name the language of a text: a code, "Portuguese", "Cyrillic script", "unknown", or "" if unsure."""
    scripts = Counter(filter(None, map(_script, text[:_LOOK])))
    kana = scripts.pop("KANA", 0)
    scripts["CJK"] += kana
    (script, count), total = scripts.most_common(1)[0], scripts.total()
    if not total or (script == "CJK" and total < _FEW):
        return ""
    if script == "CJK":
        return "ja" if kana >= 0.1 * count else "zh"
    if script == "HANGUL":
        return "Korean"
    return _latin(text[:_LOOK]) if script == "LATIN" else f"{script.capitalize()} script"


def _latin(text: str) -> str:
    spelled = [word.lower() for word in _WORD.findall(text)]
    if len(spelled) < _FEW:
        return ""
    counts = Counter({n: sum(map(known.__contains__, spelled)) for n, known in _vocabularies().items()})
    best, count = counts.most_common(1)[0]
    if count / len(spelled) >= _LEAST:
        return best
    return "unknown" if len(spelled) >= _ENOUGH else ""


def detect(texts: Iterable[str]) -> Language:
    """Find the language of most texts and log it; English if they are too short to tell.

    Raises:
        UserError: a language that is not supported, or several languages.
    """
    counts = Counter(map(language_in, texts))
    total, unsure = counts.total(), counts.pop("", 0)
    if not counts:
        log.info("language: English (en), since the %d texts are too short to tell", unsure)
        return ENGLISH
    (best, count), known = counts.most_common(1)[0], total - unsure
    names = {code: each.name for code, each in LANGUAGES.items()}
    called = names | {"unknown": "no language that is known"}
    shown = ", ".join(f"{n} in {called.get(name, name)}" for name, n in counts.most_common(4))
    supported = sum(n for name, n in counts.items() if name in LANGUAGES)
    if supported <= (1 - _MOST) * known:
        remedy = f"labels are made of {', '.join(names.values())}; language=CODE reads them as one of these"
        reason = f"language=auto: of {total} texts {shown}, which is not supported"
        raise UserError(f"{reason}: {remedy}", "unsupported")
    if count < _MOST * known or best not in LANGUAGES:
        remedy = "give texts of one language, or language=CODE to read all of them as that"
        reason = f"language=auto: the texts are in several languages ({shown})"
        raise UserError(f"{reason}: {remedy}", "unsupported")
    log.info("language: %s (%s), found in %d of %d texts", LANGUAGES[best].name, best, count, total)
    return LANGUAGES[best]
