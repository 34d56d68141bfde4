"""Comparison of retrievers: recall, speed and size.

``python benchmarks/retrieval.py`` writes two tables:

- recall: the share of the gold passages of real questions, over a real corpus, among the first 3 and the
  first 10 that each retriever returns;
- growth: build time, disk, memory and query time at 10,000, 100,000 and 1,000,000 passages, next to
  SQLite's FTS5. These passages are made from the real ones: sentences of different passages combined at
  random, with the length of a real passage, and new words at the rate of the real passages (Heaps' law),
  because the size of the vocabulary determines part of the memory.

Every figure comes from its own process, which starts with nothing in memory. With ``--folder``,
measurements are kept, and a later run measures only the missing ones.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from engines import NAMES, key, made_and_used, measure, stored

from probers.rag.retrievers.bm25 import COMPILED_FROM
from probers.rag.retrievers.lexical import tokens_of
from probers.types import Passage

DATASETS = ("hotpotqa", "2wikimultihopqa", "nq")
#: Most passages for rank_bm25, which visits every passage in Python objects for every word.
RANK_BM25_UP_TO = 100_000
#: Size of psgs_w100, the corpus of the extrapolation.
WIKIPEDIA = 21_015_324
#: Below this size one shard holds the corpus and memory grows with it; above, it grows as for Wikipedia.
STRAIGHT_FROM = 100_000


def main(argv: list[str]) -> None:
    args = parse(argv)
    if not (args.data / "passages.jsonl.gz").is_file():
        raise SystemExit(
            f"{args.data} holds no passages.jsonl.gz: give the folder of the real text as --data"
        )
    with tempfile.TemporaryDirectory(prefix="probers-retrieval-") as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        sections = {}
        if "recall" in args.only:
            sections["retrieval: gold passages found"] = recall(args.data, folder, args.engines)
        if "growth" in args.only:
            sections["retrieval: growth with the corpus"] = growth(args.data, folder, args.sizes)
    for name, body in sections.items():
        print(f"## {name}\n\n{body}\n")
        if args.write:
            from report import invocation, write_section

            write_section(name, invocation("retrieval.py", argv), body)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="passages.jsonl.gz and qa/<dataset>.jsonl")
    add("--sizes", type=numbers, default=[10_000, 100_000, 1_000_000], help="passages, separated by commas")
    add("--engines", type=lambda t: t.split(","), default=["rank_bm25", "bm25", "dense"], help="for recall")
    add("--only", type=lambda t: t.split(","), default=["recall", "growth"])
    add("--folder", help="keep corpora, indexes and measurements here, and use those that are there")
    add("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    return parser.parse_args(argv)


def numbers(text: str) -> list[int]:
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a list of numbers") from None


def recall(data: Path, folder: Path, engines: Sequence[str]) -> str:
    """Make the table of the gold passages that every retriever finds."""
    corpus = data / "passages.jsonl.gz"
    there = {key(p.text) for p in stored(corpus, folder)}
    questions: list[dict[str, Any]] = []
    for dataset in DATASETS:
        for line in (data / "qa" / f"{dataset}.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            gold = {key(p["text"]) for p in record["passages"] if p.get("is_gold")}
            questions.append({"dataset": dataset, "question": record["question"], "gold": sorted(gold)})
    asked = folder / "questions.json"
    asked.write_text(json.dumps([q["question"] for q in questions]), encoding="utf-8")
    head = [f"{d} @{k}" for d in DATASETS for k in (3, 10)]
    lines = [
        f"| retriever | {' | '.join(head)} | queries/s | made in | memory to make, to use |",
        f"|{' --- |' * (len(head) + 4)}",
    ]
    for engine in engines:
        made, used = made_and_used(folder, engine, corpus, asked, every=True)
        cells = [
            f"{share(questions, used['found'], dataset, k, there):.3f}"
            for dataset in DATASETS
            for k in (3, 10)
        ]
        lines.append(
            f"| {NAMES[engine]} | {' | '.join(cells)} | {1000 / used['batched']:.0f} | "
            f"{spell(made['seconds'])} | {amount(made)}, {amount(used)} |"
        )
    counts = {d: [q for q in questions if q["dataset"] == d] for d in DATASETS}
    absent = sum(len(set(q["gold"]) - there) for q in questions)
    lines += [
        "",
        f"- Mean over questions of the share of their gold passages among the first 3 and the first 10 of "
        f"{len(stored(corpus, folder)):,}; "
        f"{', '.join(f'{d} {len(q)} questions' for d, q in counts.items())}. "
        f"A passage is gold when its text is, up to white space; {absent} gold passages that the corpus does "
        "not hold, and questions left with none, do not count.",
        "- Queries in batches of 32. Times are CPU time of the single working thread. Memory is the "
        "peak of the process, anonymous / with mapped files; `bm25` and `dense` are built once and "
        "opened by later runs.",
    ]
    return "\n".join(lines)


def share(
    questions: Sequence[dict[str, Any]], found: Sequence[Sequence[str]], dataset: str, k: int, there: set[str]
) -> float:
    """Compute mean recall at k of one data set."""
    shares = []
    for question, texts in zip(questions, found, strict=True):
        gold = set(question["gold"]) & there
        if question["dataset"] == dataset and gold:
            shares.append(len(gold & set(texts[:k])) / len(gold))
    return statistics.mean(shares)


def growth(data: Path, folder: Path, sizes: Sequence[int]) -> str:
    """Make the table of the effects of size, and extrapolate to Wikipedia."""
    real = list(stored(data / "passages.jsonl.gz", folder))
    asked = folder / "sample.json"
    questions = [
        json.loads(line)["question"]
        for d in DATASETS
        for line in (data / "qa" / f"{d}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    drawn = np.random.default_rng(0).permutation(len(questions))[:256]
    asked.write_text(json.dumps([questions[i] for i in drawn]), encoding="utf-8")
    rows, ours, stores = [], {}, {}
    for size in sizes:
        corpus = folder / f"recombined-{size}.jsonl"
        if not corpus.exists():
            recombine(real, size, corpus)
        stores[size] = measure(folder, "store", corpus, asked, "made")
        for engine in ("rank_bm25", "bm25", "fts5"):
            if engine == "rank_bm25" and size > RANK_BM25_UP_TO:
                rows.append(f"| {size:,} | {NAMES[engine]} | not run: see below |  |  |  |  |  |")
                continue
            made, used = made_and_used(folder, engine, corpus, asked)
            if engine == "bm25":
                ours[size] = made, used
            rows.append(
                f"| {size:,} | {NAMES[engine]} | {spell(made['seconds'])} | {megabytes(used['disk'])} | "
                f"{amount(made)} | {amount(used)} | {milliseconds(used['p50'])} / "
                f"{milliseconds(used['p95'])} ms | {milliseconds(used['batched'])} ms |"
            )
    lines = [
        "| passages | engine | made in | on disk | memory to make | memory to use | p50 / p95 of one query | "
        "per query in batches of 32 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"- {len(json.loads(asked.read_text()))} real questions, all words, k=10, after three "
        "queries to warm up (the first one waits "
        f"{max(u['first'] for _, u in ours.values()):.1f} s for numba from {COMPILED_FROM:,} passages on). "
        "Times are CPU time of the single working thread. Memory is the peak of the process, "
        "anonymous / with mapped files, which the kernel can reclaim.",
        f"- rank_bm25 is not run beyond {RANK_BM25_UP_TO:,} passages. FTS5 holds no texts (contentless).",
        *(
            f"- The passage store of {size:,}: {spell(s['seconds'])}, {megabytes(s['disk'])} of disk, "
            f"{amount(s)} of memory."
            for size, s in stores.items()
        ),
        *targets(ours),
        *extrapolation(ours, stores),
    ]
    return "\n".join(lines)


def extrapolation(ours: dict[int, Any], stores: dict[int, Any]) -> list[str]:
    """Extrapolate the two largest sizes to Wikipedia, by straight lines through both."""
    large_enough = sorted(n for n in ours if n >= STRAIGHT_FROM)
    if len(large_enough) < 2:
        return []
    small, large = large_enough[-2:]

    def at(figure: Callable[[int], float]) -> float:
        return figure(large) + (figure(large) - figure(small)) / (large - small) * (WIKIPEDIA - large)

    store = at(lambda n: stores[n]["seconds"]), at(lambda n: stores[n]["disk"])
    made = at(lambda n: ours[n][0]["seconds"]), at(lambda n: ours[n][1]["disk"])
    memory = at(lambda n: ours[n][0]["anonymous"])
    # Not a straight line, since numba is used from some size on. A query scores and marks every passage.
    used = ours[large][1]["anonymous"] + 5 * (WIKIPEDIA - large)
    return [
        f"- On paper, {WIKIPEDIA:,} passages (psgs_w100), by straight lines through {small:,} and {large:,}: "
        f"the store {spell(store[0])} and {megabytes(store[1])}; the bm25 index {spell(made[0])} and "
        f"{megabytes(made[1])} (twice that while it is made); anonymous memory {megabytes(memory)} to make "
        f"and, with 5 bytes per passage in a query, {megabytes(used)} to use, besides the mapped scores of "
        f"the words asked for; p50 {at(lambda n: ours[n][1]['p50']):.0f} ms while the index is in the page "
        "cache. While making, what grows with the corpus is one number per passage, per distinct word and "
        "per word of a shard; postings and texts stay on the disk.",
    ]


def targets(ours: dict[int, Any]) -> list[str]:
    """Compare the figures of a million passages with their targets."""
    if 1_000_000 not in ours:
        return []
    made, used = ours[1_000_000]
    asked = [
        ("memory to make", made["resident"], 2e9, megabytes),
        ("memory to use", used["resident"], 713e6, megabytes),
        ("p50", used["p50"], 2.8, lambda x: f"{milliseconds(x)} ms"),
    ]
    found = [
        f"{what} {show(value)}, at most {show(most)}: {'met' if value <= most else '**not met**'}"
        for what, value, most, show in asked
    ]
    return [f"- Targets of bm25 at 1,000,000: {'; '.join(found)}."]


def recombine(real: Sequence[Passage], size: int, path: Path) -> None:
    """Write ``size`` passages made of the sentences of real ones."""
    rng = np.random.default_rng(0)
    sentences = [s for p in real for s in re.split(r"(?<=[.!?])\s+", p.text) if s]
    lengths = np.array([len(p.text) for p in real])
    seen: set[str] = set()
    counts = []
    for passage in real:
        seen.update(tokens_of(passage))
        counts.append(len(seen))
    growth = math.log(counts[-1] / counts[len(real) // 2 - 1], 2)  # the exponent of Heaps' law
    new = (counts[-1] * (np.arange(size + 1) / len(real)) ** growth).astype(int)
    with path.with_suffix(".part").open("w", encoding="utf-8") as file:
        for number, (before, after) in enumerate(pairwise(new)):
            wanted, text = int(lengths[rng.integers(len(real))]), ""
            while len(text) < wanted:
                text += sentences[int(rng.integers(len(sentences)))] + " "
            words = " ".join(f"x{n}" for n in range(max(before, counts[-1]), after))
            record = {
                "id": number,
                "title": real[int(rng.integers(len(real)))].title,
                "text": f"{text}{words}",
            }
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    path.with_suffix(".part").rename(path)


def spell(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.2g} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def milliseconds(count: float) -> str:
    return f"{count:.2g}" if count < 100 else f"{count:.0f}"


def megabytes(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def amount(figures: dict[str, Any]) -> str:
    """Format the most anonymous memory, and with mapped files."""
    return f"{megabytes(figures['anonymous'])} / {megabytes(figures['resident'])}"


if __name__ == "__main__":
    main(sys.argv[1:])
