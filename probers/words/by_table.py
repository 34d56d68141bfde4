"""Entities of a language other than English, by its table: quoted works, dates, names and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import regex

from ..types import Span
from .english import is_title
from .language import Language
from .text import Cover, split_sentences
from .values import find_moments, find_values

#: Largest number of words in a title, and of characters in a script without spaces.
_LONGEST = (12, 20)
_INNER = regex.compile(r"[.;:!?…]\s|[。！？；，]|[.;]$")
_WORD = regex.compile(r"[\p{L}\d][\p{L}\d'’-]*")
#: Words before or after quoted speech, thought or meaning, which is no title.
_SAYING = regex.compile(
    r"[:：]\s*$|(?:sog\.|sogenannten?|dit|dijo|appelée?|llamad[ao]|说|說|道|称为|稱為|叫做?|意思是)\s?[,，]?\s*$"
)
_SAID = regex.compile(r"\s?(?:と(?:言|述|語|呼|い|答|考|思|は|の)|という|って|的意思)")
#: Characters before the first word of a sentence, and before that of speech within one.
_OPENING = regex.compile(r"[\s„«»“\"(¿¡—–-]*")
_SPEECH = regex.compile(r"[:.!?…]\s?[„«“\"]\s?")
_ELIDED = regex.compile(r"(?:Qu|[LDJNSC])['’](?=\p{Lu})")
#: Types of the entities of a table.
Kind = Literal["work", "date", "year", "name", "place", "number"]


def find_by_table(text: str, language: Language, *, names: bool = True) -> Iterator[tuple[Span, Kind]]:
    """Find spans with their type, none overlapping another; without ``names`` works, times and numbers."""
    cover = Cover(len(text))
    for span in cover.take_longest(_works(text, language)):
        yield span, "work"
    moments = {(m.start, m.end): m for m in find_moments(text, language)}
    for span in cover.take_longest(moments):
        yield span, "year" if moments[span].is_year else "date"
    for span in cover.take_longest(_names(text, language, cover) if names else ()):
        yield span, "place" if text[slice(*span)] in language.places else "name"
    for span in cover.take_longest((value.start, value.end) for value in find_values(text, language)):
        yield span, "number"


def _works(text: str, language: Language) -> Iterator[Span]:
    for opening, closing in map(tuple, language.works):
        within = regex.escape(opening + closing)
        inner = rf"{regex.escape(opening)}\s?([^{within}\n]+?)\s?{regex.escape(closing)}"
        for match in regex.finditer(inner, text):
            start, end = match.span(1)
            if opening in language.sure or _is_title(text, start, end, language):
                yield start, end


def _is_title(text: str, start: int, end: int, language: Language) -> bool:
    inside, before = text[start:end], text[max(0, start - 30) : start - 1].rstrip("« \u00a0\u202f")
    if _INNER.search(inside) or _SAYING.search(before) or _SAID.match(text, end + 1):
        return False
    if language.announced and not regex.search(rf"(?:{language.announced})$", before):
        return False
    if not language.spaced:
        return len(inside) <= _LONGEST[1]
    words, is_small = _WORD.findall(inside), language.is_function_word
    return is_title(words, is_small, longest=_LONGEST[0], capitals=language.capitals)


def _names(text: str, language: Language, cover: Cover) -> Iterator[Span]:
    """Find names that are certain; the capital of a sentence's first word alone makes none."""
    starts = [start for start, _ in split_sentences(text, language)]
    # After a quotation mark or bracket the first word of a sentence also has a capital.
    opens = {match.end() for start in starts for match in [_OPENING.match(text, start)] if match}
    opens |= {match.end() for match in _SPEECH.finditer(text)}
    inside = {m.group() for m in _WORD.finditer(text) if m.group()[0].isupper() and m.start() not in opens}
    for pattern in language.names:
        for match in pattern.finditer(text):
            start, end = match.span("name")
            if "general" in pattern.groupindex:
                start = _behind_opener(text, start, end, language, opens=start in opens, inside=inside)
            elif "inside" in pattern.groupindex and start in opens:
                continue
            name = text[start:end]
            if start < end and name not in language.plain and len(name) > 1 and cover.free((start, end)):
                yield start, end


def _behind_opener(
    text: str, start: int, end: int, language: Language, *, opens: bool, inside: set[str]
) -> int:
    """Return where a name of capitalised words begins, after words whose capital is the sentence's."""
    while start < end:
        first = _WORD.match(text, start, end)
        word = first.group() if first else ""
        after = regex.compile(r"[\s.]*(?:d['’]|\p{Ll}+\s)*").match(text, first.end() if first else start, end)
        following = after.end() if after else end
        function = language.is_function_word(word)
        titled = word.lower() in language.titles and text[first.end() if first else end :][:1] == "."
        if following < end and (titled or (word in language.plain and not word.isupper())):
            start, opens = following, False  # "M. Dupont"
        elif opens and ((elided := _ELIDED.match(text, start, end)) or function):
            start, opens = elided.end() if elided else following, False
        elif opens and word not in inside and not text[first.end() : first.end() + 2].strip().isupper():
            return end  # a lone word, or one before "de l'Aéropostale"
        else:
            return end if function and following >= end and not opens else start
    return end
