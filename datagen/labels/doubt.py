"""Doubtful comparisons of entities: different but possibly true, equal but possibly false."""

from __future__ import annotations

import re

from probers.data.articles.cuts import Cut
from probers.entities import Entity, Recognise, same_kind
from probers.equivalence import EntityMatcher, Match
from probers.equivalence.names import words
from probers.equivalence.numbers import read_number
from probers.equivalence.persons import DIRECTIONS
from probers.equivalence.units import same_unit
from probers.text import is_stop_word, split_sentences

#: Words that say nothing yet when a sentence begins with them.
_OPENING = frozenset(
    """a about after an and around as at before between both but by during early for from if in late mid of
    on over since that the then these this those through throughout to under until when where while
    with""".split()
)


_AS_OF = re.compile(r"\b[Aa]s of$")
_NOUN = re.compile(r"[\s-]([a-z]+)")


def doubt(
    cut: Cut, written: Entity, text: str, match: Match, recognise: Recognise, matcher: EntityMatcher
) -> Match:
    """The matcher's verdict, or "undecided" where what differs may be true or what is the same may not.

    Stage "type": a name, a time or a number in place of one of the other two ("during the | 1930s"
    for "Great Depression"). Stage "opening": nothing but a preposition and the like stands before it in
    its sentence, so that the model is free to say something else ("In | 2014, he ..."). Stage "order":
    the article has it later in the same sentence ("born in | Dublin" for "Ballinteer, Dublin").
    Stage "modifier": one word before a noun in place of a name that stands for itself ("by a | Finnish
    company" for "Acme"). Stage "region": the whole that the article names a part of by a direction
    ("in | Somerset" for "North Somerset"). Stage "counted": a number of something else, be it the same
    ("third | album" for "third wife") or another ("over | 100 years" for "30,000"). Stage "both": WordNet
    has the two as one, and the article speaks of both.

    Args:
        cut: where the article was cut.
        written: what the model wrote there.
        text: the continuation that it heads.
        match: the matcher's verdict.
        recognise: finds the entities of the article's sentence.
        matcher: compares them with ``written``.
    """
    article = " ".join(cut.article.sentences)
    if match.stage == "number" and cut.entity.type == written.type == "number":
        units = [
            number.unit if number else "" for number in map(read_number, (cut.entity.text, written.text))
        ]
        counted = [
            unit or _noun(*at)
            for unit, at in zip(units, ((article, cut.entity.end), (text, written.end)), strict=True)
        ]
        known = all(counted) or (match.verdict == "different" and any(units))
        if match.verdict != "undecided" and known and not same_unit(*counted):
            return Match("undecided", "counted", " / ".join(counted))
    if (
        match.stage == "wordnet"
        and match.verdict == "equivalent"
        and _names_both(article, cut.entity.text, written.text)
    ):
        return Match("undecided", "both", f"{cut.entity.text} / {written.text}")
    if match.verdict != "different":
        return match
    if match.stage != "date" and not same_kind(cut.entity.type, written.type):
        return Match("undecided", "type", f"{cut.entity.type} / {written.type}")
    modifies = "" if " " in written.text else _noun(text, written.end)
    if same_kind(written.type, "name") and modifies and not _noun(article, cut.entity.end):
        return Match("undecided", "modifier", f"{written.text} {modifies}")
    part, whole = words(cut.entity.text), words(written.text)
    if whole == part[1:] and part[0] in DIRECTIONS - {"new"}:
        return Match("undecided", "region", f"{written.text} / {cut.entity.text}")
    start, end = split_sentences(article)[cut.sentence]
    opening = article[start : cut.entity.start].split()
    if _OPENING.issuperset(word.lower() for word in opening) or _AS_OF.search(cut.before):
        return Match("undecided", "opening", " ".join([*opening[-3:], "|"]))
    for entity in recognise(article[start:end]):
        if start + entity.start > cut.entity.start:
            found = matcher.match(entity.text, written.text)
            if found.verdict == "equivalent":
                return Match("undecided", "order", f"{entity.text} after {cut.entity.text}")
    return match


def _names_both(article: str, a: str, b: str) -> bool:
    """Tell whether an article has both of two names as words of their own."""
    return all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", article) for name in (a, b))


def _noun(text: str, end: int) -> str:
    """The lower-case word with content behind what ends at ``end``, or ""."""
    found = _NOUN.match(text, end)
    return found.group(1) if found and not is_stop_word(found.group(1)) else ""
