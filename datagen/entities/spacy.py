"""Entities by the NER of an installed English spaCy pipeline."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from .base import Entity, EntityType

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
