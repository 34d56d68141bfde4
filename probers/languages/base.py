"""A language as one table of its sentences, numbers, dates, quotations and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import regex

from ..text import ENGLISH as ENGLISH_BORDERS
from ..text import Borders

#: A name in Latin letters, within a script without spaces.
LATIN_NAME = r"(?<![A-Za-z\d])(?P<name>\p{Lu}[\p{Latin}]*(?:[ -]\p{Lu}[\p{Latin}]*)*)(?![A-Za-z\d])"


def words(listed: str) -> frozenset[str]:
    """Split a list at its spaces."""
    return frozenset(listed.split())


def values(listed: str, first: int = 1, step: int = 1) -> dict[str, float]:
    """Map number words to values, ascending from ``first``; variants of one are separated by "|"."""
    return {
        word.replace("_", " "): first + step * place
        for place, group in enumerate(listed.split())
        for word in group.split("|")
    }


def units(listed: str) -> dict[str, str]:
    """Map words of units, "wort|worte:unit" separated by spaces, to their English unit."""
    pairs = (group.rsplit(":", 1) for group in listed.split())
    return {word.replace("_", " "): unit for group, unit in pairs for word in group.split("|")}


def borders(
    *, titles: str, short: str, starters: str, closing: str = "", opening: str = "", numbered: str = "",
    goes_on: str = "",
) -> Borders:  # fmt: skip
    """Make the sentence borders of a language; ``closing`` and ``opening`` are its quotation marks."""
    closers = rf"(?:\s?[{closing}])?" if closing else ""
    end = rf"""[.!?…]+["'”’)\]{closing}]*{closers}(?=\s|$)|[。！？]+["'”’)\]」』）】]*|\n+"""
    return Borders(
        words(titles), words(short), words(starters), re.compile(end),
        re.compile(rf"""[\s"'“‘(\[¿¡{opening}]*(\w*)"""), re.compile(numbered) if numbered else None,
        re.compile(goes_on) if goes_on else None,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """One language; empty fields are not recognised in it.

    Attributes:
        code, name: such as "de" and "German".
        function_words: frequent lower-case words that are no names; they identify a text's language.
        borders: rules for the ends of sentences.
        spaced: words are written with spaces between them.
        works: opening and closing marks around titles of works; those of ``sure`` hold nothing else.
        announced: regular expression of the words before other marks around a title; "" is anything.
        capitals: share of the content words of a title that begin with a capital.
        months: regular expressions of the twelve months.
        dates: regular expressions with the groups d, m, month, y, d2, m2, month2, y2, bc, century, decade and
            reign, and "{month}" for any month, "{n}" for a number of at most two digits.
        reigns: names of eras with the year before their first.
        decimal, thousands: characters within numerals.
        numerals: number words below 1,000; ``scales`` are those that multiply the number before them.
        joins: words allowed between two number words, and before a scale.
        lone: number words that alone may mean something else.
        ordinals, ordinal: words of ordinal numbers, and the endings of those in digits.
        units: words of units, with the English unit that each means.
        names: regular expressions (of the module regex) with the group "name".
        plain: capitalised or quoted words that are no names.
        places: words that certainly mean a place.
        articles: lower-case words that may stand before a name.
        endings: inflectional endings of the words of a name.
    """

    code: str
    name: str
    function_words: frozenset[str]
    borders: Borders = ENGLISH_BORDERS
    spaced: bool = True
    works: tuple[str, ...] = ()
    sure: str = ""
    announced: str = ""
    capitals: float = 0.0
    months: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    reigns: Mapping[str, int] = field(default_factory=dict)
    decimal: str = ","
    thousands: str = ".\u00a0\u202f '’"
    numerals: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    joins: tuple[str, str] = ("", "")
    lone: frozenset[str] = frozenset()
    ordinals: Mapping[str, float] = field(default_factory=dict)
    ordinal: str = r"(?!)"
    units: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    plain: frozenset[str] = frozenset()
    places: frozenset[str] = frozenset()
    articles: frozenset[str] = frozenset()
    endings: frozenset[str] = frozenset()

    @property
    def english(self) -> bool:
        """True if the rules for English are used instead of this table."""
        return self.code == "en"

    def is_function_word(self, word: str) -> bool:
        return word.lower().replace("’", "'") in self.function_words

    def tail(self, text: str) -> list[str]:
        """Return the words of a text; in a script without spaces its characters."""
        return text.split() if self.spaced else [c for c in text if not c.isspace()]


def either(listed: Iterable[str]) -> str:
    """Build a regular expression for any of some words, longer ones first."""
    return "|".join(regex.escape(word) for word in sorted(listed, key=lambda word: (-len(word), word)))
