"""Training of all layers in one pass, against one layer after another and against one alone.

``python benchmarks/train.py --data runs/datagen/cot`` measures, with the default head and settings:

- a synthetic store of Gemma-2B's shape: one pass over its layers; layers one by one; the time of the parts of
  a step; the same heads in a bare loop, and the time of arithmetic and memory traffic alone;
- the store in ``--data``, with the command itself: ``layer=all`` against ``layer=1``, ``layer=2``, ...

Every training runs in its own process, in turn, so a slow moment of the machine affects all of them.
Stores are in the page cache when the clock starts. Long trainings run ``--steps`` optimiser steps with
all validations; the steps left out are added at the mean of those that ran.

The synthetic stores (2.9 GB with the defaults; a second one of half the size shows that memory does not grow)
are made once in ``--folder`` and stay there. Needs Linux.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from clock import PARTS
from fits import measure
from flags import natural, positive
from synthetic import SHARD, synthetic, warm

from probers import FeatureStore

#: Targets: one pass against all layers one by one, one pass against one layer, share of waiting for data.
FASTER, SLOWER, WAITING = 4.0, 4.0, 0.10
COLUMNS = ("store", "what", "measured", "compared with", "ratio", "aim", "verdict")


#: Rows and notes.
Found = tuple[list[list[str]], list[str]]


def main(argv: Sequence[str]) -> None:
    args, load = parse(argv), os.getloadavg()[0]
    title = f"synthetic, {args.examples:,} x {args.layers} x {args.width}"
    sizes = args.examples, args.examples // 2
    stores = [synthetic(Path(args.folder), size, args.layers, args.width) for size in sizes]
    for store in stores:
        warm(store)
    rows, notes = big(title, stores, range(1, args.layers + 1), args)
    if args.data:
        warm(Path(args.data))
        more = real(Path(args.data))
        rows, notes = rows + more[0], notes + more[1]
    rows.append(passes(args.examples))
    notes.append(f"Load {load:.1f} before and {os.getloadavg()[0]:.1f} after.")
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    body = "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", *(f"- {note}" for note in notes)])
    print(body)
    if args.write:
        from report import invocation, write_section

        write_section("train", invocation("train.py", argv), body)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--data", help="a real feature store, e.g. runs/datagen/cot; none: the synthetic one alone")
    add("--examples", type=positive, default=26_060)
    add("--layers", type=positive, default=18)
    add("--width", type=positive, default=2048)
    add("--steps", type=natural, default=160, help="optimiser steps to take of each training; 0 takes all")
    add("--alone", type=positive, default=3, help="layers of the synthetic store to train one by one")
    add("--rounds", type=positive, default=2, help="one-pass trainings; the mean is shown")
    add("--folder", default="runs/benchmark-train", help="for the synthetic stores, which stay there")
    add("--write", action="store_true", help="put the table into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    args.alone = min(args.alone, args.layers)
    if args.data and not (Path(args.data) / "manifest.json").exists():
        parser.error(f"--data {args.data} is no feature store: probers-datagen makes one")
    return args


def big(title: str, stores: Sequence[Path], layers: Sequence[int], args: argparse.Namespace) -> Found:
    """Make rows and notes of the synthetic store, from the trainings alone, without starting Python."""
    chosen = [layers[i] for i in np.linspace(0, len(layers) - 1, args.alone).round().astype(int)]
    every, alone = [], []
    for turn in range(max(args.rounds, len(chosen))):
        if turn < len(chosen):
            alone.append(trained_on(stores[0], chosen[turn : turn + 1], args.steps))
        if turn < args.rounds:
            every.append(trained_on(stores[0], layers, args.steps))
    one_pass, single = mean(every, "seconds"), mean(alone, "seconds")
    sums = f"{len(layers)} trainings, from {len(chosen)} of them (layers {', '.join(map(str, chosen))})"
    rows = ratios(title, len(layers), one_pass, single, single * len(layers), sums)
    names = f"{len(layers)} layers", "one layer"
    for name, runs in zip(names, (every, alone), strict=True):
        rows += parts(title, name, runs)
    rows += memory(title, stores, layers)
    bare = []
    for name, heads, runs in ((names[0], len(layers), every), (names[1], 1, alone)):
        threads = runs[0]["threads"]
        loop = measure("plain", heads=heads, width=args.width, steps=args.steps or 100, threads=threads)
        bare.append(loop)
        here = mean(runs, "step")
        what = f"{name}: a step in a bare loop, no trainer, states in memory"
        took = f"{_ms(loop['step'])}: {_percent(loop['parts'], loop['step'])}"
        rows.append([title, what, took, f"{_ms(here)} in the trainer", f"{loop['step'] / here:.2f}", "", ""])
    taken, of = every[0]["taken"], every[0]["of"]
    scaled = "all were taken" if taken == of else "the others are added at their mean"
    floor = max(bare[0]["arithmetic"], bare[0]["traffic"]) / mean(alone, "step")
    notes = [
        f"{title}: shards of {SHARD} rows, float16, memory-mapped, in the page cache. {taken:,} of {of:,} "
        f"steps, {scaled}; all validations. Seconds cover the training alone. "
        f"Validation accuracy: {mean(every, 'accuracy'):.2f}, the mean of {len(layers)} layers.",
        *(bounds(name, loop, runs[0]) for name, loop, runs in zip(names, bare, (every, alone), strict=True)),
        f"{len(layers)} layers against one: {bare[0]['step'] / bare[1]['step']:.1f} times the time of a step "
        f"in the bare loop; {floor:.1f} times the step of one layer in the trainer, if a step took the least "
        "time.",
    ]
    return rows, notes


def bounds(name: str, loop: dict[str, Any], run: dict[str, Any]) -> str:
    """Describe the least time of a step."""
    return (
        f"{name}, {run['parameters'] / 1e6:.1f} million parameters, {run['threads']} thread(s): the least "
        f"time of a step is {_ms(loop['arithmetic'])} of arithmetic at {loop['flops'] / 1e9:.0f} GFLOP/s, "
        f"and {_ms(loop['traffic'])} of memory traffic at {loop['bandwidth'] / 1e9:.0f} GB/s if it all goes "
        "past the caches; both speeds were measured here with as many threads."
    )


def real(data: Path) -> Found:
    """Make rows and notes of a real store, from whole commands, start to pictures, and their trainings."""
    store = FeatureStore.open(data)
    layers = [k for k in store.spec.layers if k > 0]
    title = f"{data.name}, {len(store.table()):,} x {len(layers)} x {store.spec.width}"
    alone = []
    for place, k in enumerate(layers):
        if place == len(layers) // 2:  # in the middle of the others
            whole = command(data, "all")
        alone.append(command(data, str(k)))
    rows = []
    for i, (what, sums) in enumerate(
        (
            ("command", f"{len(layers)} commands"),
            ("training in it", f"the trainings of {len(layers)} commands"),
        )
    ):
        total = sum(run[i] for run in alone)
        rows += ratios(title, len(layers), whole[i], total / len(layers), total, sums, what)
    for name, chosen in ((f"{len(layers)} layers", layers), ("one layer", layers[len(layers) // 2 :][:1])):
        rows += parts(title, name, [trained_on(data, chosen, 0)])
    rows += memory(title, [data], layers)
    notes = [
        f"{title}: `probers-train layer=.. learning_curve=false`, all steps, from the start of Python to the "
        "last picture; the training is what the command says it took, in whole seconds. Every command trains "
        "its controls as well: heads on shuffled labels, on whether the answer is a person, and on the "
        "embedding where the store has it. Steps and memory are those of the heads without controls."
    ]
    return rows, notes


def trained_on(store: Path, layers: Sequence[int], steps: int, device: str = "auto") -> dict[str, Any]:
    """Measure one training."""
    _say(f"{store.name}: layer {layers[0]} alone" if len(layers) == 1 else f"{store.name}: one pass")
    return measure("fit", store=str(store), layers=list(layers), steps=steps, device=device)


def command(data: Path, layer: str) -> tuple[float, float]:
    """Time a whole command, and the training in it, in seconds."""
    _say(f"probers-train layer={layer}")
    program = str(Path(sys.executable).with_name("probers-train"))
    with tempfile.TemporaryDirectory(prefix="probers-train-") as out:
        options = [f"layer={layer}", "learning_curve=false", f"data={data.resolve()}", f"out={out}/prober"]
        start = time.perf_counter()
        done = subprocess.run([program, *options], cwd=out, check=True, stdout=subprocess.PIPE, text=True)
        seconds = time.perf_counter() - start
    return seconds, trained(done.stdout)


def trained(said: str) -> float:
    """Read the seconds of the training from the command's output."""
    found = re.search(r"\(trained in (\d+(?:\.\d+)?) s\)", said)
    if found is None:
        raise SystemExit(f"the command did not say how long it trained:\n{said}")
    return float(found[1])


def ratios(
    title: str, layers: int, one_pass: float, single: float, total: float, sums: str, what: str = "training"
) -> list[list[str]]:
    """Compare one pass with all layers one by one, and with one layer alone."""
    first = [title, f"{what}, {layers} layers in one pass", f"{one_pass:.1f} s"]
    return [
        [*first, f"{total:.1f} s, {sums}", *verdict(total / one_pass, FASTER, at_least=True)],
        [*first, f"{single:.1f} s, one layer", *verdict(one_pass / single, SLOWER, at_least=False)],
    ]


def parts(title: str, name: str, runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """List the parts of a step, the share of it that waits for data, and the validations."""
    step, validation, whole = (mean(runs, n) for n in ("step", "validation", "seconds"))
    shares = {p: statistics.mean(run["parts"][p] for run in runs) for p in (*PARTS, "trainer")}
    waiting = verdict(shares["data"] / step, WAITING, at_least=False)
    return [
        [title, f"{name}: a step", f"{_ms(step)}: {_percent(shares, step)}", "", "", "", ""],
        [title, f"{name}: waiting for data", f"{_ms(shares['data'])} a step", "the step", *waiting],
        [
            title,
            f"{name}: validations",
            f"{validation:.1f} s",
            "the training",
            f"{validation / whole:.2f}",
            "",
            "",
        ],
    ]


def memory(title: str, stores: Sequence[Path], layers: Sequence[int]) -> list[list[str]]:
    """Measure peak memory of one pass over each store; for the smaller store show the ratio to the first."""
    rows: list[list[str]] = []
    first = 0
    for store in stores:
        _say(f"{store.name}: memory")
        grown = measure("memory", store=str(store), layers=list(layers), steps=24)
        size = sum(f.stat().st_size for f in store.glob("shards/*.safetensors"))
        what = f"{len(layers)} layers: peak memory, a store of {size / 1e6:,.0f} MB"
        took = f"{grown['anonymous'] / 1e6:.0f} MB anonymous, {grown['mapped'] / 1e6:.0f} MB file-backed"
        against = ["", ""]
        if rows:
            against = [
                f"{first / 1e6:.0f} MB anonymous, the whole store",
                f"{grown['anonymous'] / first:.2f}",
            ]
        first = first or grown["anonymous"]
        rows.append([title, what, took, *against, "", ""])
    return rows


def passes(examples: int, epochs: int = 2, layers: int = 6) -> list[str]:
    """Note that the released procedure runs the model for every text, epoch and layer; here it never runs."""
    what = f"{examples:,} texts, {epochs} epochs, {layers} layers"
    counted = f"{examples * epochs * layers:,} in the released Probing-RAG code"
    return [what, "forward passes of the language model, counted", "0", counted, "", "", ""]


def verdict(ratio: float, aim: float, *, at_least: bool) -> list[str]:
    met = ratio >= aim if at_least else ratio <= aim
    return [f"{ratio:.2f}", f"{'>=' if at_least else '<='} {aim:g}", "met" if met else "**not met**"]


def mean(runs: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.mean(run[name] for run in runs)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.01 else f"{1e3 * seconds:.1f} ms"


def _percent(shares: dict[str, float], step: float) -> str:
    return ", ".join(f"{name} {100 * value / step:.0f}%" for name, value in shares.items())


def _say(what: str) -> None:
    print(f"{what} ...", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
