"""Entities of a text: by rules alone, or by the NER of a spaCy pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

from probers.types import UserError

from .base import Cover, Entity, EntityType, Span, find_works, kind_of, kind_of_quoted
from .names import find_names
from .values import find_dates, find_numbers


def find_entities(text: str, *, fine: bool = False) -> list[Entity]:
    """Entities of a text from left to right, none overlapping another.

    Quoted titles come first, then dates, names and numbers; within each the longest
    span wins, so that "18 July 1995" is one date and not a number, a name and a year.

    Args:
        text: natural text.
        fine: also the types "work", "organisation" and "place" where a cue makes them
            sure; else these are "name".
    """
    cover = Cover(len(text))
    found: dict[Span, EntityType] = {}
    for span in cover.take_longest(find_works(text)):
        found[span] = kind_of_quoted(text, span) if fine else "name"
    dates = dict(find_dates(text))
    for span in cover.take_longest(dates):
        found[span] = dates[span]
    for span in cover.take_longest(find_names(text, cover)):
        found[span] = kind_of(text, span) if fine else "name"
    for span in cover.take_longest(find_numbers(text)):
        found[span] = "number"
    return [Entity(start, end, text[start:end], kind) for (start, end), kind in sorted(found.items())]


#: Pipelines looked for, the best first.
PIPELINES = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
_PLACES = ("GPE", "LOC", "FAC")
_NUMBERS = ("CARDINAL", "ORDINAL", "QUANTITY", "PERCENT", "MONEY", "TIME")


def installed_pipeline() -> str | None:
    """The name of the best installed English pipeline, or None."""
    if find_spec("spacy") is None:
        return None
    return next((name for name in PIPELINES if find_spec(name) is not None), None)


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    import spacy

    return spacy.load(name)


def find_entities_spacy(text: str, *, pipeline: str, fine: bool = False) -> list[Entity]:
    """Entities of a text by spaCy's NER, from left to right, with the types of the rules.

    Args:
        text: natural text.
        pipeline: name of an installed pipeline, see :func:`installed_pipeline`.
        fine: also the types "work", "organisation" and "place"; else these are "name".
    """
    entities = []
    for found in _load(pipeline)(text).ents:
        start, end = _trim(text, found.start_char, found.end_char)
        if start < end:
            entities.append(Entity(start, end, text[start:end], _kind(found.label_, text[start:end], fine)))
    return entities


def _kind(label: str, mention: str, fine: bool) -> EntityType:
    if label == "DATE":
        return "year" if re.fullmatch(r"(?:1\d|20)\d\d", mention) else "date"
    if label in _NUMBERS:
        return "number"
    if fine and label == "WORK_OF_ART":
        return "work"
    if fine and label == "ORG":
        return "organisation"
    if fine and label in _PLACES:
        return "place"
    return "name"


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span as the rules would give it: no leading article, quotes or final possessive."""
    inside = re.match(r"(?:[\"“'‘\s]|(?:[Tt]he|[Aa]n?)\s)*", text[start:end])
    start += inside.end() if inside else 0
    rest = re.search(r"(?:['’]s|[\"”\s])+$", text[start:end])
    return start, start + rest.start() if rest else end


Kind = Literal["rules", "spacy", "auto"]


@dataclass(slots=True)
class Recogniser:
    """Finds entities by the recogniser asked for and says once which one that is.

    Attributes:
        kind: "rules", "spacy", or "auto": spaCy where an English pipeline is installed.
        fine: also the types "work", "organisation" and "place"; else these are "name".
        quiet: do not print the note.
        name: what is used: "rules" or the name of the pipeline.

    Raises:
        UserError: an unknown kind, or "spacy" without an English pipeline.
    """

    kind: Kind = "auto"
    fine: bool = False
    quiet: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"recogniser={self.kind} is unknown: choose rules, spacy or auto")
        pipeline = None if self.kind == "rules" else installed_pipeline()
        if self.kind == "spacy" and pipeline is None:
            raise UserError(
                "recogniser=spacy needs an English spaCy pipeline and none is installed: "
                "python -m spacy download en_core_web_sm, or recogniser=rules"
            )
        self.name = pipeline or "rules"
        if not self.quiet:
            reason = (
                " (no English spaCy pipeline is installed)" if self.kind == "auto" and not pipeline else ""
            )
            print(f"entities: by {'rules' if pipeline is None else 'the NER of ' + pipeline}{reason}")

    def __call__(self, text: str) -> list[Entity]:
        """Entities of a text from left to right, none overlapping another."""
        if self.name == "rules":
            return find_entities(text, fine=self.fine)
        return find_entities_spacy(text, fine=self.fine, pipeline=self.name)
