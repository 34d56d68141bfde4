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
    """Map words to values, written "word|another:value" with spaces between groups."""
    groups = (group.rsplit(":", 1) for group in listed.split())
    return {word.replace("_", " "): value for names, value in groups for word in names.split("|")}


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


def _pattern(written: str) -> re.Pattern[str] | None:
    return re.compile(written) if written else None


#: Readers of the fields of a language's table, with the text read where one is missing.
_FIELDS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    **dict.fromkeys(("function_words", "titles", "abbreviations", "starters", "lone"), (words, "")),
    **dict.fromkeys(("plain", "places", "articles", "endings", "honorifics"), (words, "")),
    **dict.fromkeys(("numerals", "scales", "ordinals", "fractions", "rooms"), (numbers, "")),
    **dict.fromkeys(("links", "points", "of", "bare", "adds", "vague", "unread"), (words, "")),
    **dict.fromkeys(("ordinal_endings", "ranges", "before_times", "minus"), (words, "")),
    **dict.fromkeys(("bounds", "bounds_behind"), (pairs, "")),
    "units": (lambda listed: {name: unit.replace("_", " ") for name, unit in pairs(listed).items()}, ""),
    "reigns": (lambda listed: {name: int(year) for name, year in pairs(listed).items()}, ""),
    **dict.fromkeys(("closing", "opening", "sure", "announced"), (str, "")),
    **dict.fromkeys(("numbered", "goes_on", "tails"), (_pattern, "")),
    **dict.fromkeys(("works", "months", "dates"), (tuple, ())),
    "spaced": (bool, True), "elides": (bool, False), "capitals": (float, 0.0), "ordinal": (str, "(?!)"),
    **dict.fromkeys(("plural", "ordinal_sign", "before_christ", "after_christ"), (str, "")),
    "decimal": (str, ","), "thousands": (str, ".\u00a0\u202f '’"),
}  # fmt: skip


class Language:
    """One language, whose table is read when it is first needed; missing fields are not recognised in it.

    The rules of ``dates`` have the groups d, m, month, y, d2, m2, month2, y2, bc, century, decade and reign,
    "{month}" for any month, "{n}" for a number of at most two digits, "{bc}" and "{ad}" for the eras, and
    "{reign}" for any of ``reigns``.
    """

    code: str  # such as "de"
    name: str  # such as "German"
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
    dates: tuple[str, ...]  # regular expressions of times
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
        if field not in _FIELDS:
            raise AttributeError(f"a language has no {field}")
        read, default = _FIELDS[field]
        value = self.__dict__[field] = read(table(self.code).get(field, default))
        return value

    def __repr__(self) -> str:
        return f"Language({self.code!r})"

    @property
    def english(self) -> bool:
        """True if the rules for English are used instead of this table."""
        return self.code == "en"

    @cached_property
    def names(self) -> list[regex.Pattern[str]]:
        """Regular expressions of names, with the group "name"; they are filled in with ``parts``."""
        written = table(self.code)
        parts = {name: either(words(listed)) for name, listed in written.get("lists", {}).items()}
        parts["places"] = either(self.places)

        def filled(pattern: str) -> str:
            return re.sub(r"\{([a-z]+)\}", lambda match: parts[match[1]], pattern)

        for name, pattern in written.get("parts", {}).items():
            parts[name] = filled(pattern)
        return [regex.compile(filled(pattern)) for pattern in written.get("names", ())]

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
    return unicodedata.name(character, "").partition(" ")[0] if character.isalpha() else ""


def language_in(text: str) -> str:
    """Name the language of a text: a code, "Portuguese", "Cyrillic script", "unknown", or "" if unsure."""
    scripts = Counter(map(_script, text[:_LOOK]))
    for kana in ("KATAKANA-HIRAGANA", "KATAKANA", "HIRAGANA"):
        scripts["KANA"] += scripts.pop(kana, 0)
    scripts["CJK"] += scripts["KANA"]
    total = sum(scripts[name] for name in scripts if name not in ("", "KANA"))
    if not total:
        return ""
    script = max((name for name in scripts if name not in ("", "KANA")), key=lambda name: scripts[name])
    if script == "CJK":
        if total < _FEW:
            return ""
        return "ja" if scripts["KANA"] >= 0.1 * scripts["CJK"] else "zh"
    if script == "HANGUL":
        return "Korean"
    return _latin(text[:_LOOK]) if script == "LATIN" else f"{script.capitalize()} script"


def _latin(text: str) -> str:
    spelled = [word.lower() for word in _WORD.findall(text)]
    if len(spelled) < _FEW:
        return ""
    counts = {name: sum(map(known.__contains__, spelled)) for name, known in _vocabularies().items()}
    shares = {name: count / len(spelled) for name, count in counts.items()}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] >= _LEAST:
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
    shown = ", ".join(f"{n} {_shown(name)}" for name, n in counts.most_common(4))
    supported = sum(n for name, n in counts.items() if name in LANGUAGES)
    if supported <= (1 - _MOST) * known:
        listed = ", ".join(each.name for each in LANGUAGES.values())
        remedy = f"labels are made of {listed}; language=CODE reads them as one of these"
        reason = f"language=auto: of {total} texts {shown}, which is not supported"
        raise UserError(f"{reason}: {remedy}", "unsupported")
    if count < _MOST * known or best not in LANGUAGES:
        remedy = "give texts of one language, or language=CODE to read all of them as that"
        reason = f"language=auto: the texts are in several languages ({shown})"
        raise UserError(f"{reason}: {remedy}", "unsupported")
    log.info("language: %s (%s), found in %d of %d texts", LANGUAGES[best].name, best, count, total)
    return LANGUAGES[best]


def _shown(name: str) -> str:
    known = LANGUAGES[name].name if name in LANGUAGES else name
    return "in no language that is known" if name == "unknown" else f"in {known}"
