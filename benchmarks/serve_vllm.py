"""What scores cost in vLLM: tokens per second of plain vLLM, and of the same with a prober, by turns.

    VLLM_CPU_KVCACHE_SPACE=1 python benchmarks/serve_vllm.py [--model smollm2] [--prober smollm2] [--write]

Run in the environment of ``make test-vllm``. Both engines stand side by side; every round takes each
of the three ways once: plain, with the worker but unscored, and scored (scores fetched once, at the end).
Beside the clock the processor time of the engine's processes is told, which neighbours disturb less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import chain
from typing import Any

import psutil
from flags import positive
from report import invocation, publish
from timing import Results, ratios, spread, verdict

from probers.engine.gguf import CACHE, dequantised, locate
from probers.testbed.assets import model_path

STREAMS, TOKENS = 16, 64


def folder(model: str) -> str:
    """What vLLM loads: a folder, or an id of the Hub."""
    file = locate(model, None, None)
    return (
        str(model_path()) if model == "testbed" else model if file is None else str(dequantised(file, CACHE))
    )


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    from vllm import SamplingParams

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prober", default="smollm2")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    asked_for = parser.parse_args(argv)
    model, prober, rounds = asked_for.model, asked_for.prober, asked_for.rounds

    options: dict[str, Any] = {
        "model": folder(model), "served_model_name": model, "dtype": "bfloat16", "max_model_len": 256,
        "max_num_seqs": STREAMS, "max_num_batched_tokens": 512,
    }  # fmt: skip
    plain, of_plain = started(options)
    worker = "probers.serve.vllm.worker.ScoringWorker"
    ours, of_ours = started(
        {**options, "worker_cls": worker, "additional_config": {"probers": {"prober": prober}}}
    )
    ways = {
        "plain": (plain, of_plain, None),
        "worker, unscored": (ours, of_ours, None),
        "scored": (ours, of_ours, {"probers": "all"}),
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (llm, processes, extra) in ways.items():
            asked = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, extra_args=extra)
            prompts = [
                f"Round {turn}, article {i}: The history of the town begins in" for i in range(STREAMS)
            ]
            begun, before = time.perf_counter(), used(processes)
            llm.generate(prompts, asked, use_tqdm=False)
            if extra:
                found = llm.collective_rpc("probers_scores")[0]["all"]
                llm.collective_rpc("probers_scores", args=(["all"],))
                assert sum(len(scores) for _, scores, _ in found.values()) == STREAMS * (TOKENS - 1)
            if turn:  # the first is a warm-up
                measured[name].append((time.perf_counter() - begun, used(processes) - before))
        if turn:
            print(turn, {name: tuple(round(x, 2) for x in each[-1]) for name, each in measured.items()})
    results = Results({"vllm": "way | tokens/s | of plain | by processor time | target | verdict"})
    for name, values in measured.items():
        speeds = [STREAMS * TOKENS / seconds for seconds, _ in values]
        clock, processor = (
            ratios([each[k] for each in measured["plain"]], [each[k] for each in values]) for k in (0, 1)
        )
        goal = (">= 0.95", verdict(statistics.median(clock) >= 0.95)) if name == "scored" else ()
        results.row("vllm", name, spread(speeds, 0), spread(clock), spread(processor), *goal)
    note = f"{model} in bfloat16, {STREAMS} streams of {TOKENS} tokens, {rounds} rounds by turns."
    results.note("vllm", note)
    section = {"vLLM with scores (cpu)": results.body("vllm")}
    publish(section, invocation("serve_vllm.py", []), write=asked_for.write)


def started(options: dict[str, Any]) -> tuple[Any, list[psutil.Process]]:
    """An engine, and the processes that it runs in."""
    from vllm import LLM

    here = psutil.Process()
    before = set(here.children(recursive=True))
    llm = LLM(**options)
    return llm, [each for each in here.children(recursive=True) if each not in before]


def used(processes: list[psutil.Process]) -> float:
    """Seconds that processes have computed."""
    times = [each.cpu_times() for each in processes]
    return sum(chain.from_iterable((each.user, each.system) for each in times))


if __name__ == "__main__":
    main()
