"""Growth of cost with size: exponents against layers, width, streams, passages, texts and rows of a store.

    python benchmarks/growth.py

Cost grows as a power of the size; its exponent is the slope of a straight line through the logarithms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labels import ours
from results import Results, Section, options, script, spread
from retrieval import questions, recombine, stored
from workload import SHAPES, Shape, build, long_prompts, synthetic

from probers import CausalLM, FeatureStore
from probers.rag.retrievers import BM25
from probers.types import Needs

#: Sizes, by what grows.
SIZES = {
    "layers": (4, 8, 16), "width": (256, 512, 1024), "streams": (1, 4, 16),
    "passages": (5_000, 20_000, 80_000), "texts": (20, 40, 80), "rows": (5_000, 20_000, 80_000),
}  # fmt: skip
SMALL = {
    "layers": (1, 2), "width": (32, 64), "streams": (1, 2), "passages": (50, 100), "texts": (1, 2),
    "rows": (600, 1200),
}  # fmt: skip


def shaped(layers: int, width: int) -> CausalLM:
    """Make a Llama of random weights."""
    SHAPES["grown"] = Shape("random", layers, width, 4, 2 * width, 2048)
    return build("grown", torch.device("cpu"))


def written(lm: CausalLM, streams: int) -> Callable[[], Any]:
    """Return work that writes texts and records all layers."""
    needs = Needs.of(tuple(range(1, lm.num_layers + 1)))
    prompts = long_prompts(lm.tokenizer, streams, 64)
    lm.generate(prompts, max_new_tokens=2, needs=needs)
    return lambda: lm.generate(prompts, max_new_tokens=16, needs=needs)


def opened(path: Path) -> FeatureStore:
    """Open a store as if for the first time."""
    (path.parent / f".{path.name}.checked.json").unlink(missing_ok=True)
    return FeatureStore.open(path)


def searches(
    folder: Path, sizes: Sequence[int], args: argparse.Namespace
) -> dict[str, list[Callable[[], Any]]]:
    """Return work that makes an index, and that searches it."""
    real = list(stored(args.data / "passages.jsonl.gz", folder))
    queries, works = questions(args.data, 32), dict[str, list[Callable[[], Any]]]()
    for size in sizes:
        recombine(real, size, corpus := folder / f"{size}.jsonl")
        passages = stored(corpus, folder)
        index = BM25(passages, cache=folder / "bm25")
        index.search(queries, 10)
        works.setdefault("BM25: 32 queries", []).append(partial(index.search, queries, 10))
        works.setdefault("BM25: making the index", []).append(partial(_made, passages))
    return works


def _made(passages: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        BM25(passages, cache=Path(folder))


def measure_growth(results: Results, args: argparse.Namespace) -> None:
    """Time every kind of work at its sizes, and add a row with its exponent."""
    sizes = SMALL if args.quick else SIZES
    with tempfile.TemporaryDirectory(prefix="probers-growth-") as name:
        folder = Path(name)
        add = partial(exponent, results, args.rounds)
        four = shaped(4, 256)
        add("a text of 16 tokens, all layers recorded", "layers", sizes["layers"],
            [written(shaped(n, 256), 1) for n in sizes["layers"]])  # fmt: skip
        add("the same", "width", sizes["width"], [written(shaped(4, n), 1) for n in sizes["width"]])
        add("all texts of a batch", "streams", sizes["streams"], [written(four, n) for n in sizes["streams"]])
        lm = CausalLM.from_pretrained("testbed")
        ours(lm, "testbed", 1)
        add(
            "labels into a store",
            "texts",
            sizes["texts"],
            [partial(ours, lm, "testbed", n) for n in sizes["texts"]],
        )
        stores = [synthetic(folder, count, 1, 8) for count in sizes["rows"]]
        steps: dict[str, Callable[[Path], Any]] = {
            "opening a store, all bytes compared": opened,
            "its table in memory": lambda path: FeatureStore.open(path, checksums=False).table(),
        }
        for what, step in steps.items():
            add(what, "rows of a store", sizes["rows"], [partial(step, path) for path in stores])
        if (args.data / "passages.jsonl.gz").is_file():
            for what, work in searches(folder, sizes["passages"], args).items():
                add(what, "passages", sizes["passages"], work)
        else:
            results.row("growth", f"skipped: {args.data} holds no passages.jsonl.gz")


def exponent(
    results: Results,
    rounds: int,
    what: str,
    grows: str,
    sizes: Sequence[int],
    works: Sequence[Callable[[], Any]],
) -> None:
    """Add a row: seconds at the largest size, and the exponent, by rounds."""
    largest, slopes = list[float](), list[float]()
    for _ in range(rounds):
        seconds = []
        for work in works:
            begun = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begun)
        largest.append(seconds[-1])
        slopes.append(float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]))
    shown = ", ".join(f"{size:,}" for size in sizes)
    results.row("growth", grows, shown, what, spread(largest), spread(slopes))


SECTIONS = {
    "growth": Section(
        "Growth", "grows | sizes | cost | seconds at the largest | exponent", measure_growth, 240,
        "1 is a cost in proportion to the size; below it, something is shared or fixed.",
    )
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest sizes, to try it")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
