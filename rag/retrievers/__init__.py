"""Retrievers, which find passages behind ``probers.types.Retriever``."""

from __future__ import annotations

from probers.parts import exports
from probers.types import lazily

__all__ = [*exports(__name__)]

__getattr__ = lazily(__name__, {}, **exports(__name__))
