"""Retrieval on demand: triggers, query formulations, retrievers and the loop that joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from .comparison.compare import Comparison, compare
    from .loop import RAG
    from .traces import Answer

__all__ = ["RAG", "Answer", "Comparison", "compare"]

__getattr__ = lazily(__name__, {
    "comparison.compare": "Comparison compare", "loop": "RAG", "traces": "Answer",
})  # fmt: skip
