"""Capture in a compiled model: the same states as without, and its cost and gain.

    python benchmarks/compiled.py [--models testbed smollm2] [--batches 1 8]

One step of decoding over a static cache is compiled whole (``torch.compile(fullgraph=True)``), with the taps
of all layers in the graph and without. On a CUDA device ``mode="reduce-overhead"`` adds CUDA graphs. Prompts
of one length run as usual first; seconds of compiling are apart.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peers import Tokens, differing, forwards
from results import Results, Section, by_turns, now, options, positive, ratios, script, spread
from torch import Tensor
from transformers import StaticCache
from workload import build, texts

from probers import CausalLM
from probers.model.hidden_states import StateTap
from probers.model.loading import pick_device
from probers.types import Feature

ENGINE, STATIC, READ = "the engine's cache", "static cache", "static cache, all states"
COMPILED, READ_COMPILED = "static cache, compiled", "static cache, compiled, all states"
#: Pairs of ways that differ only in the states read.
WITHOUT = {READ: STATIC, READ_COMPILED: COMPILED}


@contextmanager
def every_state(lm: CausalLM) -> Iterator[tuple[Any, StateTap]]:
    """Yield a second model with the same weights, and the tap of all its layers."""
    twin = copy.deepcopy(lm.model, {id(each): each for each in lm.model.parameters()})
    with StateTap(twin, Feature(tuple(range(lm.num_layers + 1)), pool="tokens")) as tap:
        yield twin, tap


@torch.no_grad()
def decode(model: Any, step: Callable[..., Any], ids: Tensor, count: int, tap: StateTap | None) -> Any:
    """Write ``count`` tokens after ``ids`` (b, n); return them and the states (b, count - 1, layers, d)."""
    length = ids.shape[1]
    positions = torch.arange(length, device=ids.device)[None]
    cache: Any = StaticCache(config=model.config, max_cache_len=length + count)
    call, written, states = model.forward, list[Tensor](), list[Tensor]()
    for _ in range(count):
        if tap is not None:
            tap.read_last(int(bool(written)))
        output = call(
            input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        if tap is not None and (read := tap.take()) is not None:
            states.append(read.clone())  # the next replay of a CUDA graph writes to the same memory
        ids = output.logits[:, -1:].argmax(dim=-1)
        written.append(ids)
        positions = positions[:, -1:] + 1
        call = step
    return torch.cat(written, dim=1), torch.cat(states, dim=1) if states else None


def measure(name: str, lm: CausalLM, batch: int, args: argparse.Namespace, results: Results) -> None:
    """Add the rows of one batch size."""
    prompts = texts(lm.tokenizer, [args.prompt_tokens] * batch)
    rows = lm.tokenizer(prompts, verbose=False)["input_ids"]
    ids = torch.tensor([row[: min(map(len, rows))] for row in rows], device=lm.device)
    prompts = lm.tokenizer.batch_decode(ids)
    compiled = partial(
        torch.compile, fullgraph=True, dynamic=False, backend=args.backend,
        mode="reduce-overhead" if lm.device.type == "cuda" and args.backend == "inductor" else None,
    )  # fmt: skip
    with every_state(lm) as (twin, tap):
        models = {STATIC: (lm.model, None), READ: (twin, tap)}
        models |= {COMPILED: models[STATIC], READ_COMPILED: models[READ]}
        work: dict[str, Callable[[], Any]] = {ENGINE: partial(forwards, lm, prompts, args.new_tokens)}
        took = {}
        for way, (model, read) in models.items():
            step = compiled(model.forward) if "compiled" in way else model.forward
            work[way] = partial(decode, model, step, ids, args.new_tokens, read)
            begun = now(lm.device)
            work[way]()
            took[way] = now(lm.device) - begun
        seconds, made = by_turns(work, warm={}, rounds=args.rounds, device=lm.device)
    check(f"{name}, batch {batch}", lm, prompts, made, results)
    for way in work:
        rate = spread([batch * args.new_tokens / each for each in seconds[way]], 1)
        cells = [spread(ratios(seconds[ENGINE], seconds[way])), "", ""]
        if way in WITHOUT:
            cells[1] = spread(ratios(seconds[WITHOUT[way]], seconds[way]), 3)
        if "compiled" in way:
            cells[2] = f"{took[way] - min(seconds[way]):.0f}"
        results.row("compiled", name, batch, way, rate, *cells)


def check(where: str, lm: CausalLM, prompts: Sequence[str], made: dict[str, Any], results: Results) -> None:
    """Note whether all ways wrote the same tokens and read the same states."""
    reference: Tokens = made[ENGINE]
    for way in WITHOUT.keys() | set(WITHOUT.values()):
        _, wrong = differing(lm, prompts, reference, [tuple(row) for row in made[way][0].tolist()])
        if wrong:
            results.same = False
            results.note("compiled", f"**{where}: {wrong} texts of '{way}' are not those of '{ENGINE}'.**")
    (eager, one), (compiled, other) = made[READ], made[READ_COMPILED]
    alike = (eager == compiled).all(dim=1)
    off = (one - other)[alike].norm() / one[alike].norm()
    tolerance = 1e-4 if lm.model.dtype == torch.float32 else 2e-2
    text = f"{where}: states of the compiled model differ by {float(off):.0e} of their length"
    if not alike.any() or off > tolerance:
        results.same = False
        text = f"**{text}, more than {tolerance:.0e}, or no text is the same.**"
    results.note("compiled", f"{text} ({int(alike.sum())} of {len(alike)} texts are the same).")


def measure_compiled(results: Results, args: argparse.Namespace) -> None:
    """Measure all models."""
    # Without it a graph that was compiled before a tap came is run again, and the tap is never called.
    dynamo: Any = torch._dynamo.config
    with dynamo.patch(skip_nnmodule_hook_guards=False):
        for name in args.models:
            lm = build(name, pick_device(args.device), args.dtype)
            for batch in args.batches:
                measure(name, lm, batch, args, results)
                torch.compiler.reset()
    results.note(
        "compiled",
        f"Greedy, {args.new_tokens} tokens after {args.prompt_tokens}, forward calls alone; "
        f"{torch.get_num_threads()} thread(s).",
    )


SECTIONS = {
    "compiled": Section(
        "Recording in a compiled model",
        "model | batch | way | tokens/s | of the engine's cache | of the same without states | compiling, s",
        measure_compiled,
        240,
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__, rounds=5)
    add = parser.add_argument
    add("--models", nargs="+", default=["testbed"], help="as in workload.py, or folders")
    add("--batches", nargs="+", type=positive, default=[1, 8])
    add("--prompt-tokens", type=positive, default=64)
    add("--new-tokens", type=positive, default=32)
    add("--backend", default="inductor", help="of torch.compile; eager traces and compiles nothing")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
