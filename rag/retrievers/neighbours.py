"""Nearest vectors by inner product with FAISS: exhaustive, by a graph, or compressed in cells."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from probers.builds import Estimate
from probers.types import UserError

Method = Literal["flat", "hnsw", "ivfpq"]
METHODS = ("flat", "hnsw", "ivfpq")

#: Corpora up to as many passages are searched exhaustively; up to the second number by a graph.
FLAT_UP_TO, HNSW_UP_TO = 200_000, 2_000_000

_LINKS, _EF_BUILD = 32, 128  # HNSW: links per vector, candidates while building
_CODE = 64  # bytes of a compressed vector, at most
_FEWEST = 1000  # vectors without which cells and codes cannot be learnt
_PER_CELL = 50  # vectors that are sampled per cell for training
_BLOCK = 65_536  # vectors that are added at a time
# Measured on one core at 20,000 and 30,000 vectors of width 384, per vector; at many times as many it is
# up to three times as much, since graphs get deeper and cells more.
_HNSW_SECONDS, _IVFPQ_SECONDS = 4e-4, 3e-4


def choose(method: str, count: int) -> Method:
    """The method for a corpus of ``count`` passages.

    Raises:
        UserError: an unknown method, or one for which there are too few passages.
    """
    if method == "auto":
        return "flat" if count <= FLAT_UP_TO else "hnsw" if count <= HNSW_UP_TO else "ivfpq"
    if method not in METHODS:
        raise UserError(f"retriever.index={method} is unknown: choose auto, {', '.join(METHODS)}")
    if method == "ivfpq" and count < _FEWEST:
        raise UserError(
            f"retriever.index=ivfpq needs {_FEWEST:,} passages, the corpus has {count}: choose flat"
        )
    return method  # type: ignore[return-value]


def estimate(method: Method, count: int, width: int) -> Estimate:
    """What making the index of (count, width) vectors takes; its memory in use is the same."""
    graph = count * (4.0 * width + 8 * _LINKS + 16)
    codes = count * (_code_size(width) + 8.0) + 4.0 * _cells(count) * width
    size = graph if method == "hnsw" else codes
    per_vector = _HNSW_SECONDS if method == "hnsw" else _IVFPQ_SECONDS
    return Estimate(count * per_vector * width / 384, size, size + 4.0 * width * _BLOCK)


def build(method: Method, vectors: np.ndarray, folder: Path) -> None:
    """Write the index of (N, d) vectors into a folder; "flat" needs none."""
    import faiss

    if method == "flat":
        return
    count, width = vectors.shape
    index = _empty(method, count, width)
    if method == "ivfpq":
        sample = min(count, max(_PER_CELL * index.nlist, 40 * 256))
        rows = np.sort(np.random.default_rng(0).choice(count, sample, replace=False))
        index.train(np.ascontiguousarray(vectors[rows]))
    for start in tqdm(range(0, count, _BLOCK), desc=f"index ({method})", disable=count < _BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
    temporary = folder / ".index.tmp"
    faiss.write_index(index, str(temporary))
    os.replace(temporary, folder / "index.faiss")


def _empty(method: Method, count: int, width: int) -> Any:
    import faiss

    if method == "hnsw":
        graph = faiss.IndexHNSWFlat(width, _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = _EF_BUILD
        return graph
    coarse, bits = faiss.IndexFlatIP(width), 8
    return faiss.IndexIVFPQ(coarse, width, _cells(count), _code_size(width), bits, faiss.METRIC_INNER_PRODUCT)


class Neighbours:
    """A search for the vectors with the largest inner products.

    "flat" is exact. "hnsw" compares with the vectors themselves on its way through a graph (Malkov and
    Yashunin 2016). "ivfpq" (Jegou et al. 2011) ranks compressed vectors of the nearest cells, and then
    the best of them anew by the vectors themselves, so that its scores are exact too.

    Args:
        method: as in :func:`build`.
        vectors: (N, d) float32, memory-mapped.
        folder: where the index was written.
    """

    def __init__(self, method: Method, vectors: np.ndarray, folder: Path) -> None:
        self._method, self._vectors = method, vectors
        self._index = _read(method, folder)
        if method == "ivfpq":
            self._index.nprobe = max(16, self._index.nlist // 50)

    def search(self, queries: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
        """Rows and inner products of up to ``k`` vectors for each of (n, d) queries, best first."""
        import faiss

        k = min(k, len(self._vectors))
        if self._method == "flat":
            scores, rows = faiss.knn(queries, self._vectors, k, faiss.METRIC_INNER_PRODUCT)
        elif self._method == "hnsw":
            self._index.hnsw.efSearch = max(128, 4 * k)
            scores, rows = self._index.search(queries, k)
        else:
            _, rows = self._index.search(queries, min(len(self._vectors), max(100, 10 * k)))
            return [
                self._exact(query, found[found >= 0], k) for query, found in zip(queries, rows, strict=True)
            ]
        return [
            [(int(row), float(score)) for row, score in zip(*pair, strict=True) if row >= 0]
            for pair in zip(rows, scores, strict=True)
        ]

    def _exact(self, query: np.ndarray, rows: np.ndarray, k: int) -> list[tuple[int, float]]:
        rows = np.sort(rows)
        scores = self._vectors[rows] @ query
        order = np.argsort(-scores, kind="stable")[:k]
        return [(int(rows[i]), float(scores[i])) for i in order]


def _read(method: Method, folder: Path) -> Any:
    import faiss

    return None if method == "flat" else faiss.read_index(str(folder / "index.faiss"))


def _cells(count: int) -> int:
    """About 4 sqrt(N), as FAISS advises, and few enough to be learnt."""
    return max(1, min(int(4 * math.sqrt(count)), count // 39))


def _code_size(width: int) -> int:
    """The most bytes into which a vector can be cut in equal parts, up to :data:`_CODE`."""
    return next(m for m in range(min(_CODE, width), 0, -1) if width % m == 0)
