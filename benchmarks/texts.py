"""Speed and memory of reading labelled texts, compared with plain forward passes that keep all states.

    python benchmarks/texts.py --texts RAGTRUTH.jsonl [--model smollm2] [--count 200] [--write]

Ours is `--source texts pool=tokens` with six layers: labels, states and signals of every token, written to
a store on disk. Plain is transformers with output_hidden_states, in batches of the same size, whose states of
all answer tokens and layers stay in memory as float16: the texts in the file's order, and sorted by length
as ours are.

All read the same tokens, and their states of the same layers are compared. Every measurement has a
process of its own; the ways take turns, so a slow moment of the machine affects all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from flags import positive
from memory import STRICT_MALLOC, growth
from report import invocation, publish
from timing import Results, ratios, spread, verdict

from probers import CausalLM, FeatureStore
from probers.data.texts import Text, TextSource
from probers.datagen import Texts
from probers.datagen.settings import Options
from probers.datagen.writer import fill
from probers.model.tokens import encode_continuation, encode_prompts, without_end
from probers.prompts import TESTBED_PROMPT
from probers.store.spec import FeatureSpec
from probers.types import Needs

LAYERS = 6
WAYS = {
    "plain": "transformers, all layers kept in memory",
    "sorted": "the same, sorted by length",
    "ours": "`--source texts pool=tokens`, six layers stored",
}
HEADS = {"texts": "way | texts/s | times as fast | peak memory, MB | of plain | target | verdict"}
#: Lowest factor of speed over plain, and largest share of its memory.
FASTER, SMALLER = 1.3, 1 / 3
#: Lowest cosine of equal states by both ways (sums round in other orders).
_SAME = 0.99


def layers_of(lm: CausalLM) -> tuple[int, ...]:
    """Choose six layers, evenly spaced from the embeddings to the last."""
    return tuple(sorted({round(k) for k in np.linspace(0, lm.num_layers, LAYERS)}))


def plain(
    lm: CausalLM, source: TextSource, batch: int, folder: Path, *, by_length: bool = False
) -> np.ndarray:
    """Keep all states (layers, tokens, width) of all answers; return six layers of the first text."""
    encoded = {text.id: _tokens(lm, source, text) for text in source.labelled("token")}
    kept: dict[str, np.ndarray] = {}
    names = list(encoded)
    if by_length:
        names.sort(key=lambda name: sum(map(len, encoded[name])), reverse=True)
    for start in range(0, len(names), batch):
        chosen = names[start : start + batch]
        rows = [(*encoded[name][0], *encoded[name][1]) for name in chosen]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=lm.device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=lm.device)
        with torch.inference_mode():
            made = lm.model(input_ids=ids, attention_mask=mask, output_hidden_states=True, use_cache=False)
        for place, name in enumerate(chosen):
            first, last = len(encoded[name][0]), len(rows[place])
            states = [each[place, first:last].to(torch.float16).cpu() for each in made.hidden_states]
            kept[name] = torch.stack(states).numpy()
    first_text = next(source.labelled("token")).id
    return kept[first_text][list(layers_of(lm))]


def _tokens(lm: CausalLM, source: TextSource, text: Text) -> tuple[Sequence[int], Sequence[int]]:
    prompt = text.prompt_for(lm.tokenizer, source.file, TESTBED_PROMPT)
    (encoded,) = encode_prompts(lm.tokenizer, [prompt], start=True)
    return encoded.ids, encode_continuation(lm.tokenizer, encoded, without_end(lm.tokenizer, text.answer))


def ours(lm: CausalLM, source: TextSource, batch: int, folder: Path) -> np.ndarray:
    """Write the store of all tokens; return the states (layers, tokens, width) of the first text."""
    layers = layers_of(lm)
    texts = Texts(source.path, outside=source.outside)
    texts.plan(Options(pool="tokens", limit=source.limit))
    texts.begin(lm, Needs.of(layers, pool="tokens"), folder)
    spec = FeatureSpec(
        lm.spec, layers, lm.width, pool="tokens", position=texts.position, prompt=texts.rendered
    )
    store = FeatureStore.create(folder, [spec], config={})
    fill(store, texts, partial(texts.examples, lm))
    store.finish({})
    first = next(source.labelled("token"))
    rows = np.flatnonzero(FeatureStore.open(folder).table()["span"] == f"{first.dataset}/{first.id}")
    return FeatureStore.open(folder).states(layers, rows).swapaxes(0, 1)


def measured(way: str, options: argparse.Namespace, folder: Path) -> None:
    """Run one way in this process; print seconds, bytes and counts, and save the first text's states."""
    lm = CausalLM.from_pretrained(options.model, batch_size=options.batch)
    ways: dict[str, Callable[..., np.ndarray]] = {
        "plain": plain, "sorted": partial(plain, by_length=True), "ours": ours,
    }  # fmt: skip
    work = ways[way]
    texts = partial(TextSource, options.texts, outside=options.outside)
    work(lm, texts(limit=2), options.batch, folder / "warm")  # loads code of the first use
    source = texts(limit=options.count)
    answers = [_tokens(lm, source, text)[1] for text in source.labelled("token")]
    spent, first = [], []

    def whole() -> None:
        begun = time.perf_counter()
        first.append(work(lm, source, options.batch, folder / "store"))
        spent.append(time.perf_counter() - begun)

    grown = growth(whole, lm.device)
    np.save(folder / "first.npy", first[0])
    figures = {"seconds": spent[0], "bytes": grown, "texts": len(answers), "tokens": sum(map(len, answers))}
    print(json.dumps(figures | {"device": str(lm.device), "dtype": lm.spec.dtype}))


def alone(way: str, given: Sequence[str], *, strict: bool) -> tuple[dict[str, float | str], np.ndarray]:
    """Run one way in its own process; return its figures, and the states of its first text.

    Args:
        way: a key of :data:`WAYS`.
        given: the options of this run.
        strict: True if freed memory is given back at once, which is slower.

    Raises:
        SystemExit: it failed; its message is on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="probers-texts-") as folder:
        command = [sys.executable, __file__, *given, "--way", way, "--folder", folder]
        environment = os.environ | (STRICT_MALLOC if strict else {})
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{way} ended with {done.returncode}")
        return json.loads(done.stdout.splitlines()[-1]), np.load(Path(folder) / "first.npy")


def alike(one: np.ndarray, other: np.ndarray) -> float:
    """Find the lowest cosine of states (layers, tokens, width) of the same tokens; -1 for other tokens.

    The last layer is left out, as transformers returns it after the model's final norm.
    """
    if one.shape != other.shape:
        return -1.0
    a, b = one[:-1].astype(np.float64), other[:-1].astype(np.float64)
    return float(((a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))).min())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the section if asked to; return 1 if the ways read different states."""
    argv = list(sys.argv[1:] if argv is None else argv)
    options = _parse(argv)
    if options.way:
        measured(options.way, options, Path(options.folder))
        return 0
    given = [word for word in argv if word != "--write"]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(options.rounds):
        for way in list(WAYS)[:: 1 if turn % 2 else -1]:
            figures, _ = alone(way, given, strict=False)
            seconds[way].append(float(figures["seconds"]))
            print(turn, way, f"{seconds[way][-1]:.1f} s", file=sys.stderr)
    peaks: dict[str, float] = {}
    states: dict[str, np.ndarray] = {}
    for way in WAYS:
        figures, states[way] = alone(way, given, strict=True)
        peaks[way] = float(figures["bytes"])
    results = _table(seconds, peaks, figures)
    lowest = min(alike(states["ours"], states[way]) for way in ("plain", "sorted"))
    results.same = lowest >= _SAME
    results.note("texts", _about(options, figures, lowest))
    where = "cpu" if figures["device"] == "cpu" else "cuda"
    body = results.body("texts")
    # The file's folder differs by machine.
    shown = [Path(word).name if word == options.texts else word for word in argv]
    publish(
        {f"Reading labelled texts ({where})": body}, invocation("texts.py", shown),
        write=options.write and results.same,
    )  # fmt: skip
    if not results.same:
        print("error: the ways compared did not read the same states", file=sys.stderr)
    return int(not results.same)


def _table(
    seconds: dict[str, list[float]], peaks: dict[str, float], figures: dict[str, float | str]
) -> Results:
    results = Results(dict(HEADS))
    for way, name in WAYS.items():
        rate = [float(figures["texts"]) / s for s in seconds[way]]
        faster, share = ratios(seconds["plain"], seconds[way]), peaks[way] / peaks["plain"]
        told = [spread(rate), spread(faster), f"{peaks[way] / 1e6:.0f}", f"{share:.2f}"]
        if way == "ours":
            met = median(faster) >= FASTER and share < SMALLER
            told += [f">= {FASTER} times as fast, < {SMALLER:.2f} of its memory", verdict(met)]
        results.row("texts", name, *told)
    return results


def _about(options: argparse.Namespace, figures: dict[str, float | str], lowest: float) -> str:
    return (
        f"{options.model} in {figures['dtype']}, {figures['texts']} texts of {figures['tokens']} tokens, "
        f"batches of {options.batch}; {options.rounds} rounds in turn, each way in a process of its own. "
        "Memory is what the process grew by after the model was loaded. Lowest cosine of a state with the "
        f"other way's: {lowest:.4f}, without the last layer's."
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--texts", required=True, help="labelled texts, as texts= of probers-datagen")
    add("--outside", choices=("auto", "right", "unknown"), default="auto", help="as texts.outside=")
    add("--model", default="smollm2")
    add("--count", type=positive, default=200, help="texts at most")
    add("--batch", type=positive, default=8, help="texts per forward pass")
    add("--rounds", type=positive, default=3)
    add("--write", action="store_true", help="put the section into RESULTS.md")
    add("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    add("--folder", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
