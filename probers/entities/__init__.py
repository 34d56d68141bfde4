"""Entity spans: by rules that stand alone, or by spaCy's NER; of texts, and of what is being written."""

from __future__ import annotations

from .base import Entity, EntityType, Recognise, same_kind
from .recogniser import Recogniser, find_entities
from .values import MONTHS
from .written import WrittenEntity, head_entity, tokens_of, with_scores, written_entities

__all__ = [
    "MONTHS", "Entity", "EntityType", "Recognise", "Recogniser", "WrittenEntity", "find_entities",
    "head_entity", "same_kind", "tokens_of", "with_scores", "written_entities",
]  # fmt: skip
