"""Recognition of entities by rules or by a spaCy pipeline, in texts and in texts being written."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..types import Span, UserError
from .by_table import find_by_table
from .english import find_dates, find_names, find_numbers, is_title
from .language import ENGLISH, LANGUAGES, Language, language_named
from .text import Cover, is_stop_word, split_sentences

log = logging.getLogger(__name__)

EntityType = Literal["name", "date", "year", "number", "work", "organisation", "place"]

#: Names, times and numbers: types of one kind can contradict each other.
_KINDS: dict[EntityType, str] = {"date": "time", "year": "time", "number": "number"}


def same_kind(a: EntityType, b: EntityType) -> bool:
    """Tell whether two types are both names, both times or both numbers."""
    return _KINDS.get(a, "name") == _KINDS.get(b, "name")


@dataclass(frozen=True, slots=True)
class Entity:
    """A span [start, end) of a text, with the text itself and its type."""

    start: int
    end: int
    text: str
    type: EntityType


#: Finds the entities of a text, from left to right.
Recognise = Callable[[str], list[Entity]]


_ORGANISATION, _PLACE, _FIRST_PLACE, _WORK_BEFORE, _OTHER_BEFORE = map(re.compile, ENGLISH.patterns("cues"))


def _kind_of_name(text: str, span: Span) -> EntityType:
    """Return the finest certain type; "name" when none is."""
    name = text[slice(*span)]
    if _WORK_BEFORE.search(text, max(0, span[0] - 12), span[0]):
        return "work"
    if _ORGANISATION.search(name):
        return "organisation"
    head = name.partition(" of ")[0]  # the head of "President of the United States" is no place
    return "place" if _PLACE.search(head) or _FIRST_PLACE.match(name) else "name"


_QUOTED = re.compile(r"[\"“]\s?([^\"“”\n]+?)\s?[\"”]")
_WORD = re.compile(r"[^\W_][\w’'.&-]*")


def _works(text: str) -> Iterator[Span]:
    """Find spans between double quotes that are written like titles, without the quotes."""
    for match in _QUOTED.finditer(text):
        inside = match.group(1).rstrip(",;. ")
        if is_title(_WORD.findall(inside), is_stop_word, longest=14, capitals=0.7):
            yield match.start(1), match.start(1) + len(inside)


def find_entities(
    text: str, *, fine: bool = False, language: Language = ENGLISH, names: bool = True
) -> list[Entity]:
    """Find the entities of a text from left to right, none overlapping another.

    Quoted titles come first, then dates, names and numbers; within each the longest span wins ("18 July 1995"
    is one date). With ``fine`` a cue can refine "name" to "work", "organisation" or "place". ``names=False``
    leaves out the names of a language other than English.
    """
    if not language.english:
        typed = find_by_table(text, language, names=names)
        kinds = {span: kind if fine or kind not in _FINER else "name" for span, kind in typed}
        return [Entity(start, end, text[start:end], kind) for (start, end), kind in sorted(kinds.items())]
    cover = Cover(len(text))
    types: dict[Span, EntityType] = {}
    for start, end in cover.take_longest(_works(text)):
        other = _OTHER_BEFORE.search(text, max(0, start - 30), start)  # a band, a nickname or a term
        types[start, end] = "work" if fine and not other else "name"
    dates = dict(find_dates(text))
    types |= {span: dates[span] for span in cover.take_longest(dates)}
    for span in cover.take_longest(find_names(text, cover)):
        types[span] = _kind_of_name(text, span) if fine else "name"
    types |= dict.fromkeys(cover.take_longest(find_numbers(text)), "number")
    return [Entity(start, end, text[start:end], kind) for (start, end), kind in sorted(types.items())]


#: Types that "name" covers if no finer ones are requested.
_FINER = ("work", "organisation", "place")
_NUMBERS = ("CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "TIME")
#: The finer types of spaCy's labels.
_FINE: dict[str, EntityType] = {
    "WORK_OF_ART": "work", "ORG": "organisation", "GPE": "place", "LOC": "place", "FAC": "place",
}  # fmt: skip


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    import spacy

    try:
        return spacy.load(name)
    except (OSError, AttributeError) as error:  # AttributeError: a package that is no pipeline
        reason = f"recogniser=spacy:{name}: no spaCy pipeline of that name is installed"
        remedy = f"python -m spacy download {name}, or recogniser=rules"
        raise UserError(f"{reason}: {remedy}", "unknown-choice") from error


def _kind(label: str, mention: str, fine: bool) -> EntityType:
    """Return the type that the rules would give."""
    if label == "DATE":
        return "year" if re.fullmatch(r"(?:1\d|20)\d\d", mention) else "date"
    if label in _NUMBERS:
        return "number"
    return _FINE.get(label, "name") if fine else "name"


#: Labels of names: those of OntoNotes (en, zh, ja), and of WikiNER (de, fr, es), which has no others.
_NAMED = frozenset("PERSON PER NORP FAC ORG GPE LOC PRODUCT EVENT WORK_OF_ART LAW LANGUAGE MISC".split())


def _trim_by_table(text: str, start: int, end: int, language: Language) -> tuple[int, int]:
    """Strip spaces, quotation marks and a leading article from a name's span."""
    while start < end and not text[start].isalnum():
        start += 1
    while start < end and not (text[end - 1].isalnum() or text[end - 1] in ".)）ー"):
        end -= 1
    article = re.match(r"(\w+)(?:\s|['’])\s?(?=\w)", text[start:end])
    return start + (article.end() if article and article[1] in language.articles else 0), end


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Trim a span like the rules: no leading article, quotes or final possessive."""
    inside = re.match(r"(?:[\"“'‘\s]|(?:[Tt]he|[Aa]n?)\s)*", text[start:end])
    start += inside.end() if inside else 0
    rest = re.search(r"(?:['’]s|[\"”\s])+$", text[start:end])
    return start, start + rest.start() if rest else end


@dataclass(slots=True)
class Recogniser:
    """Entities by the requested recogniser, which is logged once (UserError for an unknown one).

    ``kind`` is "rules", "auto" (the rules too) or "spacy:" with the name of an installed pipeline; ``name``
    is the one in use. "rules:de" are the rules of German, "rules" those of English; a pipeline has its own
    ``language``. If that is not English, rules find numbers, dates and quoted works in any case.
    ``fine`` tells "work", "organisation" and "place" from "name".
    """

    kind: str = "auto"
    fine: bool = False
    quiet: bool = False
    name: str = field(init=False)
    language: Language = field(init=False, default=ENGLISH)

    def __post_init__(self) -> None:
        method, _, pipeline = self.kind.partition(":")
        if method != "spacy" and pipeline in LANGUAGES:
            self.language, pipeline = LANGUAGES[pipeline], ""
        if method not in ("rules", "spacy", "auto") or (pipeline and method != "spacy"):
            remedy = "choose rules, auto or spacy:PIPELINE, as in spacy:en_core_web_sm"
            raise UserError(f"recogniser={self.kind} is unknown: {remedy}", "unknown-choice")
        if method == "spacy" and not pipeline:
            reason = "recogniser=spacy needs an English pipeline, as in recogniser=spacy:en_core_web_sm"
            remedy = "python -m spacy download en_core_web_sm, or recogniser=rules"
            raise UserError(f"{reason}: {remedy}", "missing-extra")
        if pipeline and (lang := _load(pipeline).lang) != "xx":  # several languages: taken as English
            self.language = language_named(lang, f"recogniser=spacy:{pipeline}: language")
        self.name = pipeline or "rules"
        if not self.quiet:
            of = "" if self.language.english else f" of {self.language.name}"
            log.info("entities: by %s", f"the NER of {pipeline}" if pipeline else f"rules{of}")

    def __call__(self, text: str) -> list[Entity]:
        if self.name == "rules":
            return find_entities(text, fine=self.fine, language=self.language)
        return self._by_pipeline(text) if self.language.english else self._by_both(text)

    def _by_both(self, text: str) -> list[Entity]:
        """Find names by the pipeline, all else by the table of its language."""
        cover = Cover(len(text))
        entities = find_entities(text, fine=self.fine, language=self.language, names=False)
        cover.take_longest((entity.start, entity.end) for entity in entities)
        for span in _load(self.name)(text).ents:
            start, end = _trim_by_table(text, span.start_char, span.end_char, self.language)
            adjective = span.label_ == "MISC" and not text[start : start + 1].isupper()  # "deutsche"
            if start < end and span.label_ in _NAMED and not adjective and cover.free((start, end)):
                entities.append(Entity(start, end, text[start:end], _kind(span.label_, "", self.fine)))
        return sorted(entities, key=lambda entity: entity.start)

    def _by_pipeline(self, text: str) -> list[Entity]:
        entities = []
        for span in _load(self.name)(text).ents:
            start, end = _trim(text, span.start_char, span.end_char)
            if mention := text[start:end]:
                entities.append(Entity(start, end, mention, _kind(span.label_, mention, self.fine)))
        return entities


def language_of(recognise: Recognise) -> Language:
    """Return the language of a recogniser; English if it has none."""
    language = getattr(getattr(recognise, "__wrapped__", recognise), "language", ENGLISH)
    return language if isinstance(language, Language) else ENGLISH


#: Largest number of characters before an entity at the head of a text: "the ".
HEAD = 5
#: Ends of a prompt before the start of a text: "Answer:", the line break or mark of a chat template.
_BEGINS = (":", "\n", ">", "]")
_STOP = re.compile(r"[.!?]")


@dataclass(frozen=True, slots=True)
class WrittenEntity:
    """An entity of a written text: ``tokens`` share a character with it.

    ``score`` is that of the position that predicted the first of them, before any of the entity was written.
    """

    entity: Entity
    tokens: tuple[int, ...]
    score: float


def _lead(text: str) -> str:
    """Make a lower-case word to put before a text, so that its first word opens no sentence."""
    return "x" if text[:1].isspace() else "x "


def head_entity(text: str, recognise: Recognise) -> Entity | None:
    """Find the entity at the head of a continuation, with no end of a sentence before it."""
    before = _lead(text)
    if not (entities := recognise(before + text)):
        return None
    start, end = entities[0].start - len(before), entities[0].end - len(before)
    head = HEAD if language_of(recognise).spaced else 1  # an opening quotation mark
    at_head = 0 <= start <= head and not _STOP.search(text, 0, start)
    return replace(entities[0], start=start, end=end) if at_head else None


def _breaks_off(prompt: str, language: Language) -> bool:
    """Tell whether a prompt ends within a sentence, so that the text continues it."""
    ends = prompt.rstrip(" \t")
    begins = not ends or ends.endswith(_BEGINS)
    return not begins and split_sentences(f"{ends} X", language)[-1][0] < len(ends)


def tokens_of(offsets: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """List the tokens that share a character with [start, end) of their text."""
    return [i for i, (a, b) in enumerate(offsets) if a < end and b > start]


def written_entities(
    text: str, recognise: Recognise, *, prompt: str = "", accepted: str = "", openings: bool = False
) -> list[Entity]:
    """Find the entities that begin in a text written after ``prompt``, from left to right.

    ``accepted`` is the part of the same text at the end of the prompt. ``openings`` keeps entities at the
    start of a sentence, which labels leave out (:func:`probers.data.articles.cuts.cut_article`).
    """
    language = language_of(recognise)
    before = accepted if accepted.strip() else _lead(text) if _breaks_off(prompt, language) else ""
    whole = before + text
    left_out = set() if openings else {start for start, _ in split_sentences(whole, language)}
    return [
        replace(e, start=e.start - len(before), end=e.end - len(before))
        for e in recognise(whole)
        if e.start >= len(before) and e.start not in left_out
    ]


def with_scores(
    entities: Sequence[Entity], offsets: Sequence[tuple[int, int]], scores: Sequence[float] | np.ndarray
) -> list[WrittenEntity]:
    """Give each entity of a text the score of the position that predicted its first token.

    The n tokens have ``offsets`` [start, end); ``scores`` (n,) are those of the position before each token.
    """
    written = [(entity, tuple(tokens_of(offsets, entity.start, entity.end))) for entity in entities]
    return [WrittenEntity(entity, tokens, float(scores[tokens[0]])) for entity, tokens in written if tokens]
