"""Entity spans: by rules that stand alone, or by spaCy's NER."""

from __future__ import annotations

from .base import Entity, EntityType, Recognise
from .recogniser import Recogniser, find_entities, head_entity
from .values import MONTHS

__all__ = ["MONTHS", "Entity", "EntityType", "Recognise", "Recogniser", "find_entities", "head_entity"]
