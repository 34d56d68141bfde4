"""Facts that a text states of its subject in some fixed forms, and the kind of thing that it is.

Only relations with one value each are read, so that another value contradicts. A person born in 1950 was not
born in 1931, but a player of one club may have played for another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise, product
from typing import Any, NamedTuple

from probers.words import Entity
from probers.words.text import is_stop_word, split_sentences
from probers.words.wordnet import find_wordnet, open_wordnet

#: Verbs of events that happen once, with the relation that they state of a time or place.
_ONCE = {
    name: re.compile(rf"\b(?:{verbs})\b")
    for name, verbs in {
        "born": "born",
        "died": "died|dies",
        "released": "released|premiered|issued|first aired|first published",
        "founded": "founded|established|formed|incorporated",
        "opened": "opened|inaugurated",
        "built": "built|constructed|erected",
        "happened": "took place|held|occurred|celebrated|contested|fought|began",
        "set": "set",
        "based": "based|headquartered|located|situated",
        "signed": "signed|ratified",
    }.items()
}
#: Relations with one place; a film may open in several.
_ONE_PLACE = ("born", "died", "happened", "set", "based", "signed")
#: Verbs of makers: "written and directed by".
_MAKING = (
    "directed|written|produced|composed|created|founded|designed|developed|published|painted|invented|"
    "illustrated|authored|co-written|recorded"
)
_BY = re.compile(rf"\b((?:{_MAKING})(?:(?:,\s|,?\sand\s)(?:{_MAKING}))*)\sby\b")
#: Other words before a row of names, and the relation of the subject to these names.
_NAMED = {
    "starring": re.compile(r"\b(?:starring|stars)\b"),
    "work by": re.compile(
        r"\b(?:song|single|album|EP|novel|book|painting|poem|play|opera|film|series|composition)\sby\b"
    ),
}
#: Words that may stand between a verb and its time or place, other entities aside.
_LINK = re.compile(
    r"(?:[\s,(]|\b(?:on|in|at|from|near|around|about|circa|c|early|late|the|city|town|village|of|and|as|year|month|"
    r"raised|worldwide)\b)*"
)
#: Words that may stand before the first name of a row, and between names.
_BEFORE_ROW = re.compile(r"\s*(?:[a-z-]+\s){0,4}")
_WITHIN_ROW = re.compile(r"(?:[\s,&]|\band\b)*")
_COPULA = re.compile(r"\b(?:is|was|are|were)\s(?:an?|the|one of the)\s")
#: End of the noun phrase after "is a".
_PHRASE_END = re.compile(
    r"[.;:,(]|\b(?:who|that|which|where|when|by|for|from|with|and|about|based|located|to|of|in|at|on)\b"
)
_PLACED = re.compile(r"\b(?:in|located in|situated in|of)\s(?:[a-z-]+\s){0,3}$")
_LIFE = re.compile(r"\(\s?(?:[^()\d]*?)$")
#: Words before a verb that may give it another subject.
_OTHERS = re.compile(
    r"\b(?:his|her|their|whose|which|who|that|brother|sister|father|mother|son|daughter|wife|husband|sequel|"
    r"original|adaptation)\b",
    re.IGNORECASE,
)
_PRONOUNS = frozenset("he she it they this".split())
_TIMED = ("date", "year")
#: Ends of the names of relations to a place.
IN_COUNTRY, IN_PLACE = "in the country", "in"


class Fact(NamedTuple):
    """Relation of the text's subject to an entity of the text; countries have their own name."""

    relation: str
    entity: Entity
    value: str


def facts(text: str, entities: Sequence[Entity], subject: str) -> Iterator[Fact]:
    """Find the facts that a text states of its subject, in reading order; none of anybody else."""
    for number, (start, end) in enumerate(split_sentences(text)):
        inside = [e for e in entities if start <= e.start and e.end <= end]
        yield from _of_sentence(text, start, end, inside, subject, opens=number == 0)


def _of_sentence(
    text: str, start: int, end: int, inside: Sequence[Entity], subject: str, *, opens: bool
) -> Iterator[Fact]:
    if opens:
        yield from _life(text, inside)
    for relation, cue in _ONCE.items():
        for match in cue.finditer(text, start, end):
            if _is_of_subject(text, start, match.start(), inside, subject):
                for entity in inside:
                    if entity.start >= match.end() and _linked(text, match.end(), entity, inside):
                        yield from _when_or_where(relation, entity)
    for name, cue in {"": _BY, **_NAMED}.items():
        for match in cue.finditer(text, start, end):
            if _is_of_subject(text, start, match.start(), inside, subject, makers=True):
                relations = [name] if name else [f"{verb} by" for verb in re.findall(_MAKING, match[1])]
                names = list(_row(text, match.end(), inside))
                yield from (Fact(relation, e, e.text) for relation in relations for e in names)
    copula = _COPULA.search(text, start, end)
    named = copula and _words(subject) & _words(text[start : copula.start()])
    if copula and (named or opens) and _is_of_subject(text, start, copula.start(), inside, subject):
        yield from _copula(text, copula.end(), end, inside)


def _when_or_where(relation: str, entity: Entity) -> Iterator[Fact]:
    if entity.type in _TIMED:
        yield Fact(relation, entity, entity.text)
    elif relation in _ONE_PLACE and (country := country_of(entity.text)):
        yield Fact(f"{relation} {IN_COUNTRY}", entity, country)
    elif relation in _ONE_PLACE and entity.type in ("name", "place"):
        yield Fact(f"{relation} {IN_PLACE}", entity, entity.text)


def _life(text: str, inside: Sequence[Entity]) -> Iterator[Fact]:
    """Find the dates of "Name (1815 – 1852)"."""
    for first, last in pairwise(e for e in inside if e.type in _TIMED):
        dash = re.fullmatch(r"\s?[–—-]\s?", text[first.end : last.start])
        closed = text[last.end :].lstrip().startswith(")")
        if dash and closed and _LIFE.search(text[: first.start]):
            yield Fact("born", first, first.text)
            yield Fact("died", last, last.text)
            return


def _is_of_subject(
    text: str, start: int, cue: int, inside: Sequence[Entity], subject: str, *, makers: bool = False
) -> bool:
    """Tell whether the words before a verb name the subject, by name, pronoun or nothing, and nobody else.

    With ``makers`` other names may stand before: "is a film directed by John Hill and starring ..".
    """
    lead = text[start:cue]
    if _OTHERS.search(lead):
        return False
    if makers and (copula := _COPULA.search(text, start, cue)):
        cue = copula.start()
        lead = text[start:cue]
    known = _words(subject)
    things = [e for e in inside if e.end <= cue and e.type not in (*_TIMED, "number")]
    names = [e for e in things if not country_of(e.text)]
    if any(not known & _words(e.text) for e in names):
        return False
    first = next(iter(lead.split()), "The")
    named = bool(names) or bool(known & _words(lead))
    return named or first == "The" or first.lower().strip(",") in _PRONOUNS


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"[^\W_]+", text.lower()) if not is_stop_word(word)}


def _linked(text: str, cue: int, entity: Entity, inside: Sequence[Entity]) -> bool:
    between = [other for other in inside if cue <= other.start < entity.start]
    ends, starts = [cue, *(e.end for e in between)], [*(e.start for e in between), entity.start]
    return bool(_LINK.fullmatch("".join(text[a:b] for a, b in zip(ends, starts, strict=True))))


def _row(text: str, place: int, inside: Sequence[Entity]) -> Iterator[Entity]:
    """Yield the names in a row from ``place`` on; a nationality and some words may describe the first."""
    gap = _BEFORE_ROW
    for entity in inside:
        if entity.start < place:
            continue
        if not gap.fullmatch(text[place : entity.start]) or entity.type in (*_TIMED, "number"):
            return
        place = entity.end
        if not country_of(entity.text):
            gap = _WITHIN_ROW
            yield entity


def _copula(text: str, place: int, end: int, inside: Sequence[Entity]) -> Iterator[Fact]:
    """Find nationality and year of "is a 1994 American film", and the country of "is a village in Peru"."""
    phrase = _PHRASE_END.search(text, place, end)
    stop = phrase.start() if phrase else end
    for entity in (entity for entity in inside if entity.start >= place):
        country = country_of(entity.text)
        placed = _PLACED.search(text, place, entity.start)
        if entity.end <= stop and not placed:
            if country:
                yield Fact("country", entity, country)
            elif entity.type == "year":
                yield Fact("released", entity, entity.text)
        elif country:
            between = text[place : entity.start]
            clause = re.search(r"[.;:(]|\b(?:who|that|which|by|for)\b", between)
            if (placed and not clause) or (re.search(r",\s$", between) and "who" not in between):
                yield Fact("country", entity, country)


@cache
def _countries() -> dict[str, str]:
    lines = (resources.files("probers.datagen.judges") / "countries.txt").read_text("utf-8").splitlines()
    return {name.strip().lower(): line.split(",")[0] for line in lines for name in line.split(",")}


def country_of(name: str) -> str:
    """Find the country of its name, short form or adjective ("Welsh" is Wales); "" for anything else."""
    return _countries().get(re.sub(r"^the\s", "", name.strip().lower()), "")


_CALLS = re.compile(r"\b(?:is|was|are|were)\s(?:an?|the|one\sof\sthe|one\sof)\s|\s[–—-]\san?\s")
#: End of the noun phrase after "is a".
_END = re.compile(
    r"[.;:,()\"]|\b(?:who|that|which|where|when|by|for|from|with|about|in|at|on|of|to|as|between|during|"
    r"whose|known|called|named|used|set|run|located|based)\b"
)
#: Nouns that tell no kind; the noun after "of" does.
_VAGUE = frozenset(
    "form type kind part member one name series set group example piece term variety style work person "
    "figure individual place way collection combination concept former list case classic masterpiece staple "
    "tale treasure icon matter drama comedy thriller franchise conglomerate story narrative stretch "
    "reference area region artist".split()
)
#: WordNet's classes of things; other nouns ("aspect", "journey") do not distinguish things.
_THINGS = frozenset(
    "noun.person noun.artifact noun.animal noun.plant noun.food noun.location noun.group noun.communication "
    "noun.object noun.substance".split()
)
#: Classes of places that a text may exchange: a bay and a region, a country and a continent.
_PLACES = frozenset(("noun.location", "noun.object"))
#: Similarity (Wu and Palmer 1994) from which two nouns may name one thing.
_ALIKE = 0.65
_SENSES = 3
_SENTENCES = 2
#: Letters of a noun that its other forms share.
_STEM = 5


def another_kind(answer: str, article: str, subject: str) -> str:
    """Tell two kinds apart that cannot be one thing, as "coach / cosmologist"; "" if they may be one.

    The answer's kind is neither named in the article nor like any noun that the article uses for the kind of
    its subject. Without WordNet's files no kinds are known.
    """
    if (folder := find_wordnet()) is None:
        return ""
    nouns = _nouns(answer, subject, folder)
    # The kind in "Tangled Lives (1910 film)".
    named = [w for w in _long_words(subject.partition("(")[2]) if _senses(w, folder)]
    known = [*_nouns(article, subject, folder), *named]
    if not nouns or not known or not any(s.lexname() in _THINGS for s in _senses(nouns[0], folder)[:1]):
        return ""
    text = article.lower()
    if any(noun[:_STEM].lower() in text or _alike(noun, one, folder) for noun in nouns for one in known):
        return ""
    return f"{known[0]} / {nouns[0]}"


def _nouns(text: str, subject: str, folder: str) -> list[str]:
    """List the nouns of the first phrase "the subject is a ..", the head first; [] if none tells a kind."""
    known = {word for word in map(str.lower, _long_words(subject)) if not is_stop_word(word)}
    for start, end in split_sentences(text)[:_SENTENCES]:
        copula = _CALLS.search(text, start, end)
        if copula is None or not known & set(map(str.lower, _long_words(text[start : copula.start()]))):
            continue
        for phrase in _phrases(text, copula.end(), end):
            words = [w for w in _long_words(phrase) if w[0].islower() and not w.endswith(("ed", "ing"))]
            if not words or not _is_noun(words[-1], folder):
                break
            if words[-1] not in _VAGUE:
                return [w for w in reversed(words) if _is_noun(w, folder)]
    return []


def _phrases(text: str, place: int, end: int) -> Iterator[str]:
    """Yield the noun phrase that begins at ``place``, and those after each "of" that follows."""
    while place < end:
        stop = _END.search(text, place, end)
        yield text[place : stop.start() if stop else end]
        if stop is None or stop.group() != "of":
            return
        place = stop.end()


def _long_words(phrase: str) -> list[str]:
    return re.findall(r"[^\W\d_][^\W\d_-]{2,}", phrase)


def _is_noun(word: str, folder: str) -> bool:
    """Tell whether a word is more often a noun than an adjective."""
    nouns = _senses(word, folder)
    return bool(nouns) and len(open_wordnet(folder).synsets(word.lower(), pos="a")) <= len(nouns)


@lru_cache(maxsize=4096)
def _senses(noun: str, folder: str) -> list[Any]:
    return open_wordnet(folder).synsets(noun.lower(), pos="n")[:_SENSES]  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _alike(a: str, b: str, folder: str) -> bool:
    nouns = _senses(a, folder), _senses(b, folder)
    places = all(any(sense.lexname() in _PLACES for sense in senses[:2]) for senses in nouns)
    return places or any((x.wup_similarity(y) or 0) >= _ALIKE for x, y in product(*nouns))
