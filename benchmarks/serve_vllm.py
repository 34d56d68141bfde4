"""Cost of scores in vLLM: tokens per second of plain vLLM, and of vLLM with a prober, taking turns.

    VLLM_CPU_KVCACHE_SPACE=1 python benchmarks/serve_vllm.py [--model smollm2] [--prober smollm2] [--write]

Run it in the environment of ``make test-vllm``. Both engines run side by side. Without a server, every round
runs each of three variants once: plain, with the worker but unscored, and scored (scores fetched once, at the
end). With servers, ``vllm serve`` and the command of ``probers-serve backend=vllm``, it streams over HTTP,
every chunk with its scores; the clients run on the same processor. CPU time of their processes is reported
next to wall time, because other work on the machine disturbs it less.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import Any

import httpx
import psutil
from flags import positive
from report import invocation, publish
from streams import NEW, together
from timing import Results, ratios, spread, verdict

from probers.cli.compose import request
from probers.files import cache_folder
from probers.model.loading import dequantised, locate
from probers.testbed.assets import model_path

TITLES = {"engine": "vLLM with scores", "served": "vLLM with scores, served"}
HEADS = {
    "engine": "way | tokens/s | of plain | by processor time | target | verdict",
    "served": "model | streams | way | tokens/s | of plain | by processor time | between, ms | of plain's | "
    "target | verdict",
}
STREAMS = 16


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of the servers.

    Attributes:
        streams: numbers of texts at once, measured one after the other.
        slower: largest ratio of the time between two tokens with scores to that without.
        share: share of the accelerator's memory for each of two servers; None leaves it to vLLM.
    """

    dtype: str = "bfloat16"
    streams: tuple[int, ...] = (STREAMS,)
    slower: float = 1.05
    share: float | None = None

    def limits(self) -> dict[str, float]:
        """Make the options of vLLM."""
        limits = {"max_model_len": 256, "max_num_seqs": max(self.streams), "max_num_batched_tokens": 512}
        return limits if self.share is None else {**limits, "gpu_memory_utilization": self.share}


def absent(device: str) -> str:
    """Say why vLLM cannot be measured on a device here; empty if it can."""
    if find_spec("vllm") is None:
        return "vLLM is not installed in this environment"
    found = platform()
    return "" if found == device else f"the vLLM in this environment runs on {found}, not on {device}"


def platform() -> str:
    """Name the kind of device that vLLM runs on here."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


#: URL and processes of a server.
Server = tuple[str, list[psutil.Process]]


def folder(model: str) -> str:
    """Find the model for vLLM: a folder, or an id of the Hub."""
    file = locate(model, None, None)
    return (
        str(model_path())
        if model == "testbed"
        else model
        if file is None
        else str(dequantised(file, cache_folder("models")))
    )


def prompts_of(turn: int, streams: int = STREAMS) -> list[str]:
    """Make the prompts of a round, all new to the prefix cache."""
    text = f"Round {turn} of {streams}, article"
    return [f"{text} {i}: The history of the town begins in" for i in range(streams)]


def engine(results: Results, model: str, prober: str, rounds: int, setting: Setting) -> None:
    """Measure the engine alone."""
    from vllm import SamplingParams

    options = {"model": folder(model), "served_model_name": model, "dtype": setting.dtype, **setting.limits()}
    plain, of_plain = started(options)
    scoring = {
        "worker_cls": "probers.serve.vllm.worker.ScoringWorker",
        "scheduler_cls": "probers.serve.vllm.worker.ScoringScheduler",
        "additional_config": {"probers": {"prober": prober}},
    }
    ours, of_ours = started({**options, **scoring})
    ways = {
        "plain": (plain, of_plain, None),
        "worker, unscored": (ours, of_ours, None),
        "scored": (ours, of_ours, {"probers": "all"}),
    }
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (llm, processes, extra) in ways.items():
            asked = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True, extra_args=extra)
            begun, before = time.perf_counter(), used(processes)
            llm.generate(prompts_of(turn), asked, use_tqdm=False)
            if extra:
                found = llm.collective_rpc("probers_scores")[0]["all"]
                llm.collective_rpc("probers_scores", args=(["all"],))
                assert sum(len(scores) for _, scores, *_ in found.values()) >= STREAMS * (NEW - 1)
            if turn:  # the first is a warm-up
                measured[name].append((time.perf_counter() - begun, used(processes) - before))
        if turn:
            print(turn, {name: tuple(round(x, 2) for x in each[-1]) for name, each in measured.items()})
    for llm in (plain, ours):
        llm.llm_engine.engine_core.shutdown()
    for name, values in measured.items():
        clock, processor = compared(measured["plain"], values)
        goal = (">= 0.95", verdict(statistics.median(clock) >= 0.95)) if name == "scored" else ()
        results.row("engine", name, speeds(values, STREAMS), spread(clock), spread(processor), *goal)


def served(results: Results, model: str, prober: str, rounds: int, setting: Setting) -> None:
    """Measure the servers over HTTP."""
    both = [serving(model, prober, setting, scored=scored) for scored in (False, True)]
    with both[0] as plain, both[1] as ours:
        for streams in setting.streams:
            streamed(results, model, (plain, ours), streams, rounds, setting)


def streamed(
    results: Results, model: str, servers: Sequence[Server], streams: int, rounds: int, setting: Setting
) -> None:
    """Add the rows of one number of streams, of the server without scores and of the one with them."""
    ways = {"vllm serve": False, "with scores": True}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    between: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (url, processes) in zip(ways, servers, strict=True):
            begun, before = time.perf_counter(), used(processes)
            made = together(url, model, prompts_of(turn, streams), ignore_eos=True)
            assert {text.tokens for text in made} == {NEW}
            if turn:
                measured[name].append((time.perf_counter() - begun, used(processes) - before))
                between[name].append(statistics.mean(text.between for text in made))
        if turn:
            print(turn, {name: round(each[-1][0], 2) for name, each in measured.items()})
    for name, scored in ways.items():
        clock, processor = compared(measured["vllm serve"], measured[name])
        waits = ratios(between[name], between["vllm serve"])
        met = statistics.median(clock) >= 0.95 and statistics.median(waits) <= setting.slower
        results.row(
            "served", f"{model}, {setting.dtype}", streams, name, speeds(measured[name], streams),
            spread(clock), spread(processor),
            spread([1000 * seconds for seconds in between[name]], 1), spread(waits, 3),
            *((f">= 0.95, <= {setting.slower}", verdict(met)) if scored else ()),
        )  # fmt: skip


def compared(plain: Sequence[tuple[float, float]], ours: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Divide plain times by ours, by the clock and by processor time, round by round."""
    return [ratios([each[k] for each in plain], [each[k] for each in ours]) for k in (0, 1)]


def speeds(measured: Sequence[tuple[float, float]], streams: int) -> str:
    """Format the tokens per second of rounds."""
    return spread([streams * NEW / seconds for seconds, _ in measured], 0)


@contextmanager
def serving(model: str, prober: str, setting: Setting, *, scored: bool) -> Iterator[Server]:
    """Run a server."""
    from probers.serve.vllm.prober import command

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    typed = ["backend=vllm", f"model.name={model}", f"model.dtype={setting.dtype}", f"port={port}"]
    argv, environment = command(request("serve", typed), prober)
    if not scored:
        environment = {}
        for option in ("--worker-cls", "--scheduler-cls", "--additional-config"):
            place = argv.index(option)
            del argv[place : place + 2]
    for name, value in setting.limits().items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    server = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while not alive(url):
            if server.poll() is not None:
                raise SystemExit(f"{' '.join(argv)} did not start")
            time.sleep(1)
        whole = psutil.Process(server.pid)
        yield url, [whole, *whole.children(recursive=True)]
    finally:
        server.terminate()
        server.wait(60)


def alive(url: str) -> bool:
    """Tell whether a server answers."""
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def started(options: dict[str, Any]) -> tuple[Any, list[psutil.Process]]:
    """Start an engine; return it and the processes that it runs in."""
    from vllm import LLM

    here = psutil.Process()
    before = set(here.children(recursive=True))
    llm = LLM(**options)
    return llm, [each for each in here.children(recursive=True) if each not in before]


def used(processes: list[psutil.Process]) -> float:
    """Add up the seconds of processor time of processes."""
    times = [each.cpu_times() for each in processes]
    return sum(chain.from_iterable((each.user, each.system) for each in times))


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the sections if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prober", default="smollm2")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--write", action="store_true", help="put the sections into RESULTS.md")
    asked = parser.parse_args(argv)
    results, setting = Results(HEADS), Setting()
    for section in asked.only:
        {"engine": engine, "served": served}[section](
            results, asked.model, asked.prober, asked.rounds, setting
        )
        note = f"{asked.model} in bfloat16, {STREAMS} streams of {NEW} tokens, {asked.rounds} rounds in turn."
        results.note(section, note)
    bodies = {f"{TITLES[section]} ({platform()})": results.body(section) for section in asked.only}
    typed = [] if len(asked.only) == len(TITLES) else ["--only", *asked.only]
    publish(bodies, invocation("serve_vllm.py", typed), write=asked.write)


if __name__ == "__main__":
    main()
