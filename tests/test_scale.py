"""A dense index is mapped from the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probers.rag.retrievers.dense import Method, Neighbours, build


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("method", ["hnsw", "ivfpq"])
def test_a_dense_index_is_mapped_and_finds_what_one_in_memory_finds(tmp_path: Path, method: Method) -> None:
    faiss = pytest.importorskip("faiss")
    vectors = np.random.default_rng(0).standard_normal((2000, 32), dtype=np.float32)
    build(method, vectors, tmp_path)
    mapped = Neighbours(method, vectors, tmp_path)
    assert str(tmp_path / "index.faiss") in Path("/proc/self/maps").read_text()
    read = Neighbours(method, vectors, tmp_path)
    read._index = faiss.read_index(str(tmp_path / "index.faiss"))
    for index in (mapped, read):
        if method == "ivfpq":
            index._index.nprobe = 20
    assert mapped.search(vectors[:50], 5) == read.search(vectors[:50], 5)
