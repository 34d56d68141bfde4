"""Entity spans by stand-alone rules or by spaCy's NER, of finished texts and of texts being written."""

from __future__ import annotations

from .recogniser import (
    Entity,
    EntityType,
    Recognise,
    Recogniser,
    WrittenEntity,
    find_entities,
    head_entity,
    language_of,
    same_kind,
    tokens_of,
    with_scores,
    written_entities,
)

__all__ = [
    "Entity", "EntityType", "Recognise", "Recogniser", "WrittenEntity", "find_entities",
    "head_entity", "language_of", "same_kind", "tokens_of", "with_scores", "written_entities",
]  # fmt: skip
