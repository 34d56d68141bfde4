"""Several processes hold one copy of an index, and the benchmarks of scale do what they say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import planted
import pytest
from artefacts import write_lines

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fp8 as fp8_benchmark
import scale
import sharing
from timing import Results

from probers import FeatureStore
from probers.capture.pooling import as_stored
from probers.rag.retrievers.dense import Method, Neighbours, build
from probers.testbed.assets import load_articles


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")
def test_several_processes_hold_one_copy_of_an_index(tmp_path: Path) -> None:
    """Claim: of its files two hold together what one holds; converse: of the rest each has its own."""
    corpus, asked = tmp_path / "c.jsonl", tmp_path / "asked.json"
    words = np.random.default_rng(0).integers(0, 3000, (12_000, 60))
    lines = [
        {"id": i, "title": f"t{i}", "text": " ".join(f"w{w}" for w in row)} for i, row in enumerate(words)
    ]
    write_lines(corpus, lines)
    asked.write_text(json.dumps([" ".join(f"w{w}" for w in range(i, i + 40)) for i in range(0, 3000, 40)]))
    folder = tmp_path.resolve()
    held = {}
    for count in (1, 2):
        with sharing.processes(count, "bm25", str(corpus), str(asked), str(folder)) as running:
            each = [sharing.held(pid, folder) for pid, _ in running]
        held[count] = {name: sum(one[name] for one in each) for name in each[0]}
    files = held[1]["files"]
    assert files > 4e6 and held[2]["files"] < 1.3 * files
    assert held[2]["anonymous"] > 1.7 * held[1]["anonymous"]
    assert held[2]["proportional"] < held[2]["resident"] - 0.7 * files


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
    for half in (0, 1):
        scale.write_rows(tmp_path / str(half), half * 300, 300).finish()
    for name, step in scale.STEPS.items():
        if name != "table in memory":
            step(tmp_path, 600)
    name = "table in memory"
    ran = scale.run("step", name, str(tmp_path), "600")
    assert ran.seconds > 0 and ran.memory > 20e6
    whole, merged = (FeatureStore.open(tmp_path / name).table() for name in ("all", "merged"))
    assert whole["id"].equals(merged["id"]) and len(whole) == 600
    with pytest.raises(SystemExit, match="step table in memory .*nowhere 600 ended with 1"):
        scale.run("step", name, str(tmp_path / "nowhere"), "600")


def test_articles_are_repeated_under_other_titles(tmp_path: Path) -> None:
    there = len(load_articles())
    lines = scale.write_articles(tmp_path / "a.jsonl", there + 5).read_text().splitlines()
    titles = [json.loads(line)["title"] for line in lines]
    assert len(set(titles)) == len(titles) == there + 5 and titles[there] == f"{titles[0]} 1"


def test_the_two_stores_of_a_format_differ_by_rounding_alone(tmp_path: Path) -> None:
    half = planted.make_store(tmp_path / "half", 200)
    eight = fp8_benchmark.converted(half, tmp_path / "eight", "fp8")
    assert eight.spec == replace(half.spec, dtype="fp8") and eight.table().equals(half.table())
    exact = half.states(half.spec.layers).astype(np.float32)
    np.testing.assert_array_equal(eight.states(half.spec.layers), as_stored(exact, "fp8").numpy())
    typical, most = fp8_benchmark.rounding(half, eight)
    assert 0.01 < typical <= most < 0.05  # a 16th of the number at most
    assert fp8_benchmark.state_bytes(eight) < fp8_benchmark.state_bytes(half)
    results = Results(fp8_benchmark.HEADS)
    assert fp8_benchmark.shown(fp8_benchmark.Sample(0.01, np.array([0.0, 0.02]))).startswith("+0.0100 (+0.0")
    assert results.rows == {}
