"""Search engines of ``benchmarks/retrieval.py``: built, used and measured, each in its own process.

``python benchmarks/engines.py FOLDER ENGINE CORPUS QUESTIONS EVERY OUT`` is the command of such a process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from probers.data.corpus import PassageStore, load_corpus
from probers.rag.retrievers.lexical import tokenize
from probers.types import Passage

NAMES = {
    "rank_bm25": "rank_bm25",
    "bm25": "bm25",
    "dense": "dense (all-MiniLM-L6-v2, bfloat16)",
    "fts5": "SQLite FTS5",
}
#: Processor time of the thread that does all the work; other work on the machine does not count.
clock = time.thread_time
SECONDS = 30.0  # time after which only the first 20 queries are still asked


def stored(corpus: Path, folder: Path) -> Sequence[Passage]:
    """Store the corpus on the disk, whatever its size."""
    return load_corpus(corpus, cache=folder / "corpus", in_memory=0)


def key(text: str) -> str:
    return " ".join(text.split())


def made_and_used(
    folder: Path, engine: str, corpus: Path, asked: Path, *, every: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure the process that makes the index, and one that opens it and searches."""
    made = measure(folder, engine, corpus, asked, "made", every=every)
    # rank_bm25 keeps nothing: each process makes its index.
    return made, made if engine == "rank_bm25" else measure(
        folder, engine, corpus, asked, "used", every=every
    )


def measure(
    folder: Path, engine: str, corpus: Path, asked: Path, phase: str, *, every: bool = False
) -> dict[str, Any]:
    """Run a worker, or read its figures from an earlier run."""
    kept = folder / f"{engine}-{corpus.name}-{phase}{'-every' if every else ''}.json"
    if not kept.exists():
        print(f"{NAMES.get(engine, engine)}, {corpus.name}, {phase} ...", file=sys.stderr)
        job = [str(folder), engine, str(corpus), str(asked), str(int(every)), str(kept)]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, __file__, *job], check=True, env=one_thread)
    return json.loads(kept.read_text(encoding="utf-8"))


def as_worker(folder: str, engine: str, corpus: str, asked: str, every: str, out: str) -> None:
    """Make or open an index, search it, and write the figures; runs in its own process."""
    queries = json.loads(Path(asked).read_text(encoding="utf-8"))
    with Peaks() as peaks:
        start = clock()
        passages = stored(Path(corpus), Path(folder))
        if engine != "store":
            start = clock()
            search = ENGINES[engine](passages, Path(folder))
        figures: dict[str, Any] = {"seconds": clock() - start}
        figures["disk"] = disk(Path(folder), engine, passages)
        # Another process uses the index; with rank_bm25 it is the same one.
        if engine != "store" and not (
            engine != "rank_bm25" and out.endswith(("made.json", "made-every.json"))
        ):
            figures |= timed(search, queries, bool(int(every)))
    Path(out).write_text(json.dumps(figures | peaks.most), encoding="utf-8")


def timed(search: Callable[[list[str], int], Any], queries: list[str], every: bool) -> dict[str, Any]:
    """Time queries in milliseconds, one by one and in batches of 32; list the texts found if ``every``."""
    start = clock()
    search(queries[:1], 10)
    first = clock() - start
    search(queries[1:3], 10)
    single, begun = [], clock()
    for query in queries[:256]:
        if len(single) >= 20 and clock() - begun > SECONDS:
            break
        start = clock()
        search([query], 10)
        single.append(1000 * (clock() - start))
    found: list[Any] = []
    start = clock()
    for place in range(0, len(queries), 32):
        if not every and place and clock() - start > SECONDS:
            break
        found += search(queries[place : place + 32], 10)
    batched = 1000 * (clock() - start) / len(found)
    p50, p95 = np.percentile(single, (50, 95))
    texts = [[key(p.text) for p in row] for row in found] if every else []
    return {"first": first, "p50": p50, "p95": p95, "batched": batched, "found": texts}


def _bm25(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    from probers.rag.retrievers.bm25 import BM25

    return BM25(passages, cache=folder / "bm25").search


def _rank_bm25(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    from probers.rag.retrievers import RankBM25

    return RankBM25(passages).search


def _dense(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    from probers.rag.retrievers.dense import Dense

    return Dense(passages, dtype="bfloat16", cache=folder / "dense").search


def _fts5(passages: Sequence[Passage], folder: Path) -> Callable[[list[str], int], Any]:
    """Index in SQLite's full-text engine, with the words of :func:`tokenize` joined by OR."""
    import sqlite3

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
        found = []
        for query in queries:
            words = " OR ".join(f'"{t}"' for t in tokenize(query))
            rows = base.execute("select rowid from p where p match ? order by rank limit ?", (words, k))
            found.append([passages[row] for (row,) in rows])
        return found

    return search


ENGINES = {"bm25": _bm25, "rank_bm25": _rank_bm25, "dense": _dense, "fts5": _fts5}


def disk(folder: Path, engine: str, passages: Sequence[Passage]) -> int:
    """Count the bytes of an engine's index on the disk; none for an index in memory."""
    if engine == "fts5":
        return (folder / f"{len(passages)}.sqlite").stat().st_size
    if engine == "rank_bm25":
        return 0
    assert isinstance(passages, PassageStore)
    where = [passages.path] if engine == "store" else list((folder / engine).glob(f"{passages.fingerprint}*"))
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


if __name__ == "__main__":
    as_worker(*sys.argv[1:])
