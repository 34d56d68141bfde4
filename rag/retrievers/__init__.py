"""Retrievers: everything that finds passages behind ``probers.types.Retriever``."""

from __future__ import annotations

from .bm25 import BM25
from .dense import Dense
from .elasticsearch import Elasticsearch
from .rank_bm25 import RankBM25

__all__ = ["BM25", "Dense", "Elasticsearch", "RankBM25"]
