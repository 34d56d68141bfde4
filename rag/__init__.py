"""Retrieval on demand: triggers, query formulations, retrievers and the loop that joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from .loop import RAG
    from .traces import Answer

__all__ = ["RAG", "Answer"]

__getattr__ = lazily(__name__, {"loop": "RAG", "traces": "Answer"})
