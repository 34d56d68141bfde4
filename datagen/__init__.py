"""Labelled hidden states from articles, questions and labelled texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from .labelling import label
    from .labels.base import Source
    from .labels.cot import Questions
    from .labels.judged import Prompts
    from .labels.texts import Texts
    from .labels.wiki import Articles

__all__ = ["Articles", "Prompts", "Questions", "Source", "Texts", "label"]

__getattr__ = lazily(__name__, {
    "labelling": "label", "labels.base": "Source", "labels.cot": "Questions", "labels.judged": "Prompts",
    "labels.texts": "Texts", "labels.wiki": "Articles",
})  # fmt: skip
