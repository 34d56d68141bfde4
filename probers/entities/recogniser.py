"""Entities of a text: by rules alone, or by the NER of a spaCy pipeline."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from ..types import UserError
from .base import Cover, Entity, EntityType, Span, find_works, kind_of, kind_of_quoted
from .names import find_names
from .values import find_dates, find_numbers

log = logging.getLogger(__name__)


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
    except (OSError, AttributeError) as error:  # the latter: a package that is no pipeline
        raise UserError(
            f"recogniser=spacy:{name}: no spaCy pipeline of that name is installed: "
            f"python -m spacy download {name}, or recogniser=rules",
            "unknown-choice",
        ) from error


def find_entities_spacy(text: str, *, pipeline: str, fine: bool = False) -> list[Entity]:
    """Entities of a text by spaCy's NER, from left to right, with the types of the rules.

    Args:
        text: natural text.
        pipeline: name of an installed pipeline.
        fine: also the types "work", "organisation" and "place"; else these are "name".

    Raises:
        UserError: no such pipeline.
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
    return _FINE.get(label, "name") if fine else "name"


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """The span as the rules would give it: no leading article, quotes or final possessive."""
    inside = re.match(r"(?:[\"“'‘\s]|(?:[Tt]he|[Aa]n?)\s)*", text[start:end])
    start += inside.end() if inside else 0
    rest = re.search(r"(?:['’]s|[\"”\s])+$", text[start:end])
    return start, start + rest.start() if rest else end


@dataclass(slots=True)
class Recogniser:
    """Finds entities by the recogniser asked for and says once which one that is.

    A spaCy pipeline is used only when it is named: that a package of some pipeline's name is
    installed does not say that it is the pipeline.

    Attributes:
        kind: "rules", "auto" (the rules too) or "spacy:" with the name of an installed pipeline.
        fine: also the types "work", "organisation" and "place"; else these are "name".
        quiet: do not print the note.
        name: what is used: "rules" or the name of the pipeline.

    Raises:
        UserError: an unknown kind, or "spacy" without a pipeline or with one that is not installed.
    """

    kind: str = "auto"
    fine: bool = False
    quiet: bool = False
    name: str = field(init=False)

    def __post_init__(self) -> None:
        method, _, pipeline = self.kind.partition(":")
        if method not in ("rules", "spacy", "auto") or (pipeline and method != "spacy"):
            raise UserError(
                f"recogniser={self.kind} is unknown: choose rules, spacy or auto, spacy with the name of a "
                "pipeline as in spacy:en_core_web_sm",
                "unknown-choice",
            )
        if method == "spacy":
            if not pipeline:
                raise UserError(
                    "recogniser=spacy needs an English spaCy pipeline by its name, as in "
                    "recogniser=spacy:en_core_web_sm after python -m spacy download en_core_web_sm, "
                    "or recogniser=rules",
                    "missing-extra",
                )
            _load(pipeline)
        self.name = pipeline or "rules"
        if not self.quiet:
            log.info("entities: by %s", f"the NER of {pipeline}" if pipeline else "rules")

    def __call__(self, text: str) -> list[Entity]:
        """Entities of a text from left to right, none overlapping another."""
        if self.name == "rules":
            return find_entities(text, fine=self.fine)
        return find_entities_spacy(text, fine=self.fine, pipeline=self.name)
