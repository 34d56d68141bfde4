"""Cost of states in 8 bits: AUROC of heads trained and scored in fp8, compared with the same run in float16.

``python benchmarks/fp8.py [--data ../shared/data] [--write]``. Each run is made once, in float16. Its fp8
store has the same rows, rounded, so rounding is the only difference. The last column shows the effect of
another training seed, as a yardstick.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from flags import positive
from report import invocation, publish
from timing import Results

from probers import FeatureStore
from probers.bank.bank import Prober
from probers.commands import main as cli
from probers.evaluation.bootstrap import Bootstrap, Sample
from probers.evaluation.metrics import auroc

SECTION = "fp8: what states in 8 bits cost"
HEADS = {
    "fp8": "run | test texts, wrong | AUROC of | float16 | fp8 minus float16 (95%) | another seed (95%)",
}


def runs(data: Path, scale: int) -> dict[str, list[str]]:
    """List the options of each run; ``scale`` divides the numbers of questions and articles."""
    of = lambda limit: f"limit={max(1, limit // scale)}"  # noqa: E731
    return {
        "testbed, questions": ["source=cot", of(600)],
        "testbed, articles": ["source=wiki", of(400)],
        "SmolLM2, questions": [
            "source=cot", of(150), f"questions={data}/qa/nq.jsonl", "questions.splits=deal",
            "prompt=chat", "label=acc", "k=1", "max_new_tokens=32", "model=smollm2",
            f"corpus={data}/passages.jsonl.gz",
        ],
        "SmolLM2, articles": [
            "source=wiki", of(250), f"articles={data}/wiki_articles.jsonl", "prompt=mind", "within=null",
            "on_bad_line=skip", "model=smollm2",
        ],
    }  # fmt: skip


def converted(store: FeatureStore, out: Path, dtype: str) -> FeatureStore:
    """Copy the rows with their states in another number format."""
    features = [replace(spec, dtype=dtype) for spec in store.features]
    made = FeatureStore.create(out, features, config=store.config, shards=store.shards)
    for index in made.missing:
        rows, states, units, left_out = store.read_shard(index)
        made.write_shard(index, rows, *states, units=units, left_out=left_out)
    made.finish(store.summary)
    return FeatureStore.open(out)


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a prober on the test texts of its store: with all layers, and with one on average."""

    ensemble: Sample
    one: Sample

    def minus(self, other: Measured) -> Measured:
        return Measured(self.ensemble.minus(other.ensemble), self.one.minus(other.one))


def trained(store: FeatureStore, out: Path, seed: int) -> Measured:
    """Train a prober like the command, and measure it with the states of the same store."""
    cli.run("train", [f"data={store.path}", f"out={out}", f"seed={seed}", "learning_curve=false"])
    bank = Prober.from_pretrained(out)
    table = store.table()
    test = np.flatnonzero(table["split"] == "test")
    wrong = 1 - table["correct"].to_numpy()[test]
    margins = bank.margins(store.states(bank.layers, test))
    drawn = Bootstrap(table["group"].to_numpy()[test])
    each = [drawn.sample(column, partial(auroc, wrong)) for column in margins.T]
    ensemble = drawn.sample(bank.ensemble(margins), partial(auroc, wrong))
    mean = Sample(float(np.mean([s.value for s in each])), np.mean([s.drawn for s in each], axis=0))
    return Measured(ensemble, mean)


def shown(sample: Sample) -> str:
    value, low, high = sample.interval
    return f"{value:+.4f} ({low:+.4f} to {high:+.4f})"


def rounding(half: FeatureStore, eight: FeatureStore) -> tuple[float, float]:
    """Compute rounding error over spread of states after a run's first layer: median and largest by layer."""
    found = []
    for layer in half.spec.layers[1:]:
        exact = half.layer(layer).astype(np.float32)
        error = eight.layer(layer) - exact
        spread = np.maximum(exact.std(axis=0), 1e-6)
        found.append(float(np.sqrt(np.mean((error / spread) ** 2))))
    return float(np.median(found)), max(found)


def state_bytes(store: FeatureStore) -> int:
    return sum(file.stat().st_size for file in store.path.glob("shards/*.safetensors"))


def measure(folder: Path, name: str, options: Sequence[str], results: Results) -> None:
    """Make one run unless it exists, train on it in both formats, and add its rows to the table."""
    path = folder / name.replace(", ", "-")
    cli.run("datagen", [*options, f"out={path}"])
    half = FeatureStore.open(path)
    eight = converted(half, path.with_name(f"{path.name}-fp8"), "fp8")
    probers = folder / "probers"
    first = trained(half, probers / path.name, 0)
    in_eight = trained(eight, probers / eight.path.name, 0).minus(first)
    reseeded = trained(half, probers / f"{path.name}-seed-1", 1).minus(first)
    test = half.table().query("split == 'test'")
    about = f"{len(test)}, {1 - test['correct'].mean():.2f}"
    for what in ("ensemble", "one"):
        label = "all layers" if what == "ensemble" else f"one layer, mean of {len(half.spec.layers) - 1}"
        cells = [shown(getattr(each, what)) for each in (in_eight, reseeded)]
        results.row("fp8", name, about, label, f"{getattr(first, what).value:.4f}", *cells)
        name = about = ""
    typical, most = rounding(half, eight)
    results.note(
        "fp8",
        f"{path.name.replace('-', ', ')}: {state_bytes(half) / 1e6:.1f} MB of states in float16, "
        f"{state_bytes(eight) / 1e6:.1f} MB in fp8; rounding moves a coordinate by {typical:.3f} of its "
        f"standard deviation (root mean square; median layer, at most {most:.3f}).",
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"), help="folder of the real text")
    add("--only", help="runs whose name has this in it")
    add("--scale", type=positive, default=1, help="divides the numbers of questions and articles")
    add("--folder", help="keep stores and probers here, and use those that are there")
    add("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    results = Results(HEADS)
    with tempfile.TemporaryDirectory(prefix="probers-fp8-") as temporary:
        folder = Path(args.folder or temporary)
        for name, options in runs(args.data, args.scale).items():
            if args.only is None or args.only in name:
                measure(folder, name, options, results)
    results.note(
        "fp8",
        "`probers-train` with its defaults but for the learning curve. Intervals are of the paired "
        "difference, 1,000 resamples of whole articles or questions; the same texts, splits and seed.",
    )
    publish({SECTION: results.body("fp8")}, invocation("fp8.py", argv), write=args.write)


if __name__ == "__main__":
    main(sys.argv[1:])
