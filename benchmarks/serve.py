"""Cost of the server: against the engine alone, and with scores against without; and of vLLM with scores.

    python benchmarks/serve.py [--models smollm2] [--streams 1 16]

Servers are separate processes that are idle while the others work; the clients that read their streams
run on the same processor. The section of vLLM needs an environment that has it (``make test-vllm``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import torch
from results import Results, Section, by_turns, goal, options, positive, ratios, script, spread, verdict

from probers import CausalLM
from probers.cli.compose import request

ENGINE, PLAIN, SCORED = "`CausalLM.generate`, one batch", "server without a prober", "server with scores"
#: The engine with as many threads of torch as the server, which leaves one for its clients.
FEWER = "the same with one thread fewer, as the server has"
#: Most tokens of a text, and least share of speed with scores.
NEW, SCORES = 64, 0.97


@dataclass(frozen=True, slots=True)
class Streamed:
    """Text with its number of tokens, and the seconds from the request to the first and the last chunk."""

    tokens: int
    first: float
    last: float

    @property
    def between(self) -> float:
        """Compute mean seconds between two tokens."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


async def stream(
    client: httpx.AsyncClient, url: str, model: str, prompt: str, *,
    begun: asyncio.Event | None = None, more: Mapping[str, Any] | None = None,
) -> Streamed:  # fmt: skip
    """Stream one greedy text.

    Args:
        begun: event set at its first chunk.
        more: further fields of the request.
    """
    body = {
        "model": model, "prompt": prompt, "max_tokens": NEW, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, **(more or {}),
    }  # fmt: skip
    began, first, last, tokens = time.perf_counter(), 0.0, 0.0, 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            if '"choices":[]' not in line.replace(" ", ""):
                last = time.perf_counter() - began
                first = first or last
                if begun is not None:
                    begun.set()
            if '"usage":' in line:
                tokens = (json.loads(line[6:])["usage"] or {}).get("completion_tokens", tokens)
    return Streamed(tokens, first, last)


def together(url: str, model: str, prompts: Sequence[str], **more: Any) -> list[Streamed]:
    """Run as many streams at once as there are prompts."""

    async def run() -> list[Streamed]:
        async with httpx.AsyncClient(timeout=600) as client:
            return await asyncio.gather(*(stream(client, url, model, p, more=more) for p in prompts))

    return asyncio.run(run())


def tokens_of(url: str, model: str, prompts: Sequence[str]) -> int:
    """Count the tokens of as many streams at once as there are prompts."""
    return sum(made.tokens for made in together(url, model, prompts))


@contextmanager
def apart() -> Iterator[Callable[[str, str, Sequence[str]], int]]:
    """Yield :func:`tokens_of` in a process of its own, for servers that live in this one."""
    command = [sys.executable, __file__, "--client"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        given, made = process.stdin, process.stdout
        assert given is not None and made is not None

        def ask(url: str, model: str, prompts: Sequence[str]) -> int:
            print(json.dumps([url, model, list(prompts)]), file=given, flush=True)
            return int(made.readline() or f"no answer: the client ended with {process.wait()}")

        try:
            yield ask
        finally:
            given.close()


def prompts_of(turn: int, streams: int) -> list[str]:
    """Make the prompts of a round, all new to a prefix cache."""
    text = f"Round {turn} of {streams}, article"
    return [f"{text} {i}: The history of the town begins in" for i in range(streams)]


@contextmanager
def served(model: str, prober: str, rows: int, dtype: str, device: str) -> Iterator[str]:
    """Run a server on a free port; yield its URL."""
    command = [
        str(Path(sys.executable).with_name("probers-serve")), f"model={model}", f"prober={prober}", "port=0",
        f"rows={rows}", "cache_megabytes=0", f"model.dtype={dtype}", f"model.device={device}",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = next((line for line in server.stdout if line.startswith("serving ")), "")
        if not line:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        server.terminate()
        server.wait(30)


def measure_serve(results: Results, args: argparse.Namespace) -> None:
    """Measure the engine, and both servers."""
    for model, prober in zip(args.models, args.probers, strict=True):
        rows, how = max(args.streams), {"dtype": args.dtype or "bfloat16", "device": args.device}
        with served(model, "none", rows, **how) as plain, served(model, prober, rows, **how) as scored:
            lm = CausalLM.from_pretrained(model, **how)
            for streams in args.streams:
                prompts = prompts_of(0, streams)
                calls: dict[str, Callable[[], int]] = {
                    ENGINE: partial(offline, lm, prompts),
                    FEWER: partial(offline, lm, prompts, spare=1),
                    PLAIN: partial(tokens_of, plain, model, prompts),
                    SCORED: partial(tokens_of, scored, model, prompts),
                }
                compare(results, f"{model}, {how['dtype']}", streams, calls, args.rounds, lm.device)


def offline(lm: CausalLM, prompts: Sequence[str], spare: int = 0) -> int:
    """Count the tokens of one batch of the engine, which leaves ``spare`` threads idle on a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - spare))
    try:
        return sum(len(made.token_ids) for made in lm.generate(prompts, max_new_tokens=NEW))
    finally:
        torch.set_num_threads(threads)


def compare(
    results: Results, model: str, streams: int, calls: dict[str, Callable[[], int]], rounds: int,
    device: torch.device,
) -> None:  # fmt: skip
    """Add the rows of one number of streams: of the servers, and of the engine where it is given."""
    took, made = by_turns(calls, warm=calls, rounds=rounds, device=device)
    per_token = {name: [s / max(1, made[name]) for s in took[name]] for name in calls}
    for name in calls:
        rate = spread([1 / s for s in per_token[name]], 1)
        row = [spread(ratios(per_token[each], per_token[name])) if each in calls else "" for each in
               (ENGINE, PLAIN)]  # fmt: skip
        if name == PLAIN and ENGINE in calls:
            least, met = goal(ratios(per_token[FEWER], per_token[name]), 0.9)
            row += [f"{least} of the engine with as many threads", met]
        if name == SCORED:
            least, met = goal(ratios(per_token[PLAIN], per_token[name]), SCORES)
            row += [f"{least} of no scores", met]
        results.row("serve", model, streams, name, rate, *row)


def measure_first(results: Results, args: argparse.Namespace) -> None:
    """Time the first token, in seconds, at an idle server, and while other texts are written.

    It is requested at a random moment of a step of the others: right after they began, it would always be at
    the beginning of a step.
    """
    others = max(args.streams) - 1
    for model, prober in zip(args.models, args.probers, strict=True):
        moments, alone, busy = random.Random(0), list[float](), list[float]()
        with served(model, prober, others + 1, args.dtype or "bfloat16", args.device) as url:
            to_first_token(url, model, [], prompts_of(0, 1)[0])
            for turn in range(1, args.rounds + 1):
                new, wait = f"Turn {turn}: a letter to the mayor of the town, who", moments.uniform(0, 1)
                alone.append(to_first_token(url, model, [], new))
                busy.append(to_first_token(url, model, prompts_of(turn, others), f"{new} ", wait))
        share = statistics.median(busy) / statistics.median(alone)
        cells = f"{share:.2f}", "<= 1.5", verdict(share <= 1.5)
        results.row("first", model, others, spread(alone, 3), spread(busy, 3), *cells)


def to_first_token(url: str, model: str, prompts: Sequence[str], new: str, wait: float = 0) -> float:
    """Time the first token of another text in seconds, sent ``wait`` seconds after all others began."""

    async def run() -> float:
        async with httpx.AsyncClient(timeout=600) as client:
            written = [asyncio.Event() for _ in prompts]
            others = [
                asyncio.create_task(stream(client, url, model, prompt, begun=begun))
                for prompt, begun in zip(prompts, written, strict=True)
            ]
            for begun in written:
                await begun.wait()
            await asyncio.sleep(wait)
            made = await stream(client, url, model, new)
            await asyncio.gather(*others)
        return made.first

    return asyncio.run(run())


def absent(device: str) -> str:
    """Say why vLLM cannot be measured on a device here; empty if it can."""
    if find_spec("vllm") is None:
        return "vLLM is not installed in this environment"
    from vllm.platforms import current_platform

    name = str(current_platform.device_type)
    return "" if name == device else f"the vLLM in this environment runs on {name}, not on {device}"


#: URL and processes of a server.
Server = tuple[str, list[Any]]


def measure_vllm(results: Results, args: argparse.Namespace) -> None:
    """Compare vLLM's server with and without scores."""
    if why := absent("cpu" if args.device == "auto" else args.device.partition(":")[0]):
        results.row("vllm", f"skipped: {why}")
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    for model, prober in zip(args.models, args.probers, strict=True):
        in_vllm(results, model, prober, args.streams, args.rounds, {"dtype": args.dtype or "bfloat16"})


def in_vllm(
    results: Results, model: str, prober: str, streams: Sequence[int], rounds: int, setting: dict[str, Any],
    slower: float = 1.05,
) -> None:  # fmt: skip
    """Add the rows of a model, of the server without scores and of the one with them.

    Args:
        setting: number format, and further options of vLLM.
        slower: largest ratio of the time between two tokens with scores to that without.
    """
    limits = {"max_model_len": 256, "max_num_seqs": max(streams), "max_num_batched_tokens": 512, **setting}
    both = [serving(model, prober, limits, scored=scored) for scored in (False, True)]
    with both[0] as plain, both[1] as ours:
        for count in streams:
            ways = {"vllm serve": plain, "with scores": ours}
            took: dict[str, list[float]] = {name: [] for name in ways}
            spent: dict[str, list[float]] = {name: [] for name in ways}
            between: dict[str, list[float]] = {name: [] for name in ways}
            for turn in range(rounds + 1):
                for name, (url, processes) in ways.items():
                    begun, before = time.perf_counter(), used(processes)
                    made = together(url, model, prompts_of(turn, count), ignore_eos=True)
                    assert {text.tokens for text in made} == {NEW}
                    if turn:  # the first is a warm-up
                        took[name].append(time.perf_counter() - begun)
                        spent[name].append(used(processes) - before)
                        between[name].append(statistics.mean(text.between for text in made))
            first = "vllm serve"
            for name in ways:
                clock, waits = ratios(took[first], took[name]), ratios(between[name], between[first])
                met = statistics.median(clock) >= SCORES and statistics.median(waits) <= slower
                aim = (f">= {SCORES}, <= {slower}", verdict(met)) if name == "with scores" else ()
                results.row(
                    "vllm", f"{model}, {setting['dtype']}", count, name,
                    spread([count * NEW / s for s in took[name]], 0), spread(clock),
                    spread(ratios(spent[first], spent[name])), spread([1000 * s for s in between[name]], 1),
                    spread(waits, 3), *aim,
                )  # fmt: skip


@contextmanager
def serving(model: str, prober: str, limits: dict[str, Any], *, scored: bool) -> Iterator[Server]:
    """Run a server of vLLM."""
    import psutil

    from probers.serve.vllm.prober import command

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    typed = ["backend=vllm", f"model.name={model}", f"model.dtype={limits['dtype']}", f"port={port}"]
    argv, environment = command(request("serve", typed), prober)
    if not scored:
        environment = {}
        for option in ("--worker-cls", "--scheduler-cls", "--additional-config"):
            place = argv.index(option)
            del argv[place : place + 2]
    for name, value in limits.items():
        if name != "dtype":
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


def used(processes: Sequence[Any]) -> float:
    """Add up the seconds of processor time of processes."""
    return sum(each.cpu_times().user + each.cpu_times().system for each in processes)


SECTIONS = {
    "serve": Section(
        "Serving", "model | streams | way | tokens/s | of the engine | of no scores | target | verdict",
        measure_serve, 400,
        f"{NEW} new tokens, greedy, over HTTP; rounds in turn; streams are read by a client on the same "
        f"cores.",
    ),
    "first": Section(
        "Serving: seconds to the first token",
        "model | other streams | idle, s | beside them, s | ratio | target | verdict",
        measure_first, 150, "With scores; asked for at a random moment of the others' writing.",
    ),
    "vllm": Section(
        "vLLM with scores",
        "model | streams | way | tokens/s | of plain | by processor time | between, ms | of plain's | "
        "target | verdict",
        measure_vllm, 400, f"Two servers of vLLM that take turns; {NEW} new tokens in every stream.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=["smollm2"])
    parser.add_argument("--probers", nargs="+", default=["smollm2"], help="one for each model")
    parser.add_argument("--streams", nargs="+", type=positive, default=[1, 16])
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        for line in sys.stdin:
            print(tokens_of(*json.loads(line)), flush=True)
    else:
        sys.exit(main())
