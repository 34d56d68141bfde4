"""A dense index is mapped from the disk, and the benchmark of scale does what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import scale

from probers import FeatureStore
from probers.rag.retrievers.dense import Method, Neighbours, build
from probers.testbed.assets import load_articles


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


@pytest.mark.long
def test_every_step_with_rows_is_done_and_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    scale.write_rows(tmp_path / "all", 0, 600)
    for name, step in scale.STEPS.items():
        if name != "table in memory":
            step(tmp_path, 600)
    name = "table in memory"
    ran = scale.run("step", name, str(tmp_path), "600")
    assert ran.seconds > 0 and ran.memory > 20e6
    assert len(FeatureStore.open(tmp_path / "all").table()) == 600
    with pytest.raises(SystemExit, match="step table in memory .*nowhere 600 ended with 1"):
        scale.run("step", name, str(tmp_path / "nowhere"), "600")


def test_articles_are_repeated_under_other_titles(tmp_path: Path) -> None:
    there = len(load_articles())
    lines = scale.write_articles(tmp_path / "a.jsonl", there + 5).read_text().splitlines()
    titles = [json.loads(line)["title"] for line in lines]
    assert len(set(titles)) == len(titles) == there + 5 and titles[there] == f"{titles[0]} 1"
