"""Cost of capture, compared with plain generation and with the peers' way to the same features."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from memory import growth, memory_of
from peers import (
    differing,
    everything,
    forwards,
    hidden_states,
    ours,
    parity,
    peers,
    plain,
    token_ids,
    ways,
)
from timing import Results, by_turns, ratios, spread, verdict
from workload import REAL, Options, about, long_prompts

from probers import CausalLM
from probers.data.texts.shown import place_passages
from probers.model.language_model import ScoreRequest, Scoring
from probers.types import Feature, Needs, Passages

STATES = "`generate`, all hidden states"
PASSES = "`generate`, all hidden states, a second pass"


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
    results.note(
        section, "The run checks that all variants write the same tokens; exceptions are listed here."
    )


def least(name: str) -> int:
    """Return the rounds per comparison, unless told otherwise."""
    return 3 if name == "testbed" else 2


def _warm(lm: CausalLM, batch: Sequence[str], tokens: int) -> tuple[Sequence[str], int]:
    """Choose arguments of a warm-up: an accelerator needs the real shapes to choose kernels on first use."""
    return (batch, tokens) if lm.device.type != "cpu" else ([text[:40] for text in batch[:2]], 3)


def speed(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Compare plain generation, and the engine without needs, with ours with different needs."""
    nothing = "entropies, log-probs"
    wanted: dict[str, tuple[Needs, float | None]] = {nothing: (Needs(), None)}
    if "capture" in options.only:
        target = options.target or {"7b": 0.99, REAL: 0.98}.get(name, 0.95)
        wanted["+ mean of all layers"] = (Needs(everything(lm).features), target)
    if "attention" in options.only:
        wanted["+ last layer's attention rows"] = (Needs(attention=True), 0.90)
    calls: dict[str, Callable[..., Any]] = {"plain": partial(plain, lm)}
    if "states" in options.only:
        calls[STATES] = partial(hidden_states, lm)
    if options.second_pass:
        calls[PASSES] = partial(peers, lm)
    calls |= {way: partial(ours, lm, needs=needs) for way, (needs, _) in wanted.items()}
    for batch in options.batches:
        prompts = long_prompts(lm.tokenizer, batch, options.prompt_tokens)
        tokens = options.new_tokens
        for way in too_large(calls, lm, prompts, tokens):
            results.row("capture", about(name, options), batch, way, "out of memory")
            del calls[way]
        seconds, written = by_turns(
            {way: partial(call, prompts, tokens) for way, call in calls.items()},
            warm={way: partial(call, *_warm(lm, prompts, tokens)) for way, call in calls.items()},
            least=least(name),
            exactly=options.repeats,
            device=lm.device,
        )
        check(results, "capture", f"{about(name, options)}, batch {batch}", lm, prompts, written)
        for way in calls:
            rate = spread([batch * tokens / s for s in seconds[way]], 1)
            if way == "plain":
                results.row("capture", about(name, options), batch, "plain `generate`", rate, "1")
                continue
            shares = ratios(seconds["plain"], seconds[way])
            if way in (STATES, PASSES):
                results.row("capture", about(name, options), batch, way, rate, spread(shares, 3))
                continue
            target = wanted[way][1]
            goal: tuple[str, ...] = ()
            if target is not None:
                goal = (f">= {target:.2f} of plain", verdict(statistics.median(shares) >= target))
            of_engine = "" if way == nothing else spread(ratios(seconds[nothing], seconds[way]), 3)
            recorded = next((each for each in (PASSES, STATES) if each in seconds), None)
            of_states = "" if recorded is None else spread(ratios(seconds[recorded], seconds[way]))
            cells = (rate, spread(shares, 3), of_engine, of_states, *goal)
            results.row("capture", about(name, options), batch, way, *cells)
    results.note(
        "capture",
        f"Greedy, {options.prompt_tokens}-token prompts (left-padded: up to a sixteenth shorter), "
        f"{options.new_tokens} new tokens, no EOS; each variant is timed from text to text.",
    )


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


def against_peers(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Record all layers and the last attention: ours in one pass, theirs in two."""
    for batch in [b for b in options.batches if b <= 8]:
        prompts = long_prompts(lm.tokenizer, batch, options.prompt_tokens)
        calls = {way: call for way, call in ways(lm).items() if way != "plain"}
        calls["forwards"] = partial(forwards, lm)
        seconds, written = by_turns(
            {way: partial(call, prompts, options.new_tokens) for way, call in calls.items()},
            warm={way: partial(call, *_warm(lm, prompts, options.new_tokens)) for way, call in calls.items()},
            least=least(name),
            exactly=options.repeats,
            device=lm.device,
        )
        model = about(name, options)
        where = f"{model}, batch {batch}"
        check(results, "peers", where, lm, prompts, written)
        _parity(where, lm, prompts[:2], min(options.new_tokens, 16), results)
        faster = ratios(seconds["peers"], seconds["ours"])
        goal = (">= 1.5", verdict(statistics.median(faster) >= 1.5)) if batch == 1 else ()
        times = [spread(seconds[way]) for way in ("peers", "ours")]
        results.row("peers", model, batch, "seconds", *times, spread(faster), *goal)
        bound = ratios(seconds["peers"], seconds["forwards"])
        times[1] = spread(seconds["forwards"])
        results.row("peers", model, batch, "seconds, forward calls alone", *times, spread(bound))
        _memory(name, lm, batch, prompts, options, results)
    results.note(
        "peers",
        "Forward calls alone: decoding without recording or text, over the same kind of cache. Their ratio "
        "bounds the gain of any recording over the peers'.",
    )


def _parity(where: str, lm: CausalLM, prompts: Sequence[str], new_tokens: int, results: Results) -> None:
    """Note the difference of the values that both ways record."""
    off = parity(lm, prompts, new_tokens)
    if off is None:
        results.note("peers", f"{where}: states not compared, for the texts part at ties within rounding.")
        return
    tolerance = 1e-4 if lm.model.dtype == torch.float32 else 2e-2
    text = f"{where}: states, scores and attention of both differ by at most {off:.0e}"
    if off > tolerance:
        results.same = False
        text = f"**{text}, more than {tolerance:.0e}.**"
    results.note("peers", text)


def peak(name: str, way: str, lm: CausalLM, prompts: Sequence[str], options: Options) -> int:
    """Measure the bytes by which a way exceeds the memory of the model alone, at its peak."""
    if lm.device.type != "cpu":
        return growth(partial(ways(lm)[way], prompts, options.new_tokens), lm.device)
    sizes = len(prompts), options.prompt_tokens, options.new_tokens
    return memory_of(name, way, *sizes, lm.device, options.dtype)


def _memory(
    name: str, lm: CausalLM, batch: int, prompts: Sequence[str], options: Options, results: Results
) -> None:
    """Compare peak memory with that of plain generation."""
    peaks: dict[str, list[int]] = {}
    for _ in range(max(2, options.repeats or least(name))):  # noise shows only in repeats
        for way in ways(lm):
            peaks.setdefault(way, []).append(peak(name, way, lm, prompts, options))
    middle = {way: statistics.median(found) / 1e6 for way, found in peaks.items()}
    floor = max(max(found) - min(found) for way, found in peaks.items() if way != "peers") / 1e6
    theirs, mine = middle["peers"] - middle["plain"], middle["ours"] - middle["plain"]
    # A difference below the floor only shows that it is not larger than the floor.
    share = max(mine, floor, 0.0) / max(theirs, 1e-9)
    word = verdict(share <= 1 / 20)
    if share > 1 / 20 and mine <= floor:
        word = "below noise"
    cells = (f"{theirs:.1f}", f"{mine:.1f} (noise {floor:.1f})", f"<= {share:.4f}", "<= 0.05", word)
    results.row("peers", about(name, options), batch, "extra memory, MB", *cells)
    results.note(
        "peers",
        "Extra memory: peak over that of plain `generate`, which adds "
        f"{middle['plain']:.0f} MB ({about(name, options)}, batch {batch}).",
    )
    kind = "allocated by torch" if lm.device.type != "cpu" else "resident, each run in a process of its own"
    results.note(
        "peers",
        f"Memory is {kind}. Noise is the largest difference between repeats of plain or ours; the ratio "
        "assumes that ours is no smaller.",
    )


def passages(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Read texts after three passages each, with and without what heads of passages record of them."""
    model, batches = about(name, options), options.batches
    layers, last = tuple(range(1, lm.num_layers + 1))[:: max(1, lm.num_layers // 6)], (lm.num_layers,)
    words = long_prompts(lm.tokenizer, 4 * max(batches), options.prompt_tokens // 3)
    texts = []
    for place in range(0, len(words), 4):
        shown, answer = words[place : place + 3], words[place + 3]
        prompt = "\n\n".join(shown)
        ids = lm.tokenizer(answer, verbose=False)["input_ids"][: options.new_tokens]
        texts.append(ScoreRequest(prompt, ids, passages=Passages(place_passages(prompt, shown))))
    twice = [replace(text, passages=replace(text.passages, without="Question:")) for text in texts]
    plain_states, attention = Feature(layers, pool="tokens"), Feature(last, "passages", "tokens")
    ways = {
        "states": (texts, Needs((plain_states,))),
        "states and `passages`": (texts, Needs((plain_states, attention))),
        "`resid_diff`, two passes": (twice, Needs((replace(plain_states, site="resid_diff"),))),
    }

    def read(way: str, count: int) -> int:
        requests, needs = ways[way]
        groups = lm.score_each(requests[:count], Scoring(needs))
        return sum(len(text.token_ids) for group in groups for text in group.values())

    for batch in batches:
        seconds, _ = by_turns(
            {way: partial(read, way, batch) for way in ways},
            warm={way: partial(read, way, 1) for way in ways},
            least=least(name), exactly=options.repeats, device=lm.device,
        )  # fmt: skip
        for way in ways:
            times = ratios(seconds[way], seconds["states"])
            met = verdict(statistics.median(times) <= 1.15)
            goal = ("<= 1.15", met) if way == "states and `passages`" else ()
            results.row("passages", model, batch, way, spread(seconds[way]), spread(times), *goal)
    lengths = f"prompts of {options.prompt_tokens} tokens, {options.new_tokens} tokens read"
    results.note("passages", f"{model}: three passages a text, {lengths}.")
