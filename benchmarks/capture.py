"""Cost of recording states while a model writes, against plain generation and the ways of others.

    python benchmarks/capture.py [--models testbed smollm2] [--batches 1 8] [--only capture]

Sections: ``capture`` compares ways to write the same texts with and without all states; ``memory`` their peak
memory; ``nnsight`` the same in the environment of ``--nnsight PYTHON``, or of this Python.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from peers import differing, everything, forwards, hidden_states, ours, parity, peak, peers, plain, token_ids
from results import Results, Section, by_turns, goal, options, positive, ratios, script, spread, verdict
from workload import build, long_prompts

from probers import CausalLM
from probers.data.texts.shown import place_passages
from probers.model.language_model import ScoreRequest, Scoring
from probers.model.loading import pick_device
from probers.types import Feature, Needs, Passages

PLAIN, NOTHING = "plain `generate`", "our engine, entropies and log-probs"
STATES = "`generate`, all hidden states"
PASSES = "`generate`, all hidden states, a second eager pass"
FORWARDS = "the model's own calls alone"
LAYERS, ATTENTION = "+ mean of all layers", "+ last layer's attention rows"
BOTH = "+ both, as the second pass gives"
#: Names of ways in ``peers.ways``.
WAYS = {
    "plain": PLAIN,
    "peers": "all states and the last layer's attention by `output_hidden_states=True` and a second pass",
    "ours": "the same recorded while generating",
}
#: Least share of plain generation with all layers, and most of the others' extra memory.
CAPTURE, MEMORY = 0.97, 0.1


def check(
    results: Results, section: str, where: str, lm: CausalLM, prompts: Sequence[str], written: dict[str, Any]
) -> None:
    """Note whether all ways wrote the same tokens."""
    (first, reference), *others = ((way, token_ids(result)) for way, result in written.items())
    ties = 0
    for way, tokens in others:
        different, wrong = differing(lm, prompts, reference, tokens)
        ties += different - wrong
        if wrong:
            results.same = False
            results.note(section, f"**{where}: {wrong} texts of '{way}' are not those of '{first}'.**")
    if ties:
        total = len(prompts) * len(others)
        results.note(
            section, f"{where}: {ties} of {total} texts part from '{first}' at a tie within rounding."
        )


def warm_up(lm: CausalLM, batch: Sequence[str], tokens: int) -> tuple[Sequence[str], int]:
    """Choose arguments of a warm-up: an accelerator needs the real shapes to choose kernels on first use."""
    return (batch, tokens) if lm.device.type != "cpu" else ([text[:40] for text in batch[:2]], 3)


def ways_of(lm: CausalLM) -> dict[str, Callable[..., Any]]:
    """Make all ways to write the same texts, by name."""
    needs = {
        NOTHING: Needs(),
        LAYERS: Needs(everything(lm).features),
        ATTENTION: Needs(attention=True),
        BOTH: everything(lm),
    }
    theirs = {PLAIN: plain, STATES: hidden_states, PASSES: peers, FORWARDS: forwards}
    calls: dict[str, Callable[..., Any]] = {way: partial(call, lm) for way, call in theirs.items()}
    return calls | {way: partial(ours, lm, needs=each) for way, each in needs.items()}


def speed(
    title: str, lm: CausalLM, batches: Sequence[int], sizes: tuple[int, int, int], results: Results,
    target: float = CAPTURE,
) -> None:  # fmt: skip
    """Add the rows of a model to section ``capture``.

    Args:
        sizes: prompt tokens, new tokens, rounds.
    """
    prompt_tokens, new_tokens, rounds = sizes
    for batch in batches:
        prompts, calls = long_prompts(lm.tokenizer, batch, prompt_tokens), ways_of(lm)
        for way in too_large(calls, lm, prompts, new_tokens):
            results.row("capture", title, batch, way, "out of memory")
            del calls[way]
        seconds, written = by_turns(
            {way: partial(call, prompts, new_tokens) for way, call in calls.items()},
            warm={way: partial(call, *warm_up(lm, prompts, new_tokens)) for way, call in calls.items()},
            rounds=rounds, device=lm.device,
        )  # fmt: skip
        check(results, "capture", f"{title}, batch {batch}", lm, prompts, written)
        for way in calls:
            rate = spread([batch * new_tokens / s for s in seconds[way]], 1)
            cells = [spread(ratios(seconds[each], seconds[way]), 3) if each in seconds else "" for each in
                     (PLAIN, NOTHING, PASSES)]  # fmt: skip
            aim = goal(ratios(seconds[PLAIN], seconds[way]), target) if way == LAYERS else ()
            results.row("capture", title, batch, way, rate, *cells, *aim)
    results.note(
        "capture",
        f"Greedy, {prompt_tokens}-token prompts (left-padded: up to a sixteenth shorter), {new_tokens} new "
        f"tokens, from text to text; {rounds} rounds, {torch.get_num_threads()} thread(s).",
    )
    close(title, lm, long_prompts(lm.tokenizer, 2, prompt_tokens), min(new_tokens, 16), results)


def too_large(
    calls: dict[str, Callable[..., Any]], lm: CausalLM, prompts: Sequence[str], tokens: int
) -> list[str]:
    """List the ways of others whose batch does not fit into the memory of an accelerator."""
    large = []
    for way in [way for way in (STATES, PASSES) if way in calls and lm.device.type != "cpu"]:
        try:
            calls[way](prompts, tokens)
        except torch.OutOfMemoryError:
            large.append(way)
            torch.get_device_module(lm.device).empty_cache()
    return large


def close(title: str, lm: CausalLM, prompts: Sequence[str], new_tokens: int, results: Results) -> None:
    """Note the difference of the values that both ways record."""
    off = parity(lm, prompts, new_tokens)
    if off is None:
        results.note("capture", f"{title}: states not compared, for the texts part at ties within rounding.")
        return
    tolerance = 1e-4 if lm.model.dtype == torch.float32 else 2e-2
    text = f"{title}: states, scores and attention of both ways differ by at most {off:.0e}."
    if off > tolerance:
        results.same = False
        text = f"**{text} That is more than {tolerance:.0e}.**"
    results.note("capture", text)


def room(
    model: str, title: str, lm: CausalLM, batches: Sequence[int], sizes: tuple[int, int, str | None],
    results: Results,
) -> None:  # fmt: skip
    """Add the rows of a model to section ``memory``.

    Args:
        sizes: prompt tokens, new tokens, and the number format.
    """
    weights = sum(each.nbytes for each in lm.model.parameters()) / 1e6
    for batch in batches:
        peaks = dict[str, float]()
        for way, name in WAYS.items():
            try:
                peaks[way] = peak(model, way, lm, batch, *sizes) / 1e6
            except torch.OutOfMemoryError:
                results.row("memory", title, batch, name, f"{weights:.0f}", "out of memory")
                torch.get_device_module(lm.device).empty_cache()
                continue
            cells = [f"{weights:.0f}", f"{peaks[way]:.1f}"]
            if way == "ours" and "peers" in peaks:
                share = peaks["ours"] / max(peaks["peers"], 1e-9)
                cells += [f"{share:.3f}", f"<= {MEMORY}", verdict(share <= MEMORY)]
            results.row("memory", title, batch, name, *cells)


def measure_capture(results: Results, args: argparse.Namespace) -> None:
    """Measure all models."""
    for name in args.models:
        lm = build(name, pick_device(args.device), args.dtype)
        sizes = args.prompt_tokens, args.new_tokens, args.rounds
        speed(title_of(name, lm), lm, args.batches, sizes, results)


def measure_memory(results: Results, args: argparse.Namespace) -> None:
    """Measure the memory of all models at the largest batch."""
    for name in args.models:
        lm = build(name, pick_device(args.device), args.dtype)
        sizes = 2 * args.prompt_tokens, args.new_tokens, args.dtype
        room(name, title_of(name, lm), lm, [max(args.batches)], sizes, results)


def title_of(name: str, lm: CausalLM) -> str:
    """Name a model as in tables."""
    return f"{name}, {str(lm.model.dtype).removeprefix('torch.')}"


#: Program for the environment of nnsight: the texts of plain generation, and those with all states saved.
NNSIGHT = """
import json, sys, time, torch, nnsight
from transformers import AutoModelForCausalLM, AutoTokenizer
path, dtype, prompts, count, rounds = json.loads(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
traced = nnsight.LanguageModel(model, tokenizer=tokenizer)
layers = traced.model.layers
def plain(prompt):
    ids = tokenizer(prompt, return_tensors="pt")
    return model.generate(**ids, max_new_tokens=count, do_sample=False)[0, -count:].tolist()
def states(prompt):
    with traced.generate(prompt, max_new_tokens=count, do_sample=False) as tracer:
        saved = list().save()
        with tracer.iter[:]:
            step = []
            for layer in layers:
                output = layer.output
                state = output[0] if isinstance(output, tuple) else output
                step.append(state[..., -1, :].reshape(-1))
            saved.append(torch.stack(step))
    return torch.stack([each.float() for each in saved[1:]]).mean(0)
seconds = {"plain": [], "states": []}
for turn in range(rounds + 1):
    for name, way in (("plain", plain), ("states", states)):
        begun = time.perf_counter()
        with torch.no_grad():
            made = [way(prompt) for prompt in prompts]
        if turn:
            seconds[name].append(time.perf_counter() - begun)
print(json.dumps({**seconds, "version": nnsight.__version__, "shape": list(made[0].shape)}))
"""


def has_nnsight(python: str) -> bool:
    """Tell whether a Python is there and can import nnsight."""
    try:
        return subprocess.run([python, "-c", "import nnsight"], capture_output=True).returncode == 0
    except OSError:
        return False


def measure_nnsight(results: Results, args: argparse.Namespace) -> None:
    """Compare nnsight and our engine, each with plain generation of the same process, at batch 1."""
    if not has_nnsight(args.nnsight):
        results.row("nnsight", f"skipped: {args.nnsight} has no nnsight (--nnsight PYTHON)")
        return
    from probers.testbed.assets import model_path

    lm = build("testbed", torch.device("cpu"))
    prompts = long_prompts(lm.tokenizer, 1, args.prompt_tokens)
    job = [str(model_path()), "float32", prompts, args.new_tokens, args.rounds]
    done = subprocess.run([args.nnsight, "-c", NNSIGHT, json.dumps(job)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nnsight failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    theirs = json.loads(done.stdout.splitlines()[-1])
    calls = {way: ways_of(lm)[way] for way in (PLAIN, LAYERS)}
    seconds, _ = by_turns(
        {way: partial(call, prompts, args.new_tokens) for way, call in calls.items()},
        warm={way: partial(call, prompts, 3) for way, call in calls.items()}, rounds=args.rounds,
    )  # fmt: skip
    both = {
        f"nnsight {theirs['version']}, all layers saved": (theirs["plain"], theirs["states"]),
        "our engine, mean of all layers": (seconds[PLAIN], seconds[LAYERS]),
    }
    for name, (alone, recorded) in both.items():
        results.row("nnsight", "testbed, float32", name, spread(recorded), spread(ratios(alone, recorded), 3))


def measure_passages(results: Results, args: argparse.Namespace) -> None:
    """Read texts after three passages each, with and without what heads of passages record of them."""
    for name in args.models:
        lm = build(name, pick_device(args.device), args.dtype)
        layers = tuple(range(1, lm.num_layers + 1))[:: max(1, lm.num_layers // 6)]
        states = Feature(layers, pool="tokens")
        shares = Feature((lm.num_layers,), "passages", "tokens")
        needs = {"states": Needs((states,)), "states and `passages`": Needs((states, shares))}
        for batch in args.batches:
            words = long_prompts(lm.tokenizer, 4 * batch, args.prompt_tokens // 3)
            texts = [passages_of(lm, words[i : i + 4], args.new_tokens) for i in range(0, len(words), 4)]

            def read(way: str, texts: Sequence[ScoreRequest] = texts, lm: CausalLM = lm) -> None:
                list(lm.score_each(texts, Scoring(needs[way])))  # noqa: B023 (called before the next model)

            calls = {way: partial(read, way) for way in needs}
            seconds, _ = by_turns(calls, warm=calls, rounds=args.rounds, device=lm.device)
            for way in needs:
                times = ratios(seconds[way], seconds["states"])
                aim = ("<= 1.15", verdict(statistics.median(times) <= 1.15)) if way != "states" else ()
                results.row(
                    "passages", title_of(name, lm), batch, way, spread(seconds[way]), spread(times, 3), *aim
                )


def passages_of(lm: CausalLM, words: Sequence[str], length: int) -> ScoreRequest:
    """Make a text of ``length`` tokens of the last words, after passages of the others."""
    *shown, answer = words
    prompt = "\n\n".join(shown)
    ids = lm.tokenizer(answer, verbose=False)["input_ids"][:length]
    return ScoreRequest(prompt, ids, passages=Passages(place_passages(prompt, shown)))


SECTIONS = {
    "capture": Section(
        "Recording all states while generating",
        "model | batch | way | tokens/s | of plain | of our engine without states | of the second pass | "
        "target | verdict",
        measure_capture, 480,
        "All ways write the same tokens, which the run checks; exceptions are listed. The model's own calls "
        "bound "
        "what any recording can gain.",
    ),
    "memory": Section(
        "Peak memory",
        "model | batch | way | weights, MB | beside them at the peak, MB | of the others' way | target | "
        "verdict",
        measure_memory, 150,
        "On an accelerator what torch allocated. On a CPU the resident memory of a process for each way, "
        "without "
        "what it held before it began to generate; prompts are twice as long as above.",
    ),
    "passages": Section(
        "Reading after passages, with and without attention by passage",
        "model | batch | way | seconds | of states | target | verdict",
        measure_passages, 120, "Three passages a text; reading only, with states of six layers.",
    ),
    "nnsight": Section(
        "nnsight", "model | way | seconds | of plain `generate` in the same process", measure_nnsight, 90,
        "Batch 1, CPU; nnsight in an environment of its own, since it chooses its own versions.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--models", nargs="+", default=["testbed", "smollm2"], help="as in workload.py, or folders")
    add("--batches", nargs="+", type=positive, default=[1, 8])
    add("--prompt-tokens", type=positive, default=128)
    add("--new-tokens", type=positive, default=32)
    add("--nnsight", default=sys.executable, help="Python of an environment with nnsight; default: this one")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
