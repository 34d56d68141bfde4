"""Equivalence of entity mentions: by value, by spelling, by name parts, by meaning."""

from __future__ import annotations

from .dates import Time, parse_date, read_time
from .matcher import STAGES, EntityMatcher, Match, Verdict
from .names import normalise
from .numbers import Number, parse_number, read_number
from .wordnet import wordnet_available

__all__ = [
    "STAGES", "EntityMatcher", "Match", "Number", "Time", "Verdict", "normalise", "parse_date",
    "parse_number", "read_number", "read_time", "wordnet_available",
]  # fmt: skip
