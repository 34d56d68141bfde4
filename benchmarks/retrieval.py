"""Retrievers on this machine: time, memory and disk of BM25, and what rarity costs a sentence.

    python benchmarks/retrieval.py [--sizes 10000 100000 [1000000]] [--only bm25 rarity]

Passages are made from real ones: sentences of different passages combined at random, with the length of a
real passage, and new words at the rate of the real passages (Heaps' law), because the size of the vocabulary
determines part of the memory. Every engine runs in a process of its own that starts with nothing in memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from results import Results, Section, amount, options, positive, script, verdict

from probers.data.corpus import PassageStore, load_corpus
from probers.prompts import TESTBED_PROMPT
from probers.rag.protocol import State
from probers.rag.retrievers import BM25, RankBM25
from probers.rag.retrievers.lexical import tokenize, tokens_of
from probers.rag.triggers import Rarity
from probers.types import Generation, Passage, Question

NAMES = {"bm25": "bm25", "rank_bm25": "rank_bm25", "fts5": "SQLite FTS5"}
#: Most passages for rank_bm25, which visits every passage in Python objects for every word.
RANK_BM25_UP_TO = 100_000
#: Processor time of the thread that does all the work; other work on the machine does not count.
clock = time.thread_time
#: Seconds after which no further query is asked, once there were 20.
SECONDS = 15.0
#: Most milliseconds of a sentence, and passages that the plain scan reads.
TARGET, SCANNED = 2.0, 20_000
_NONE = np.zeros(0, dtype=np.float32)


def stored(corpus: Path, folder: Path) -> Sequence[Passage]:
    """Store the corpus on the disk, whatever its size."""
    return load_corpus(corpus, cache=folder / "corpus", in_memory=0)


def questions(data: Path, count: int) -> list[str]:
    """Draw real questions."""
    lines = [
        line
        for file in sorted((data / "qa").glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    drawn = np.random.default_rng(0).permutation(len(lines))[:count]
    return [json.loads(lines[i])["question"] for i in drawn]


def measure_bm25(results: Results, args: argparse.Namespace) -> None:
    """Make the table of engines by size."""
    with tempfile.TemporaryDirectory(prefix="probers-retrieval-") as name:
        folder = Path(name)
        real = list(stored(args.data / "passages.jsonl.gz", folder))
        queries = questions(args.data, args.questions)
        for size in args.sizes:
            corpus = folder / f"recombined-{size}.jsonl"
            recombine(real, size, corpus)
            stored(corpus, folder)
            ours = 0.0
            for engine, title in NAMES.items():
                if engine == "rank_bm25" and size > RANK_BM25_UP_TO:
                    continue
                made = measure(folder, engine, corpus, [])
                # rank_bm25 keeps nothing: each process makes its index.
                used = measure(folder, engine, corpus, queries)
                ours = ours or used["p50"]
                results.row(
                    "bm25", f"{size:,}", title, f"{made['seconds']:.1f} s", amount(used["disk"]),
                    memory(made), memory(used), f"{milliseconds(used['p50'])} / {milliseconds(used['p95'])}",
                    milliseconds(used["batched"]), f"{used['p50'] / ours:.2f}",
                )  # fmt: skip


def measure(folder: Path, engine: str, corpus: Path, queries: Sequence[str]) -> dict[str, Any]:
    """Make or open an index and search it, in a process of its own."""
    print(f"  {NAMES[engine]}, {corpus.name}, {len(queries)} queries ...", file=sys.stderr)
    command = [sys.executable, __file__, "--worker", str(folder), engine, str(corpus)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    given = json.dumps(list(queries))
    done = subprocess.run(
        command, check=True, env=environment, input=given, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def worker(folder: str, engine: str, corpus: str) -> None:
    """Run the process of :func:`measure`, which reads queries and prints figures."""
    queries = json.loads(sys.stdin.read())
    with Peaks() as peaks:
        passages = stored(Path(corpus), Path(folder))
        start = clock()
        search = ENGINES[engine](passages, Path(folder))
        figures: dict[str, Any] = {"seconds": clock() - start, "disk": disk(Path(folder), engine, passages)}
        if queries:
            figures |= timed(search, queries)
    print(json.dumps(figures | peaks.most))


def timed(search: Callable[[list[str], int], Any], queries: list[str]) -> dict[str, float]:
    """Time queries in milliseconds, one by one and in batches of 32."""
    search(queries[:3], 10)
    single, begun = [], clock()
    for query in queries:
        if len(single) >= 20 and clock() - begun > SECONDS:
            break
        start = clock()
        search([query], 10)
        single.append(1000 * (clock() - start))
    start, done = clock(), 0
    for place in range(0, len(queries), 32):
        if place and clock() - start > SECONDS:
            break
        done += len(search(queries[place : place + 32], 10))
    p50, p95 = np.percentile(single, (50, 95))
    return {"p50": p50, "p95": p95, "batched": 1000 * (clock() - start) / done}


def _bm25(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    return BM25(passages, cache=folder / "bm25").search


def _rank_bm25(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    return RankBM25(passages).search


def _fts5(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    """Index in SQLite's full-text engine, with the words of :func:`tokenize` joined by OR."""
    path = folder / f"{len(passages)}.sqlite"
    if not path.exists():
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(part)) as made, made:
            made.execute(
                "create virtual table p using fts5(title, text, content='', "
                "tokenize='unicode61 remove_diacritics 0')"
            )
            rows = ((i, p.title, p.text) for i, p in enumerate(passages))
            made.executemany("insert into p(rowid, title, text) values (?, ?, ?)", rows)
            made.execute("insert into p(p) values ('optimize')")
        part.rename(path)
    base = sqlite3.connect(path)

    def search(queries: list[str], k: int) -> list[list[Passage]]:
        results = []
        for query in queries:
            words = " OR ".join(f'"{t}"' for t in tokenize(query))
            rows = base.execute("select rowid from p where p match ? order by rank limit ?", (words, k))
            results.append([passages[row] for (row,) in rows])
        return results

    return search


ENGINES = {"bm25": _bm25, "rank_bm25": _rank_bm25, "fts5": _fts5}


def disk(folder: Path, engine: str, passages: Sequence[Passage]) -> int:
    """Count the bytes of an engine's index on the disk; none for an index in memory."""
    if engine == "fts5":
        return (folder / f"{len(passages)}.sqlite").stat().st_size
    if engine == "rank_bm25":
        return 0
    assert isinstance(passages, PassageStore)
    where = (folder / engine).glob(f"{passages.fingerprint}*")
    return sum(p.stat().st_size for w in where if w.is_dir() for p in w.iterdir())


class Peaks:
    """Peak memory of this process within the block, in bytes, sampled every 20 ms."""

    def __init__(self) -> None:
        self.most = {"anonymous": 0, "resident": 0}
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._watcher.join()

    def _watch(self) -> None:
        for _ in self._ticks():
            status = Path("/proc/self/status").read_text()
            here = {n: int(status.split(f"{n}:")[1].split()[0]) * 1024 for n in ("RssAnon", "VmHWM")}
            self.most["anonymous"] = max(self.most["anonymous"], here["RssAnon"])
            self.most["resident"] = here["VmHWM"]

    def _ticks(self) -> Iterator[None]:
        yield
        while not self._over.wait(0.02):
            yield
        yield


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


def milliseconds(count: float) -> str:
    """Format a number of milliseconds."""
    return f"{count:.2g}" if count < 100 else f"{count:.0f}"


def memory(figures: dict[str, Any]) -> str:
    """Format the most anonymous memory, and with mapped files."""
    return f"{amount(figures['anonymous'])} / {amount(figures['resident'])}"


def measure_rarity(results: Results, args: argparse.Namespace) -> None:
    """Make the table of a sentence's costs."""
    size = max(args.sizes)
    with tempfile.TemporaryDirectory(prefix="probers-rarity-") as name:
        folder, corpus = Path(name), Path(name) / f"recombined-{size}.jsonl"
        recombine(list(stored(args.data / "passages.jsonl.gz", folder)), size, corpus)
        retriever = BM25(stored(corpus, folder), cache=folder / "bm25")
        retriever.frequency(["of the"])  # makes the places of words
        answers = drafts(args.data / "wiki_articles.jsonl", args.articles, retriever)
        whole, counting, pairs = [], [], 0
        for generation, state, sentences in answers:
            index = Watched(state.retriever)
            trigger, watched = Rarity(), replace(state, retriever=index)
            start = clock()
            trigger.decide_before([watched])
            trigger.decide([generation], [watched])
            whole.append((clock() - start) / sentences * 1000)
            counting.append(index.seconds / sentences * 1000)
            pairs += len(index.pairs)
        scan = scanned(retriever, [index.pairs], answers[-1][-1]) * size / SCANNED
    rows = {"all of it": whole, "entities and sentences": np.subtract(whole, counting), "counts": counting}
    for title, each in rows.items():
        p50, p95 = np.median(each), np.quantile(each, 0.95)
        aim = (f"<= {TARGET:g}, p95 too", verdict(max(p50, p95) <= TARGET)) if title == "all of it" else ()
        results.row("rarity", f"{size:,}", title, *map(milliseconds, (p50, p95, np.mean(each))), *aim)
    results.row("rarity", f"{size:,}", "counts by a plain scan, extrapolated", "", "", milliseconds(scan))
    results.note(
        "rarity",
        f"{len(answers)} articles of {sum(n for *_, n in answers)} sentences, each judged at once as an "
        f"answer to "
        f"a question that names its title; {pairs / sum(n for *_, n in answers):.1f} pairs of entities per "
        f"sentence. "
        "An article's processor time is divided by its sentences.",
    )


class Watched:
    """Retriever whose counts are timed."""

    def __init__(self, retriever: Any) -> None:
        self._retriever, self.seconds = retriever, 0.0
        self.pairs: list[tuple[str, str]] = []

    def search(self, queries: Sequence[str], k: int) -> Any:
        return self._retriever.search(queries, k)

    def frequency(self, phrases: Sequence[str]) -> list[int]:
        return self._timed(lambda: self._retriever.frequency(phrases))

    def together(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        self.pairs += pairs
        return self._timed(lambda: self._retriever.together(pairs))

    def _timed(self, work: Callable[[], list[int]]) -> list[int]:
        start = clock()
        counts = work()
        self.seconds += clock() - start
        return counts


Draft = tuple[Generation, State, int]


def drafts(path: Path, count: int, retriever: Any) -> list[Draft]:
    """Read articles as answers, with their number of sentences."""
    texts: list[Draft] = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record["tokenized"] or len(record["sentences"]) < 3:
                continue
            text = " " + " ".join(record["sentences"])
            offsets = tuple(m.span() for m in re.finditer(r"\s*\S+", text))
            ids, nothing = tuple(range(len(offsets))), np.zeros(len(offsets), dtype=np.float32)
            made = Generation("Answer:", (), (), ids, text, offsets, nothing, nothing, "stop")
            question = Question(record["title"], f"What is {record['title']} known for?")
            state = State(question, None, TESTBED_PROMPT, (0, 0), retriever=retriever)  # type: ignore[arg-type]
            texts.append((made, state, len(record["sentences"])))
            if len(texts) == count:
                break
    return texts


def scanned(retriever: BM25, queries: Sequence[Sequence[tuple[str, str]]], sentences: int) -> float:
    """Time a scan of tokenized passages for pairs, in milliseconds per sentence."""
    some = [f" {' '.join(tokens_of(p))} " for p in retriever._passages[:SCANNED]]
    start = clock()
    for pairs in queries:
        for pair in pairs:
            one, other = (f" {' '.join(tokenize(name))} " for name in pair)
            sum(one in text and other in text for text in some)
    return 1000 * (clock() - start) / sentences * SCANNED / max(1, len(some))


SECTIONS = {
    "bm25": Section(
        "Retrieval: BM25",
        "passages | engine | made in | on disk | memory to make | memory to use | one query, p50 / p95, ms | "
        "in batches of 32, ms | p50, of ours",
        measure_bm25, 300,
        "Real questions, all words, k=10. Times are processor time of the single working thread. Memory is "
        "the peak "
        "of the process, anonymous / with mapped files, which the kernel can reclaim. FTS5 holds no texts.",
    ),
    "rarity": Section(
        "Rarity: milliseconds a "
        "sentence", "passages | what | median | 95th percentile | mean | target | verdict",
        measure_rarity, 180,
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--sizes", nargs="+", type=positive, default=[10_000, 100_000], help="passages")
    parser.add_argument("--questions", type=positive, default=128)
    parser.add_argument("--articles", type=positive, default=60, help="articles whose sentences are judged")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        sys.exit(main())
