"""Retrieval on demand: triggers, query formulations, retrievers and the loop that joins them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import RAG
    from .traces import Answer

__all__ = ["RAG", "Answer"]

_LAZY = {"RAG": "loop", "Answer": "traces"}


def __getattr__(name: str) -> Any:
    """Import the loop only when it is asked for, so that ``--help`` stays fast."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
