"""Entities of texts in six languages, their equivalence, and the sentences and words they stand in.

Entities are recognised by rules or by spaCy's NER, in finished texts and in texts being written. Mentions are
compared by value, by spelling, by name parts and by meaning. ``data`` has the lists of words by language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..types import lazily

if TYPE_CHECKING:
    from .dates import Time, read_time
    from .language import LANGUAGES, Language
    from .matcher import STAGES, EntityMatcher, Match, Verdict
    from .numbers import Number, read_number
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
    from .spelling import normalise

__all__ = [
    "LANGUAGES", "STAGES", "Entity", "EntityMatcher", "EntityType", "Language", "Match", "Number",
    "Recognise", "Recogniser", "Time", "Verdict", "WrittenEntity", "find_entities", "head_entity",
    "language_of", "normalise", "read_number", "read_time", "same_kind", "tokens_of", "with_scores",
    "written_entities",
]  # fmt: skip

__getattr__ = lazily(__name__, {
    "dates": "Time read_time", "language": "LANGUAGES Language",
    "matcher": "STAGES EntityMatcher Match Verdict", "numbers": "Number read_number",
    "recogniser": "Entity EntityType Recognise Recogniser WrittenEntity find_entities head_entity "
    "language_of same_kind tokens_of with_scores written_entities",
    "spelling": "normalise",
})  # fmt: skip
