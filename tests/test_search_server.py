"""benchmarks/search_server.py runs against a server of ours as it would against a real one, and can fail."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artefacts import write_lines
from fake_elasticsearch import FakeElasticsearch, FakeIndex

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import search_server
from search_server import agreement

from probers.types import Passage

pytestmark = pytest.mark.skipif(
    None in map(find_spec, ("elasticsearch", "opensearchpy")),
    reason="a client is not installed: pip install 'probers[search]'",
)


@pytest.fixture
def data(tmp_path):
    """200 passages of 30 to 120 words, some of them twice, and questions about them."""
    rng = np.random.default_rng(0)
    draw = lambda n: " ".join(f"w{min(int(x), 900)}" for x in rng.zipf(1.4, n))  # noqa: E731
    texts = [draw(int(rng.integers(30, 120))) for _ in range(190)]
    texts += texts[:10]  # equal scores
    rows = [{"id": f"p{i}", "title": f"t{i % 7}", "text": text} for i, text in enumerate(texts)]
    write_lines(tmp_path / "passages.jsonl.gz", rows)
    (tmp_path / "qa").mkdir()
    write_lines(tmp_path / "qa/nq.jsonl", ({"question": f"who is {draw(6)}?"} for _ in range(30)))
    return tmp_path


def measure(data: Path, *urls: str) -> int:
    return search_server.main([*urls, "--data", str(data), "--questions", "30"])


@pytest.mark.parametrize(("number", "product"), [("8.13.4", "Elasticsearch"), ("2.19.1", "OpenSearch")])
def test_a_server_that_ranks_alike_passes_and_nothing_is_left_there(data, capsys, number, product):
    """With the lengths that Lucene keeps, which move long passages and no short one."""
    with FakeElasticsearch(coarse_lengths=True) as server, FakeElasticsearch() as gone:
        server.version(number, product=product)
        gone.close()
        assert measure(data, server.url, gone.url) == 0
        assert not server.indices and len(server.asked("search")) > 60
    table = capsys.readouterr().out
    same = [line.split("|")[4].strip() for line in table.splitlines() if "ranking |" in line]
    assert same[0] == "100.0% of the questions" and same[1] != same[0]
    assert "Rankings agree: met" in table and table.count("made in") == 2


def test_another_formula_is_noticed(data, capsys, monkeypatch):
    """Converse: a server that does not do as it was told ends in 1."""
    exact = FakeIndex.bm25

    def other(self: FakeIndex, *arguments: Any) -> Any:
        self.settings["similarity"]["probers"]["b"] = 0.3
        return exact(self, *arguments)

    monkeypatch.setattr(FakeIndex, "bm25", other)
    with FakeElasticsearch() as server:
        assert measure(data, server.url) == 1
    assert "Rankings agree: **not met**" in capsys.readouterr().out


def found(*pairs: tuple[str, float]) -> list[list[Passage]]:
    return [[Passage(name, "", "", score=score) for name, score in pairs]]


@pytest.mark.parametrize(
    ("theirs", "same", "shared", "first"),
    [
        (found(("a", 6.0), ("b", 4.0), ("c", 2.0)), 1, 1, 1),  # another factor
        (found(("a", 6.0), ("b", 4.0), ("d", 2.0)), 1, 2 / 3, 1),  # d may have c's score
        (found(("a", 6.0), ("d", 4.0), ("c", 2.0)), 0, 2 / 3, 1),  # and not b's
        (found(("b", 6.0), ("a", 4.0), ("c", 2.0)), 0, 1, 0),
        (found(("a", 6.0), ("b", 4.0)), 0, 2 / 3, 1),
    ],
)
def test_what_counts_as_agreement(theirs, same, shared, first):
    ours = found(("a", 3.0), ("b", 2.0), ("c", 1.0))
    got = agreement(ours, theirs)
    assert (got.same, got.shared, got.first) == pytest.approx((same, shared, first))
    tied = found(("a", 3.0), ("b", 3.0), ("c", 1.0))
    swapped = found(("b", 3.0), ("a", 3.0), ("c", 1.0))
    assert agreement(tied, swapped) == search_server.Agreement(1, 1, 1)
