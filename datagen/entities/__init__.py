"""Entity spans: by rules that stand alone, or by spaCy's NER."""

from __future__ import annotations

from .base import Entity, EntityType
from .recogniser import Recogniser, find_entities
from .values import MONTHS

__all__ = ["MONTHS", "Entity", "EntityType", "Recogniser", "find_entities"]
