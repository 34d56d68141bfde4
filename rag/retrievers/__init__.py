"""Retrievers, which find passages behind ``probers.types.Retriever``."""

from __future__ import annotations

from probers.parts import exporting, exports

__all__ = [*exports(__name__)]

__getattr__ = exporting(__name__)
