"""Comparison of a running search server with the embedded index: rankings, counts of phrases, speed.

``python benchmarks/search_server.py http://HOST:9200 [http://OTHER:9200] [--data ../shared/data] [--write]``
loads a corpus into indexes of its own, with 1 and with 3 shards, searches it with real questions one by one
and in batches, counts phrases, and deletes the indexes again. Credentials come from the environment, as for
``retriever=elasticsearch``. The exit code is 1 unless, with each number of shards,

- every question has the passages of the embedded index in its order, except for scores that agree there to
  five digits, for passages of at most 40 words, whose length Lucene stores exactly;
- 85% of the first ten are the same for the passages as they are, whose lengths Lucene rounds;
- every count of a phrase is that of the embedded index.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flags import positive
from report import invocation, publish
from timing import Results

from probers.data.corpus import load_corpus
from probers.rag.retrievers import BM25, Elasticsearch
from probers.rag.retrievers.lexical import tokens_of
from probers.types import Passage

SECTION = "A search server and the embedded index"
HEADS = {"server": "what | passages | embedded | 1 shard | 3 shards"}
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
    for own, other in zip(ours, theirs, strict=True):
        scores = {passage.id: passage.score or 0.0 for passage in own}
        last = min(scores.values(), default=0.0)
        # A passage that only the server found may stand among equal last scores.
        pairs = zip(own, other, strict=False)
        gaps = [abs(scores.get(b.id, last) - (a.score or 0.0)) / (a.score or 1.0) for a, b in pairs]
        same.append(len(own) == len(other) and all(gap < SAME for gap in gaps))
        names = {passage.id for passage in own}
        shared.append(len(names & {p.id for p in other}) / max(1, len(names)))
        first.append([p.id for p in own[:1]] == [p.id for p in other[:1]] or bool(gaps and gaps[0] < SAME))
    return Agreement(*(float(np.mean(each)) for each in (same, shared, first)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one retriever: passages, counts, and milliseconds."""

    found: list[list[Passage]]
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
    found = search.search(queries, K)
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
    return Measured(found, counts, made, np.array(alone), batched, counting, size)


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
    agree = [agreement(ours.found, m.found) for m in theirs]
    counts = [float(np.mean(np.equal(ours.counts, m.counts))) for m in theirs]
    row("server", "the embedded index's ranking", "", "", *(f"{a.same:.1%} of the questions" for a in agree))
    row("server", f"its first {K}", "", "", *(f"{a.shared:.1%} of the passages" for a in agree))
    row("server", "its first passage", "", "", *(f"{a.first:.1%} of the questions" for a in agree))
    row("server", "its counts", "", "", *(f"{c:.1%} of the phrases" for c in counts))
    return list(zip(agree, counts, strict=True))


def main(argv: list[str]) -> int:
    """Measure, print, and write the section if asked to; return 1 if rankings or counts disagree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("url", nargs="+", help="http(s)://HOST:PORT of each node")
    add("--data", type=Path, default=Path("../shared/data"), help="passages.jsonl.gz and qa/*.jsonl")
    add("--limit", type=positive, help="take so many passages only")
    add("--questions", type=positive, default=256)
    add("--insecure", action="store_true", help="do not check the server's certificate")
    add("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    lines = [line for f in sorted((args.data / "qa").glob("*.jsonl")) for line in f.read_text().splitlines()]
    drawn = np.random.default_rng(0).permutation(len(lines))[: args.questions]
    queries = [json.loads(lines[i])["question"] for i in drawn]
    results = Results(HEADS)
    with tempfile.TemporaryDirectory(prefix="probers-search-") as name:
        folder = Path(name)
        corpus = args.data / "passages.jsonl.gz"
        whole = load_corpus(corpus, cache=folder)[: args.limit]
        cut = load_corpus(corpus, cache=folder, passage_words=EXACT - 15)[: args.limit]
        short = [passage for passage in cut if len(tokens_of(passage)) <= EXACT]
        exact = compared(f"at most {EXACT} words", short, queries, args, folder, results)
        near = compared("as they are", whole, queries, args, folder, results)
    agree = all(ranked.same == 1 and counted == 1 for ranked, counted in exact)
    agree &= all(ranked.shared >= SHARED and counted == 1 for ranked, counted in near)
    results.note(
        "server",
        f"{len(queries)} real questions, all words, k={K}, over one connection to {len(args.url)} nodes. "
        f"Rankings and counts agree: {'met' if agree else '**not met**'}.",
    )
    hidden = [part for part in argv if part not in args.url]
    command = invocation("search_server.py", ["URL", *hidden])
    publish({SECTION: results.body("server")}, command, write=args.write)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
