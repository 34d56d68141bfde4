"""Speed of the engine on many prompts: a shared prefix computed once, and batches of similar length."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
from cost import check, least
from timing import Results, by_turns, ratios, spread, verdict
from workload import Options, about, few_shot, mixed_prompts

from probers import CausalLM
from probers.types import Generation


def prefix(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Answer questions after six shared exemplars, whose keys and values are computed once or every time."""
    model = about(name, options)
    shared, prompts = few_shot(lm.tokenizer, options.questions, 6, options.exemplar_tokens)

    def write(texts: list[str], **shares: str) -> list[Generation]:
        engine = CausalLM(lm.model, lm.tokenizer, batch_size=32)  # a used engine has the prefix already
        return engine.generate(texts, max_new_tokens=options.answer_tokens, **shares)

    calls = {"without": write, "with": partial(write, prefix=shared)}
    seconds, written = by_turns(
        {way: partial(call, prompts) for way, call in calls.items()},
        warm={way: partial(call, prompts[:2]) for way, call in calls.items()},
        least=least(name),
        exactly=options.repeats,
        device=lm.device,
    )
    check(results, "prefix", model, lm, prompts, written)
    faster = ratios(seconds["without"], seconds["with"])
    results.row("prefix", model, "every prompt in full", spread(seconds["without"]), "1")
    goal = (">= 2", verdict(statistics.median(faster) >= 2))
    results.row("prefix", model, "`prefix=`", spread(seconds["with"]), spread(faster), *goal)
    known = [len(lm.tokenizer(text, verbose=False)["input_ids"]) for text in (shared, *prompts)]
    results.note(
        "prefix",
        f"{model}: {len(prompts)} questions of {min(known[1:]) - known[0]}-{max(known[1:]) - known[0]} "
        f"tokens after {known[0]} shared ones, {options.answer_tokens} new tokens each, batches of 32; end "
        "to end, including the shared prefix.",
    )


class PaddingCount:
    """Counter of the positions of passes over prompts, and of the padding among them, within the block."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.positions = self.padded = 0

    def __enter__(self) -> PaddingCount:
        forward = self._model.forward

        def counting(*args: Any, **options: Any) -> Any:
            ids, mask = options["input_ids"], options.get("attention_mask")
            if ids.shape[1] > 1:
                self.positions += ids.numel()
                if mask is not None:
                    self.padded += int((mask[:, -ids.shape[1] :] == 0).sum())
            return forward(*args, **options)

        self._model.forward = counting
        return self

    def __exit__(self, *_: object) -> None:
        del self._model.forward

    @property
    def waste(self) -> float:
        """Compute padding as a share of all positions."""
        return self.padded / max(self.positions, 1)


def batching(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Compare batches of prompts of mixed length with one prompt at a time."""
    model = about(name, options)
    if name == "random" and lm.device.type == "cpu" and not options.slow:
        results.row("batching", model, "not measured on a CPU without --slow")
        return
    prompts = mixed_prompts(lm.tokenizer, options.mixed, *options.mixed_lengths)
    tokens = max(options.answer_tokens // 2, 1)
    if lm.device.type == "cuda":  # auto goes by the largest memory that was ever in use
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(lm.device)
    sizes: dict[str, int | str] = {"one at a time": 1, "batch_size=32": 32, "batch_size=auto": "auto"}
    engines = {way: CausalLM(lm.model, lm.tokenizer, batch_size=size) for way, size in sizes.items()}
    waste: dict[str, float] = {}

    def write(way: str, new_tokens: int) -> list[Generation]:
        with PaddingCount(lm.model) as count:
            generations = engines[way].generate(prompts, max_new_tokens=new_tokens)
        waste[way] = count.waste
        return generations

    seconds, written = by_turns(
        {way: partial(write, way, tokens) for way in engines},
        warm={way: partial(write, way, 1) for way in engines},  # all prompts, so that auto finds its size
        least=least(name),
        exactly=options.repeats,
        device=lm.device,
    )
    check(results, "batching", model, lm, prompts, written)
    for way in engines:
        rate = spread([len(prompts) / s for s in seconds[way]], 1)
        alone = way == "one at a time"
        faster = "1" if alone else spread(ratios(seconds["one at a time"], seconds[way]), 1)
        goal = () if alone else ("waste < 15%", verdict(waste[way] < 0.15))
        results.row("batching", model, way, rate, faster, f"{waste[way]:.1%}", *goal)
    lengths = [len(lm.tokenizer(text, verbose=False)["input_ids"]) for text in prompts]
    groups = [lengths[i : i + 32] for i in range(0, len(lengths), 32)]
    unsorted = 1 - sum(lengths) / sum(max(group) * len(group) for group in groups)
    results.note(
        "batching",
        f"{model}: {len(prompts)} prompts of {min(lengths)}-{max(lengths)} tokens (log-normal), "
        f"{tokens} new tokens each. Waste is padding among the positions of the passes over prompts; "
        f"batches of 32 in the order given would waste {unsorted:.0%}.",
    )
