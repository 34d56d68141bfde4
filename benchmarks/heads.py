"""Cost of heads: scoring each token that a model writes, and training on spans of tokens.

``python benchmarks/heads.py`` writes a table for each part (``--only``):

- scoring: milliseconds per token of ``--batch`` texts that the model writes together, by plain transformers'
  ``generate``, and the milliseconds that each kind of head adds, fed token by token as by the server. The
  states are recorded beforehand, so that both are timed alone, by turns.

- training: minutes of ``probers-train`` on 10,000 spans of four tokens, two passes, by kind of head, one
  after the other on the same store of random states.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from synthetic import SHARD, warm
from timing import Results, by_turns, ratios, spread, verdict

from probers import CausalLM, FeatureStore, Needs, Prober
from probers.heads import HEADS as KINDS
from probers.online.scores import GrowingScores
from probers.store.spec import FeatureSpec, ModelSpec
from probers.train.data import Column, Dataset
from probers.train.heads import probe_tasks
from probers.train.heads import train_heads as fit
from probers.train.settings import Fitting

MOST = 0.05  # largest share of a token's time that a sequence head may add
MINUTES = 5.0
SPANS = 10_000
#: Tokens of a text in the training part: spans of four, each after six unjudged tokens.
_SPAN, _BETWEEN, _TEXT = 4, 6, 8
_TEXTS = (
    "The lighthouse of Alexandria was", "In 1871 the chemist", "The river Danube rises in",
    "Her second novel, published in", "The treaty was signed by", "The first railway in Norway",
    "Among the moons of Jupiter", "The composer was born in",
)  # fmt: skip
HEADS = {
    "heads: scoring": "head | layers | parameters | ms a token | share of a token",
    "heads: training": "head | layers | minutes | spans a second",
}


def main(argv: list[str]) -> None:
    args = parse(argv)
    results = Results(HEADS)
    if args.only in (None, "scoring"):
        scoring(args, results)
    if args.only in (None, "training"):
        with tempfile.TemporaryDirectory(prefix="probers-heads-") as temporary:
            training(args, Path(args.folder or temporary), results)
    for section in results.rows:
        print(f"## {section}\n\n{results.body(section)}\n")
        if args.write:
            from report import invocation, write_section

            write_section(section, invocation("heads.py", argv), results.body(section))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", default="smollm2")
    add("--layers", type=int, default=8, help="layers that are read, evenly spaced")
    add("--batch", type=int, default=8, help="scoring: texts that are written together")
    add("--tokens", type=int, default=64, help="scoring: tokens of each")
    add("--spans", type=int, default=SPANS, help="training: spans")
    add("--width", type=int, default=576, help="training: width of the states")
    add("--rounds", type=int, default=None, help="scoring: rounds, by turns")
    add("--only", choices=["scoring", "training"], help="this part alone")
    add("--folder", help="keep the store here, and use one that is there")
    add("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    return parser.parse_args(argv)


def make(name: str, layers: int, width: int) -> Any:
    """Make untrained heads of a kind: one for each layer, or one of all."""
    kind = KINDS[name]
    return kind(["all"], width, layers) if kind.joint else kind(list(map(str, range(layers))), width)


def scoring(args: argparse.Namespace, results: Results) -> None:
    section = "heads: scoring"
    lm = CausalLM.from_pretrained(args.model)
    depth = lm.spec.layers
    layers = tuple(sorted({round((i + 1) * depth / args.layers) for i in range(args.layers)}))
    prompts = [_TEXTS[i % len(_TEXTS)] for i in range(args.batch)]
    written = lm.generate(prompts, max_new_tokens=args.tokens, needs=Needs.of(layers, pool="tokens"))
    count = min(len(generation.token_ids) for generation in written)
    states = torch.stack([torch.from_numpy(g.state[:count]) for g in written])
    spec = FeatureSpec(lm.spec, layers, lm.spec.width, pool="tokens", position="token")
    given = lm.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left").to(lm.device)
    how = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
    banks = {
        name: Prober(spec, make(name, len(layers), lm.spec.width), aggregate="max")
        for name in ("linear", "radio", "concat", "sequence")
    }

    def score(bank: Prober) -> float:
        growing, last = GrowingScores(bank), 0.0
        for token in range(count):
            (last, *_) = growing.add_each(range(args.batch), states[:, token])
        return last

    work = {"generate": lambda: lm.model.generate(**given, **how)}
    work |= {name: partial(score, bank) for name, bank in banks.items()}
    seconds, _ = by_turns(work, warm=work, least=3, exactly=args.rounds, device=lm.device)
    plain = seconds.pop("generate")
    results.row(section, "none: plain generate", "", "", spread([1000 * s / count for s in plain]))
    for name, times in seconds.items():
        size = sum(p.numel() for p in banks[name].head.parameters())
        share = ratios(times, plain)
        met = f", {verdict(max(share) <= MOST)}" if name == "sequence" else ""
        cells = spread([1000 * s / count for s in times]), f"{spread(share, 3)}{met}"
        results.row(section, name, len(layers), f"{size:,}", *cells)
    told = f"{args.batch} texts of {count} tokens by {args.model} in {lm.spec.dtype}"
    threads = f"{torch.get_num_threads()} threads"
    results.note(section, f"{told}, {threads}; median of the rounds, with the lowest and the highest")
    results.note(section, f"target: a sequence head adds at most {MOST:.0%} in every round")


def training(args: argparse.Namespace, folder: Path, results: Results) -> None:
    section = "heads: training"
    path = made(folder, args.spans, args.layers, args.width)
    warm(path)
    data = Dataset.load([FeatureStore.open(path)])
    columns = [Column("resid_post", layer) for layer in range(1, args.layers + 1)]
    for name in ("linear", "radio", "concat", "sequence"):
        tasks = probe_tasks(columns, [0], joint=KINDS[name].joint)
        begun = time.perf_counter()
        fit(KINDS[name], tasks, data, Fitting(loss="span_max", batch_size=32, device="cpu"))
        seconds = time.perf_counter() - begun
        met = f" ({verdict(seconds <= 60 * MINUTES)})" if name == "sequence" else ""
        speed = f"{2 * args.spans / seconds:,.0f}"
        results.row(section, name, args.layers, f"{seconds / 60:.2f}{met}", speed)
    told = f"{args.spans:,} training spans of {_SPAN} tokens, {_BETWEEN} others before each"
    validated = "four validations in each on a tenth as many spans"
    results.note(section, f"{told}, width {args.width}; two passes, {validated}, loss=span_max")
    results.note(section, f"target: a sequence head takes at most {MINUTES:g} minutes for {SPANS:,} spans")


def made(folder: Path, spans: int, layers: int, width: int) -> Path:
    """Make a store of so many training spans with random states; a tenth is for validation and test each."""
    path = folder / f"tokens-{spans}x{layers}x{width}"
    texts = -(-spans * 12 // (10 * _TEXT))
    model, every = ModelSpec("benchmark", "0", layers, width, "float32"), tuple(range(1, layers + 1))
    spec = FeatureSpec(model, every, width, pool="tokens", position="token")
    per_shard = max(1, 16 * SHARD // (_TEXT * (_SPAN + _BETWEEN)))
    store = FeatureStore.create(path, [spec], config={}, shards=-(-texts // per_shard))
    for index in store.missing:
        rng = np.random.default_rng(index)
        numbers = range(index * per_shard, min(texts, (index + 1) * per_shard))
        rows = [row for number in numbers for row in rows_of(number, rng.integers(0, 2, _TEXT))]
        states = rng.standard_normal((len(rows), layers, width), dtype=np.float32)
        store.write_shard(index, rows, states)
    store.finish()
    return path


def rows_of(text: int, wrong: np.ndarray) -> list[dict[str, Any]]:
    """Make the rows of a text: spans of the given labels, each after unjudged tokens."""
    split = (*["train"] * 10, "validation", "test")[text % 12]
    rows = []
    for token in range(_TEXT * (_SPAN + _BETWEEN)):
        span, place = divmod(token, _SPAN + _BETWEEN)
        inside = place >= _BETWEEN
        rows.append({
            "id": f"t{text}#{token}", "group": f"g{text}", "split": split, "correct": 0, "span": f"t{text}",
            "token": token, "token_wrong": int(wrong[span]) if inside else -1, "mark": 2 * span + inside,
            "inside": 1 if inside else -1, "sentence": span,
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    main(sys.argv[1:])
