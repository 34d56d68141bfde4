"""Training of all layers' heads in one pass, against one layer after another and against one alone.

    python benchmarks/train.py [--examples 2600] [--layers 12] [--width 576]

On a synthetic feature store of a model's shape, with the default head and settings; every training in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import Results, Section, options, positive, ratios, script, spread, verdict
from workload import synthetic

from probers import FeatureStore
from probers.heads import ProbingRagHead
from probers.train import heads
from probers.train.data import Column, Dataset, StoreStates
from probers.train.examples import load_examples
from probers.train.settings import Fitting

#: Targets: one pass against all layers one by one, and against one layer.
FASTER, SLOWER = 4.0, 4.0


def fit(store: Path, layers: Sequence[int], device: str = "auto") -> dict[str, Any]:
    """Train the default heads of some layers; return seconds, seconds per step, and validation accuracy."""
    opened, settings = FeatureStore.open(store), Fitting(device=device)
    tasks = [heads.Task(Column(opened.spec.site, k)) for k in layers]
    columns: list[Column] = [task.column for task in tasks]
    examples = load_examples([opened])
    dataset = Dataset(examples, StoreStates([opened], columns), columns, {opened.spec.site: opened.spec})
    fitted = heads.train_heads(ProbingRagHead, tasks, dataset, settings)
    return {
        "seconds": fitted.seconds, "step": fitted.seconds / max(1, fitted.steps),
        "accuracy": float(fitted.accuracy.mean()),
        "parameters": sum(p.numel() for p in fitted.head.parameters()),
    }  # fmt: skip


def measure_train(results: Results, args: argparse.Namespace) -> None:
    """Compare one pass with single layers, in turn."""
    layers = range(1, args.layers + 1)
    runs: dict[str, list[dict[str, Any]]] = {"all": [], "one": []}
    with tempfile.TemporaryDirectory(prefix="probers-train-") as folder:
        store = synthetic(Path(folder), args.examples, args.layers, args.width)
        fit(store, layers[:1], args.device)  # reads the store, and loads code of the first use
        for turn in range(args.rounds):
            alone = layers[(2 * turn + 1) * args.layers // (2 * args.rounds)]
            runs["all"].append(fit(store, layers, args.device))
            runs["one"].append(fit(store, [alone], args.device))
    whole, one = ([run["seconds"] for run in runs[name]] for name in ("all", "one"))
    faster = ratios([args.layers * each for each in one], whole)
    slower = ratios(whole, one)
    shape = f"{args.examples:,} x {args.layers} x {args.width}"
    step = spread([1000 * run["step"] for run in runs["all"]], 1)
    results.row(
        "train", shape, spread(whole, 1), step, "one layer after another, times as long", spread(faster),
        f">= {FASTER:g}", verdict(statistics.median(faster) >= FASTER),
    )  # fmt: skip
    results.row(
        "train", shape, spread(whole, 1), step, "one layer alone, of whose time", spread(slower),
        f"<= {SLOWER:g}", verdict(statistics.median(slower) <= SLOWER),
    )  # fmt: skip
    results.note(
        "train",
        f"{runs['all'][0]['parameters'] / 1e6:.1f} million parameters; validation accuracy "
        f"{runs['all'][0]['accuracy']:.2f}; single layers from the beginning, middle and end; {args.rounds} "
        f"rounds. "
        "The language model never runs: the released Probing-RAG code runs it for every text, epoch and "
        "layer.",
    )


SECTIONS = {
    "train": Section(
        "Training of all layers' heads",
        "store | one pass, s | a step, ms | against | ratio | target | verdict",
        measure_train,
        150,
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--examples", type=positive, default=2600)
    parser.add_argument("--layers", type=positive, default=12)
    parser.add_argument("--width", type=positive, default=576)
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
