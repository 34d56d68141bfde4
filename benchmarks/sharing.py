"""Memory of one process and of several that search one index on the same machine.

``python benchmarks/sharing.py [--data ../shared/data] [--sizes 1000000] [--write]``. Every process opens the
index, searches for the questions and stays; then the kernel reports the memory of each (smaps). A page shared
by several processes counts fully in the resident memory of each and once in the sum of their proportional
memory, so the growth of that sum is the cost of a further process. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engines import ENGINES, stored
from report import invocation, publish
from retrieval import megabytes, milliseconds, numbers, recombine
from timing import Results

from probers.types import Passage

SECTION = "retrieval: several processes, one index"
HEADS = {
    "sharing": "index | processes | resident, each | proportional, all | of it the index's files | "
    "of it their own | p50 of a query",
}
PROCESSES = (1, 4)
NONE = "none: Python and its libraries"
#: Number and width of the vectors of dense indexes. They are drawn, as their meaning does not matter here.
VECTORS, WIDTH = 20_000, 384


def opened(engine: str, corpus: Path, folder: Path) -> tuple[Callable[[list[str]], Any], int]:
    """Open a search through an index, made if needed; return it and its number of passages."""
    passages = stored(corpus, folder)
    if engine == NONE:  # a process with nearly no index
        search = ENGINES["bm25"]([Passage("a", "", "a")], folder)
    elif engine == "bm25":
        search = ENGINES["bm25"](passages, folder)
    else:
        return _vectors(engine, folder), VECTORS
    return lambda queries: search(queries, 10), len(passages)


def _vectors(method: str, folder: Path) -> Callable[[list[str]], Any]:
    """Open a search through drawn vectors by drawn queries."""
    from probers.rag.retrievers.dense import Neighbours, build

    file, where = folder / "vectors.f32", folder / f"vectors-{method}"
    rng = np.random.default_rng(0)
    if not file.exists():
        rng.standard_normal((VECTORS, WIDTH), dtype=np.float32).tofile(file)
    vectors = np.asarray(np.memmap(file, np.float32, "r", shape=(VECTORS, WIDTH)))
    if method != "flat" and not (where / "index.faiss").exists():
        where.mkdir(exist_ok=True)
        build(method, vectors, where)
    neighbours = Neighbours(method, vectors, where)
    return lambda queries: neighbours.search(rng.standard_normal((len(queries), WIDTH), dtype=np.float32), 10)


def as_process(engine: str, corpus: str, asked: str, folder: str) -> None:
    """Open an index, ask all questions, print their time, and stay until standard input ends."""
    queries = json.loads(Path(asked).read_text(encoding="utf-8"))
    search, count = opened(engine, Path(corpus), Path(folder))
    search(queries[:1])
    taken = []
    for query in queries:
        start = time.thread_time()
        search([query])
        taken.append(1000 * (time.thread_time() - start))
    print(json.dumps({"p50": float(np.median(taken)), "passages": count}), flush=True)
    sys.stdin.read()


@contextmanager
def processes(count: int, *job: str) -> Iterator[list[tuple[int, dict[str, Any]]]]:
    """Run so many processes with the index open; yield them with their output."""
    command = [sys.executable, __file__, "--as-process", *job]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                )
            )
            for _ in range(count)
        ]  # fmt: skip
        found = []
        for process in running:
            assert process.stdout is not None
            found.append((process.pid, json.loads(process.stdout.readline())))
        yield found
        for process in running:
            assert process.stdin is not None
            process.stdin.close()


def held(pid: int, folder: Path) -> dict[str, int]:
    """Count the bytes of a process: resident, proportional, and proportional of the folder's files."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kilobytes = {name: int(value) for name, value in re.findall(r"^(\w+): +(\d+) kB", rollup, re.MULTILINE)}
    files, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(folder) in line
        elif inside and line.startswith("Pss:"):
            files += int(line.split()[1])
    return {
        "resident": kilobytes["Rss"] * 1024, "proportional": kilobytes["Pss"] * 1024,
        "anonymous": kilobytes["Pss_Anon"] * 1024, "files": files * 1024,
    }  # fmt: skip


def measure(folder: Path, engine: str, corpus: Path, asked: Path, results: Results) -> None:
    """Add the rows of one index."""
    opened(engine, corpus, folder)  # made once, before processes share it
    for count in PROCESSES:
        with processes(count, engine, str(corpus), str(asked), str(folder)) as running:
            each = [held(pid, folder.resolve()) for pid, _ in running]
        total = {name: sum(one[name] for one in each) for name in each[0]}
        passages, p50 = running[0][1]["passages"], np.median([said["p50"] for _, said in running])
        name = f"{engine}, {passages:,}" if engine != NONE else engine
        results.row(
            "sharing", name if count == 1 else "", count, megabytes(total["resident"] / count),
            megabytes(total["proportional"]), megabytes(total["files"]), megabytes(total["anonymous"]),
            f"{milliseconds(p50)} ms" if engine != NONE else "",
        )  # fmt: skip


def main(argv: list[str]) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="passages.jsonl.gz and qa/*.jsonl")
    add("--sizes", type=numbers, default=[1_000_000], help="of corpora put together from the real passages")
    add("--folder", help="keep corpora and indexes here, and use those that are there")
    add("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    results = Results(HEADS)
    with tempfile.TemporaryDirectory(prefix="probers-sharing-") as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        real, asked = args.data / "passages.jsonl.gz", folder / "asked.json"
        lines = (args.data / "qa/nq.jsonl").read_text(encoding="utf-8").splitlines()
        asked.write_text(json.dumps([json.loads(line)["question"] for line in lines[:256]]), encoding="utf-8")
        measure(folder, NONE, real, asked, results)
        for engine in ("bm25", "flat", "hnsw", "ivfpq"):
            measure(folder, engine, real, asked, results)
        for size in args.sizes:
            corpus = folder / f"recombined-{size}.jsonl"
            if not corpus.exists():
                recombine(list(stored(real, folder)), size, corpus)
            measure(folder, "bm25", corpus, asked, results)
    results.note(
        "sharing",
        "256 real questions, asked one by one by each process, k=10, in seconds of a processor; the index in "
        "the page cache, which holds its files whether or not a process is there. flat, hnsw and ivfpq "
        f"are `retriever=dense` without its encoder, of drawn vectors of width {WIDTH}.",
    )
    publish({SECTION: results.body("sharing")}, invocation("sharing.py", argv), write=args.write)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-process"]:
        as_process(*sys.argv[2:])
    else:
        main(sys.argv[1:])
