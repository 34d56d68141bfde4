"""Questions and passages, from the testbed, from files and from published sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..types import lazily

if TYPE_CHECKING:
    from .corpus import load_corpus
    from .questions import load_questions

__all__ = ["load_corpus", "load_questions"]

__getattr__ = lazily(__name__, {"corpus": "load_corpus", "questions": "load_questions"})
