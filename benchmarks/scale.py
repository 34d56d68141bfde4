"""Time, memory and disk of larger runs, each command in its own process, by number of articles.

``python benchmarks/scale.py [--only growth] [--sizes 1000,4000,16000] [--write]``. There is a section of
RESULTS.md for each value of ``--only``:

- growth: time, memory and disk of ``probers-datagen`` and ``probers-train`` on the testbed. The testbed's
  articles are repeated under other titles, and one entity of each is cut: the content of the labels does not
  matter here, only their number.
- parts: the same datagen in 1, 2 and 4 parts, one after the other, and the cost of merging them.
- rows: the cost of a store's rows without their states, which are tiny here: finishing it, opening it, and
  holding its table as training does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
from report import invocation, publish
from retrieval import megabytes, numbers, spell
from timing import Results

from probers import FeatureStore
from probers.cli import main as cli
from probers.store.files import COLUMNS
from probers.store.spec import FeatureSpec, ModelSpec
from probers.testbed.assets import load_articles

HEADS = {
    "parts": "articles | parts | labels | all parts, of a processor | the longest | memory | merge | memory",
    "rows": "a store is | in | memory | a million rows more: in | memory",
    "growth": "articles | labels | datagen | of a processor | labels/s | memory | store | train | memory",
}
TITLES = {
    "parts": "scale: one run in parts",
    "growth": "scale: growth with the number of articles",
    "rows": "scale: rows, whatever their states",
}
CUTS = (1, 2, 4)
#: Section rows: rows of the stores, rows of a shard, and characters of a prompt.
ROWS, SHARD, PROMPT = (50_000, 200_000), 256, 1000


@dataclass(frozen=True, slots=True)
class Ran:
    """Costs of a command: seconds, seconds of processors, and bytes of memory at its peak."""

    seconds: float
    processor: float
    memory: int


def run(*job: str) -> Ran:
    """Do a job of :func:`work` in its own process.

    Raises:
        SystemExit: it failed; its message is on standard error.
    """
    start = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--work", *job], stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(job)} ended with {done.returncode}")
    return Ran(seconds, **json.loads(done.stdout.splitlines()[-1]))


def work(kind: str, *job: str) -> None:
    """Run a command of the package, or a step with rows, and print its costs in this process."""
    if kind == "step":
        name, folder, count = job
        STEPS[name](Path(folder), int(count))
    else:
        cli.run(kind, list(job))
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss, which includes the process before it became this program.
    peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    print(json.dumps({"processor": used.ru_utime + used.ru_stime, "memory": peak}))


def write_articles(path: Path, count: int) -> Path:
    """Write so many articles of the testbed; after the last one they repeat under new titles."""
    articles = load_articles()
    with path.open("w", encoding="utf-8") as file:
        for number, article in enumerate(islice(cycle(articles), count)):
            turn = number // len(articles)
            title = f"{article.title} {turn}" if turn else article.title
            file.write(json.dumps({"title": title, "sentences": list(article.sentences)}) + "\n")
    return path


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def labelling(articles: Path, store: Path) -> list[str]:
    """List options of datagen; one entity of each article is cut."""
    given = [f"articles={articles}", f"out={store}"]
    return ["source=wiki", *given, "limit=null", "per_article=1", "max_new_tokens=12"]


def growth(folder: Path, sizes: Sequence[int], results: Results) -> None:
    """Run datagen and train once for each number of articles."""
    per_label: list[float] = []
    for size in sizes:
        store = folder / f"store-{size}"
        articles = write_articles(folder / f"articles-{size}.jsonl", size)
        made = run("datagen", *labelling(articles, store))
        labels = len(FeatureStore.open(store))
        trained = run("train", f"data={store}", f"out={folder}/prober-{size}", "learning_curve=false")
        per_label.append(made.processor / labels)
        results.row(
            "growth", f"{size:,}", f"{labels:,}", spell(made.seconds), spell(made.processor),
            f"{labels / made.seconds:.1f}", megabytes(made.memory), megabytes(bytes_of(store)),
            spell(trained.seconds), megabytes(trained.memory),
        )  # fmt: skip
    results.note(
        "growth",
        f"testbed, 12 layers of width 192, one cut of each article, 12 tokens at most, "
        f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '')}; each command from the start of Python to "
        "its end. train's passes over all heads take 1,024 rows at once, which the smaller runs do not have. "
        "Processor time per label at "
        f"{sizes[-1]:,} articles: {per_label[-1] / per_label[0]:.2f} times that at {sizes[0]:,}.",
    )


def parts(folder: Path, sizes: Sequence[int], results: Results) -> None:
    """Run datagen in parts, for each number of articles."""
    for size in sizes:
        articles = write_articles(folder / f"articles-{size}.jsonl", size)
        for count in CUTS:
            store = folder / f"store-{size}-{count}"
            typed = labelling(articles, store)
            if count == 1:
                made, merged = [run("datagen", *typed)], None
            else:
                made = [run("datagen", *typed, f"part={i}/{count}") for i in range(1, count + 1)]
                merged = run("merge", *map(str, sorted((store / "parts").iterdir())))
            times = [each.processor for each in made]
            cells = ["", ""] if merged is None else [spell(merged.processor), megabytes(merged.memory)]
            results.row(
                "parts", f"{size:,}", count, f"{len(FeatureStore.open(store)):,}", spell(sum(times)),
                spell(max(times)), megabytes(max(each.memory for each in made)), *cells,
            )  # fmt: skip
    results.note(
        "parts",
        "The testbed and the options of the growth with articles. A part reads all articles, loads the model "
        "and does its own; seconds are of a processor, from the start of Python to its end.",
    )


def begun(path: Path, count: int) -> FeatureStore:
    """Open a store of so many rows with a state of eight numbers each, new or to be resumed."""
    spec = FeatureSpec(ModelSpec("benchmark", "0", 1, 8, "float32"), (1,), 8)
    return FeatureStore.create(path, [spec], config={}, shards=-(-count // SHARD))


def write_rows(path: Path, first: int, count: int) -> FeatureStore:
    """Write such a store with all its shards, unfinished; rows are as long as those of spans."""
    store, rng = begun(path, count), np.random.default_rng(first)
    for index in store.missing:
        numbers = range(first + index * SHARD, first + min(count, (index + 1) * SHARD))
        letters = rng.integers(97, 123, (len(numbers), PROMPT), dtype=np.uint8)
        rows = [row(n, bytes(line).decode()) for n, line in zip(numbers, letters, strict=True)]
        store.write_shard(index, rows, np.zeros((len(rows), 1, 8), np.float32))
    return store


def row(number: int, prompt: str) -> dict[str, Any]:
    """Make a span's row, with all columns that a store has."""
    values = {str: "", int: 3, float: 0.5}
    split = (*["train"] * 8, "validation", "test")[number // 2 % 10]
    return {name: values[kind] for name, kind in COLUMNS.items()} | {
        "id": f"Title of article {number // 2}/{number}", "group": f"Title of article {number // 2}",
        "split": split, "correct": number % 2, "question": prompt, "text": prompt[:60],
        "answer": prompt[:15], "gold": prompt[20:35],
    }  # fmt: skip


#: Steps with a store, by their names in the table.
STEPS: dict[str, Callable[[Path, int], Any]] = {
    "resumed and finished": lambda where, count: begun(where / "all", count).finish(),
    "opened, sizes compared": lambda where, _: FeatureStore.open(where / "all", checksums=False),
    "opened, all bytes compared": lambda where, _: FeatureStore.open(where / "all"),
    "table in memory": lambda where, _: FeatureStore.open(where / "all", checksums=False).table(),
}


def rows(folder: Path, _: Sequence[int], results: Results) -> None:
    """Run every step with two sizes; extrapolate to a million more rows by the line through both."""
    found: dict[str, list[Ran]] = {name: [] for name in STEPS}
    for size in ROWS:
        where = folder / f"rows-{size}"
        write_rows(where / "all", 0, size)
        for name, ran in found.items():
            ran.append(run("step", name, str(where), str(size)))
    more = 1e6 / (ROWS[1] - ROWS[0])
    for name, (small, large) in found.items():
        results.row(
            "rows", name, spell(large.processor), megabytes(large.memory),
            spell(max(0.0, large.processor - small.processor) * more),
            megabytes((large.memory - small.memory) * more),
        )  # fmt: skip
    results.note(
        "rows",
        f"{ROWS[1]:,} rows in shards of {SHARD}, a prompt of {PROMPT:,} random letters each; a million more "
        f"by the line through {ROWS[0]:,} and {ROWS[1]:,}. Files in the page cache; "
        "seconds of the processor, memory with mapped files.",
    )


SECTIONS: dict[str, Callable[[Path, Sequence[int], Results], None]] = {
    "growth": growth,
    "parts": parts,
    "rows": rows,
}


def main(argv: list[str]) -> None:
    """Measure, print, and write the sections if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--only", type=lambda text: text.split(","), default=list(SECTIONS), help=", ".join(SECTIONS))
    add("--sizes", type=numbers, default=[1000, 4000, 16_000], help="articles, separated by commas")
    add("--folder", help="work here, and keep what is made")
    add("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    results = Results(HEADS)
    with tempfile.TemporaryDirectory(prefix="probers-scale-") as temporary:
        folder = Path(args.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.only:
            SECTIONS[name](folder, args.sizes, results)
    bodies = {TITLES[name]: results.body(name) for name in args.only}
    publish(bodies, invocation("scale.py", argv), write=args.write)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main(sys.argv[1:])
