"""Entity spans: by rules that stand alone, or by spaCy's NER."""

from .base import Entity, EntityType
from .dates import MONTHS
from .recogniser import Recogniser
from .rules import find_entities

__all__ = ["MONTHS", "Entity", "EntityType", "Recogniser", "find_entities"]
