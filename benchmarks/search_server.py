"""Comparison of a running Elasticsearch or OpenSearch server with the embedded index: rankings and speed.

``python benchmarks/search_server.py http://HOST:9200 [http://OTHER:9200] [--data ../shared/data] [--write]``
loads a corpus into an index of its own, searches it with real questions, and deletes it again. Credentials
come from the environment, as for ``retriever=elasticsearch``. The exit code is 1 if rankings disagree:

- for passages of at most 40 words, whose length Lucene stores exactly, every question must have the passages
  of the embedded index in its order, except for scores that agree there to five digits;
- for the passages as they are, whose lengths Lucene rounds, 85% of the first ten must be the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flags import positive
from report import invocation, publish
from timing import Results, verdict

from probers.data.corpus import load_corpus
from probers.rag.retrievers.bm25 import BM25
from probers.rag.retrievers.elasticsearch import Elasticsearch
from probers.rag.retrievers.lexical import tokens_of
from probers.types import Passage

SECTION = "A search server and the embedded index"
HEADS = {"server": "what | passages | embedded | server"}
K = 10
#: Name of the index, made anew for each corpus.
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
        gaps = [abs(scores.get(b.id, last) - a.score) / a.score for a, b in zip(own, other, strict=False)]
        same.append(len(own) == len(other) and all(gap < SAME for gap in gaps))
        names = {passage.id for passage in own}
        shared.append(len(names & {p.id for p in other}) / max(1, len(names)))
        first.append([p.id for p in own[:1]] == [p.id for p in other[:1]] or bool(gaps and gaps[0] < SAME))
    return Agreement(*(float(np.mean(each)) for each in (same, shared, first)))


def timed(search: Elasticsearch | BM25, queries: Sequence[str]) -> tuple[list[list[Passage]], np.ndarray]:
    """Search for one query after the other; return the passages found, and the milliseconds of each."""
    search.search(queries[:1], K)
    found, taken = [], []
    for query in queries:
        start = time.perf_counter()
        found += search.search([query], K)
        taken.append(1000 * (time.perf_counter() - start))
    return found, np.array(taken)


def compared(
    name: str, passages: Sequence[Passage], queries: Sequence[str], args: argparse.Namespace, folder: Path,
    results: Results,
) -> Agreement:  # fmt: skip
    """Compare both on one corpus; return rows of the table, and remove the server's index."""
    start = time.perf_counter()
    ours = BM25(passages, cache=folder / "bm25")
    built = time.perf_counter() - start
    start = time.perf_counter()
    theirs = Elasticsearch(
        passages, url=args.url, index=INDEX, shards=args.shards, verify=not args.insecure, rebuild=True
    )
    loaded = time.perf_counter() - start
    try:
        (own, mine), (other, servers) = timed(ours, queries), timed(theirs, queries)
    finally:
        theirs.drop()
    results.row("server", f"{name}: made in", f"{len(passages):,}", f"{built:.1f} s", f"{loaded:.1f} s")
    cells = (f"{np.median(ms):.1f} / {np.percentile(ms, 95):.1f} ms" for ms in (mine, servers))
    results.row("server", "p50 / p95 of one query", "", *cells)
    found = agreement(own, other)
    results.row("server", "the embedded index's ranking", "", "", f"{found.same:.1%} of the questions")
    results.row("server", f"its first {K}", "", "", f"{found.shared:.1%} of the passages")
    results.row("server", "its first passage", "", "", f"{found.first:.1%} of the questions")
    return found


def main(argv: list[str]) -> int:
    """Measure, print, and write the section if asked to; return 1 if the rankings disagree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("url", nargs="+", help="http(s)://HOST:PORT of each node")
    add("--data", type=Path, default=Path("../shared/data"), help="passages.jsonl.gz and qa/*.jsonl")
    add("--limit", type=positive, help="take so many passages only")
    add("--questions", type=positive, default=256)
    add("--shards", type=positive, default=1)
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
    agree = exact.same == 1 and near.shared >= SHARED
    results.note(
        "server",
        f"{len(queries)} real questions, all words, k={K}, one at a time over one connection; "
        f"{args.shards} shards on {len(args.url)} nodes. Rankings agree: {verdict(agree)}.",
    )
    hidden = [part for part in argv if part not in args.url]
    publish(
        {SECTION: results.body("server")}, invocation("search_server.py", ["URL", *hidden]), write=args.write
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
