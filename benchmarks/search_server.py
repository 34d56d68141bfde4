"""Comparison of a search server with the embedded index: rankings, counts of phrases, speed.

    python benchmarks/search_server.py [--url http://HOST:9200 ..] [--limit 5000]

Without ``--url`` a node of OpenSearch is started from the jars of ``--jars``, where Java is installed. A
corpus is loaded into indexes of its own, with 1 and with 3 shards, searched with real questions one by one
and in batches, and the indexes are deleted again. Rankings and counts disagree unless, with each number of
shards,

- every question has the passages of the embedded index in its order, except for scores that agree there to
  five digits, for passages of at most 40 words, whose length Lucene stores exactly;
- 85% of the first ten are the same for the passages as they are, whose lengths Lucene rounds;
- every count of a phrase is that of the embedded index.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from results import ROOT, Results, Section, options, positive, script
from retrieval import questions

from probers.data.corpus import load_corpus
from probers.rag.retrievers import BM25, Elasticsearch
from probers.rag.retrievers.lexical import tokens_of
from probers.types import Passage

K = 10
SHARDS = (1, 3)
#: Beginning of the names of the indexes.
INDEX = "probers-benchmark"
#: Most words for which Lucene keeps a passage's length exactly.
EXACT = 40
#: Largest difference of equal scores: both sides add them up in single precision.
SAME = 1e-5
#: Least share of the first ten that must be the same if lengths are rounded.
SHARED = 0.85


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two rankings of every question.

    Attributes:
        same: share of questions with the same passages in the same order, except for equal scores.
        shared: mean share of the first ten that both have.
        first: share of questions with the same first passage.
    """

    same: float
    shared: float
    first: float


def agreement(ours: Sequence[Sequence[Passage]], theirs: Sequence[Sequence[Passage]]) -> Agreement:
    """Measure the agreement of the embedded index's rankings with a server's."""
    same, shared, first = [], [], []
    for mine, other in zip(ours, theirs, strict=True):
        scores = {passage.id: passage.score or 0.0 for passage in mine}
        last = min(scores.values(), default=0.0)
        # A passage that only the server found may stand among equal last scores.
        pairs = zip(mine, other, strict=False)
        gaps = [abs(scores.get(b.id, last) - (a.score or 0.0)) / (a.score or 1.0) for a, b in pairs]
        same.append(len(mine) == len(other) and all(gap < SAME for gap in gaps))
        names = {passage.id for passage in mine}
        shared.append(len(names & {p.id for p in other}) / max(1, len(names)))
        first.append([p.id for p in mine[:1]] == [p.id for p in other[:1]] or bool(gaps and gaps[0] < SAME))
    return Agreement(*(float(np.mean(each)) for each in (same, shared, first)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one retriever: passages, counts, and milliseconds."""

    results: list[list[Passage]]
    counts: list[int]
    made: float
    alone: np.ndarray
    batched: float
    counting: float
    megabytes: float | None = None


def measured(
    search: Elasticsearch | BM25, made: float, queries: Sequence[str], phrases: Sequence[str]
) -> Measured:
    """Search for one query after the other and for all at once, and count the phrases."""
    search.search(queries[:1], K), search.frequency(phrases[:1])
    alone = []
    for query in queries:
        start = time.perf_counter()
        search.search([query], K)
        alone.append(1000 * (time.perf_counter() - start))
    start = time.perf_counter()
    results = search.search(queries, K)
    batched = 1000 * (time.perf_counter() - start) / len(queries)
    start = time.perf_counter()
    counts = search.frequency(phrases)
    counting = 1000 * (time.perf_counter() - start) / len(phrases)
    size = None
    if isinstance(search, Elasticsearch):
        # By its segments: servers renew the sizes in an index's statistics every ten seconds only.
        answer = search._server.ask(search._server.client.indices.segments, index=search._name)
        shards = [each for index in answer["indices"].values() for each in index["shards"].values()]
        size = sum(
            segment["size_in_bytes"] / 1e6
            for shard in shards for copy in shard if copy["routing"]["primary"]
            for segment in copy["segments"].values()
        )  # fmt: skip
    return Measured(results, counts, made, np.array(alone), batched, counting, size)


def phrases_of(passages: Sequence[Passage], queries: Sequence[str]) -> list[str]:
    """Draw names from questions, and runs of two to four words from passages."""
    rng = np.random.default_rng(0)
    names = [m for query in queries for m in re.findall(r"[A-Z]\w+(?: [A-Z]\w+)+", query)]
    for row in rng.integers(len(passages), size=200):
        words = tokens_of(passages[int(row)])
        start = int(rng.integers(max(1, len(words) - 3)))
        names.append(" ".join(words[start : start + int(rng.integers(2, 5))]))
    return list(dict.fromkeys(names))


def compared(
    name: str, passages: Sequence[Passage], queries: Sequence[str], args: argparse.Namespace, folder: Path,
    results: Results,
) -> list[tuple[Agreement, float]]:  # fmt: skip
    """Compare both on one corpus, and return for each number of shards how rankings and counts agree."""
    phrases = phrases_of(passages, queries)
    start = time.perf_counter()
    ours = measured(
        made := BM25(passages, cache=folder / "bm25"), time.perf_counter() - start, queries, phrases
    )
    del made
    theirs = []
    for shards in SHARDS:
        start = time.perf_counter()
        retriever = Elasticsearch(
            passages, url=args.url, index=f"{INDEX}-{shards}", shards=shards, replicas=0,
            verify=not args.insecure, rebuild=True,
        )  # fmt: skip
        try:
            theirs.append(measured(retriever, time.perf_counter() - start, queries, phrases))
        finally:
            retriever.drop()
    each = [ours, *theirs]
    row = results.row
    row("server", f"{name}: made in", f"{len(passages):,}", *(f"{m.made:.1f} s" for m in each))
    row("server", "index", "", "", *(f"{m.megabytes:.1f} MB" for m in theirs))
    spans = (f"{np.median(m.alone):.1f} / {np.percentile(m.alone, 95):.1f} ms" for m in each)
    row("server", "one query alone, p50 / p95", "", *spans)
    row("server", f"one of {len(queries)} queries at once", "", *(f"{m.batched:.2f} ms" for m in each))
    row("server", f"one of {len(phrases)} counts at once", "", *(f"{m.counting:.2f} ms" for m in each))
    agree = [agreement(ours.results, m.results) for m in theirs]
    counts = [float(np.mean(np.equal(ours.counts, m.counts))) for m in theirs]
    row("server", "the embedded index's ranking", "", "", *(f"{a.same:.1%} of the questions" for a in agree))
    row("server", f"its first {K}", "", "", *(f"{a.shared:.1%} of the passages" for a in agree))
    row("server", "its first passage", "", "", *(f"{a.first:.1%} of the questions" for a in agree))
    row("server", "its counts", "", "", *(f"{c:.1%} of the phrases" for c in counts))
    return list(zip(agree, counts, strict=True))


def measure_server(results: Results, args: argparse.Namespace) -> None:
    """Compare both on passages of at most 40 words, and as they are."""
    if not args.url and (why := missing(args.jars)):
        results.row("server", f"skipped: {why}")
        return
    queries = questions(args.data, args.questions)
    with tempfile.TemporaryDirectory(prefix="probers-search-") as name:
        folder, corpus = Path(name), args.data / "passages.jsonl.gz"
        whole = load_corpus(corpus, cache=folder)[: args.limit]
        cut = load_corpus(corpus, cache=folder, passage_words=EXACT - 15)[: args.limit]
        short = [passage for passage in cut if len(tokens_of(passage)) <= EXACT]
        with node(args.jars, folder / "node", args.url) as args.url:
            exact = compared(f"at most {EXACT} words", short, queries, args, folder, results)
            near = compared("as they are", whole, queries, args, folder, results)
    agree = all(ranked.same == 1 and counted == 1 for ranked, counted in exact)
    agree &= all(ranked.shared >= SHARED and counted == 1 for ranked, counted in near)
    results.same &= agree
    results.note(
        "server",
        f"{len(queries)} real questions, all words, k={K}, over one connection to {len(args.url)} node(s). "
        f"Rankings and counts agree: {'met' if agree else '**not met**'}.",
    )


def missing(jars: Path) -> str:
    """Say why no node can be started here; empty if one can."""
    if not list(jars.glob("opensearch-2*.jar")):
        return f"{jars} holds no jars of OpenSearch (--jars)"
    return "" if shutil.which("java") else "java is not installed"


@contextmanager
def node(jars: Path, folder: Path, urls: Sequence[str]) -> Iterator[list[str]]:
    """Yield the addresses that were given, or start a node on loopback and yield its address."""
    if urls:
        yield list(urls)
        return
    (folder / "config").mkdir(parents=True)
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        port, transport = (each.getsockname()[1] for each in (one, other))
    settings = {
        "path.home": folder, "node.name": "benchmark", "network.host": "127.0.0.1", "http.port": port,
        "transport.port": transport, "cluster.routing.allocation.disk.threshold_enabled": "false",
        "discovery.type": "single-node",
    }  # fmt: skip
    command = ["java", "-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-cp", f"{jars.resolve()}/*"]
    command += [
        str(ROOT / "tools/search/SearchNode.java"),
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        while not alive(url):
            if process.poll() is not None:
                raise SystemExit(f"the node did not start: {(folder / 'log').read_text()[-400:]}")
            time.sleep(0.5)
        yield [url]
    finally:
        process.kill()
        process.wait()


def alive(url: str) -> bool:
    """Tell whether a node answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


SECTIONS = {
    "server": Section(
        "A search server and the embedded index", "what | passages | embedded | 1 shard | 3 shards",
        measure_server, 240,
    )
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--url", nargs="+", default=[], help="http(s)://HOST:PORT of each node; default: start one")
    add("--jars", type=Path, default=Path("../shared/search/lib"), help="folder of OpenSearch's jars")
    add("--limit", type=positive, default=10_000, help="number of passages")
    add("--questions", type=positive, default=128)
    add("--insecure", action="store_true", help="do not check the server's certificate")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
