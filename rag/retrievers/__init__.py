"""Retrievers, which find passages behind ``probers.types.Retriever``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from .bm25 import BM25
    from .dense import Dense
    from .elasticsearch import Elasticsearch
    from .lexical import RankBM25

__all__ = ["BM25", "Dense", "Elasticsearch", "RankBM25"]

__getattr__ = lazily(
    __name__, {"bm25": "BM25", "dense": "Dense", "elasticsearch": "Elasticsearch", "lexical": "RankBM25"}
)
