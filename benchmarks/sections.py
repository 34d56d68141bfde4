"""Sections of ``benchmarks/gpu.py``: measurements of one model that lies on the accelerator."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import capture
import labels
import torch
import uvicorn
from peers import plain
from results import Results, by_turns, now, ratios, spread
from workload import LLAMA, QWEN, REAL, SHAPES, build, long_prompts, synthetic

import serve
import train
from probers import CausalLM, Prober
from probers.heads import HEADS as KINDS
from probers.serve.app import make_app
from probers.serve.endpoint import Served
from probers.serve.scheduler import Scheduler
from probers.store.spec import FeatureSpec
from probers.types import Needs

#: Models on an accelerator, and on a CPU.
MODELS, TINY = (REAL, QWEN, LLAMA), ("testbed", REAL, f"tiny-{QWEN}", f"tiny-{LLAMA}")
HEADS = {
    "capture": capture.SECTIONS["capture"].columns,
    "memory": capture.SECTIONS["memory"].columns,
    "serve": serve.SECTIONS["serve"].columns,
    "attention": "model | batch | way | tokens/s | of plain",
    "heads": "model | batch | way | tokens/s | of plain",
    "labels": "model | articles | cuts | labels | seconds | cuts/s | labels/s",
    "train": "heads | width | examples | seconds | a step, ms | validation accuracy",
    "vllm": serve.SECTIONS["vllm"].columns,
}
NOTES = {
    "capture": capture.SECTIONS["capture"].note,
    "memory": capture.SECTIONS["memory"].note,
    "serve": f"Up to {serve.NEW} new tokens, greedy; two servers of the same weights that take turns, their "
    "client in a process of its own. The prober is untrained: what it costs does not depend on what it says.",
    "attention": "Attention of the last layer at every token, and all heads' share on the prompt (lookback).",
    "heads": "Scores of every token while it is written: `prober.watch` around transformers' own `generate`, "
    "and those of the engine's captured states.",
    "labels": "From reading the articles to the finished store, states of all layers. Random weights agree "
    "with no article, or by chance.",
    "train": "One pass over all layers with the default head and settings; a synthetic store.",
    "vllm": serve.SECTIONS["vllm"].note,
}
#: Limit of vLLM's time between two tokens, with scores relative to without.
SLOWER = 1.01


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements; ``vllm_share`` is the share of the accelerator's memory of each engine."""

    batches: tuple[int, ...] = (1, 8, 32, 128)
    prompt_tokens: int = 512
    new_tokens: int = 32
    batch: int = 8
    articles: int = 60
    examples: int = 2000
    streams: tuple[int, ...] = (1, 16, 64)
    rounds: int = 3
    vllm_share: float | None = 0.4


#: Sizes on a CPU.
SMALL = Sizes(
    batches=(1, 4), prompt_tokens=64, new_tokens=16, batch=2, articles=12, examples=240, streams=(1, 3),
    rounds=2, vllm_share=None,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """Measurement of one model in one number format; what it finds goes into ``results``.

    Attributes:
        articles: articles in a form that ``open_articles`` takes.
    """

    model: str
    device: torch.device
    dtype: str
    articles: str
    sizes: Sizes
    results: Results

    @property
    def title(self) -> str:
        """Name of the model in tables."""
        return f"{self.model}, {self.dtype}"


def measure_capture(job: Job, lm: CausalLM) -> None:
    """Compare recording with plain ``generate``, and with all hidden states and a second pass."""
    sizes = job.sizes.prompt_tokens, job.sizes.new_tokens, job.sizes.rounds
    capture.speed(job.title, lm, job.sizes.batches, sizes, job.results)


def measure_memory(job: Job, lm: CausalLM) -> None:
    """Measure peak memory: plain, in the others' way, and with recording."""
    # On a CPU each way is a process of its own.
    batches = sorted({max(job.sizes.batches)} if job.device.type == "cpu" else {8, max(job.sizes.batches)})
    sizes = job.sizes.prompt_tokens, job.sizes.new_tokens, job.dtype
    capture.room(job.model, job.title, lm, batches, sizes, job.results)


def measure_server(job: Job, lm: CausalLM) -> None:
    """Measure our server without scores and with them."""
    rows = max(job.sizes.streams)
    with (
        served(lm, None, job.model, rows) as bare,
        served(lm, untrained(lm), job.model, rows) as scored,
        serve.apart() as ask,  # in the servers' own process it would slow them down
    ):
        for streams in job.sizes.streams:
            prompts = serve.prompts_of(0, streams)
            urls = {serve.PLAIN: bare, serve.SCORED: scored}
            calls = {way: partial(ask, url, job.model, prompts) for way, url in urls.items()}
            host = torch.device("cpu")
            serve.compare(job.results, job.title, streams, calls, job.sizes.rounds, host)


@contextmanager
def served(lm: CausalLM, prober: Prober | None, name: str, rows: int) -> Iterator[str]:
    """Serve a model that is in memory already, on a thread; yield the URL."""
    entry = None if prober is None else {"name": "untrained", "threshold": prober.threshold}
    scheduler = Scheduler(lm, prober, rows=rows, most_waiting=rows, cache_megabytes=0)
    app = make_app(Served(scheduler, name, prober=entry))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def measure_attention(job: Job, lm: CausalLM) -> None:
    """Compare plain ``generate`` with reading attention: of one layer at all tokens, of all at the prompt."""
    shares = Needs.of((lm.num_layers,), site="lookback", pool="tokens")
    needs = {"last layer's attention": Needs(attention=True), "all heads' share on the prompt": shares}
    calls = {way: partial(lm.generate, needs=each) for way, each in needs.items()}
    _against_plain(job, lm, "attention", {way: _engine(call) for way, call in calls.items()})


def measure_heads(job: Job, lm: CausalLM) -> None:
    """Compare plain ``generate`` with heads that score each token."""
    prober = untrained(lm)
    needs = Needs.of(prober.layers, pool="tokens")

    def watched(prompts: Sequence[str], count: int) -> Any:
        with prober.watch(lm.model, per="token") as scores:
            written = plain(lm, prompts, count)
            assert scores.tokens
        return written

    def captured(prompts: Sequence[str], count: int) -> Any:
        made = lm.generate(prompts, max_new_tokens=count, needs=needs)
        for each in made:
            prober.score_states(each.state)
        return made

    _against_plain(job, lm, "heads", {"`prober.watch`": watched, "the engine, then the heads": captured})


def _engine(call: Callable[..., Any]) -> Callable[[Sequence[str], int], Any]:
    return lambda prompts, count: call(prompts, max_new_tokens=count)


def _against_plain(
    job: Job, lm: CausalLM, section: str, ways: dict[str, Callable[[Sequence[str], int], Any]]
) -> None:
    """Add rows of ways to write the same texts, next to plain generation."""
    batch, tokens, none = job.sizes.batch, job.sizes.new_tokens, capture.PLAIN
    prompts = long_prompts(lm.tokenizer, batch, job.sizes.prompt_tokens)
    calls: dict[str, Callable[..., Any]] = {none: partial(plain, lm), **ways}
    work = {way: partial(call, prompts, tokens) for way, call in calls.items()}
    took, made = by_turns(work, warm=work, rounds=job.sizes.rounds, device=lm.device)
    capture.check(job.results, section, f"{job.title}, batch {batch}", lm, prompts, made)
    for way in work:
        rate = spread([batch * tokens / seconds for seconds in took[way]], 1)
        job.results.row(section, job.title, batch, way, rate, spread(ratios(took[none], took[way]), 3))


def measure_labels(job: Job, lm: CausalLM) -> None:
    """Measure ``probers-datagen source=wiki``, from reading the articles to the finished store."""
    labels.ours(lm, job.articles, min(5, job.sizes.articles))  # warm-up
    begun = now(job.device)
    made = labels.ours(lm, job.articles, job.sizes.articles)
    seconds = now(job.device) - begun
    counts = [int(made[name]) for name in ("articles", "cuts", "spans")]
    rates = [f"{count / seconds:.1f}" for count in counts[1:]]
    job.results.row("labels", job.title, *counts, f"{seconds:.1f}", *rates)


def measure_training(job: Job, lm: CausalLM) -> None:
    """Train the default heads of all layers in one pass, over a store of the model's shape."""
    if job.device.type == "xpu":
        job.results.row("train", lm.num_layers, lm.width, "skipped: heads are not trained on xpu")
        return
    with tempfile.TemporaryDirectory(prefix="probers-gpu-") as folder:
        store = synthetic(Path(folder), job.sizes.examples, lm.num_layers, lm.width)
        made = train.fit(store, range(1, lm.num_layers + 1), str(job.device))
    cells = f"{made['seconds']:.1f}", f"{1000 * made['step']:.1f}", f"{made['accuracy']:.2f}"
    job.results.row("train", lm.num_layers, lm.width, job.sizes.examples, *cells)


def measure_vllm(job: Job, lm: CausalLM) -> None:
    """Measure the server of vLLM without scores and with them; skip it if vLLM does not run."""
    why = "its weights are on no disk" if job.model in SHAPES else serve.absent(job.device.type)
    if why:
        job.results.row("vllm", job.title, "", f"skipped: {why}")
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    share = {} if job.sizes.vllm_share is None else {"gpu_memory_utilization": job.sizes.vllm_share}
    setting = {"dtype": job.dtype, **share}
    with tempfile.TemporaryDirectory(prefix="probers-gpu-") as folder:
        untrained(lm).save_pretrained(folder)
        serve.in_vllm(job.results, job.model, folder, job.sizes.streams, job.sizes.rounds, setting, SLOWER)


#: Measurements in the order in which they run: first those with a target.
SECTIONS: dict[str, Callable[[Job, CausalLM], None]] = {
    "capture": measure_capture, "memory": measure_memory, "serve": measure_server,
    "attention": measure_attention, "heads": measure_heads, "labels": measure_labels,
    "train": measure_training, "vllm": measure_vllm,
}  # fmt: skip


def untrained(lm: CausalLM) -> Prober:
    """Make a prober of the shape of the shipped one; its scores mean nothing."""
    layers = sorted({max(1, round(lm.num_layers * share)) for share in (0.55, 0.65, 0.7)})
    spec = FeatureSpec(lm.spec, tuple(layers), lm.width, pool="tokens")
    head = KINDS["radio"]([f"0/layer{k}" for k in layers], lm.width)
    return Prober(spec, head, 0.0, aggregate="max")


def free(device: torch.device) -> None:
    """Give back what earlier measurements held."""
    gc.collect()
    if torch.accelerator.is_available() and device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def load(job: Job) -> CausalLM:
    """Load the model, or make its random weights on its device."""
    lm = build(job.model, job.device, job.dtype)
    lm.model.name_or_path = ""  # untrained probers are of the name alone, wherever the weights came from
    if job.model in SHAPES and job.device.type != "cpu":
        job.results.note("capture", f"{job.model}: {SHAPES[job.model].about}, made on the device.")
    return lm
