"""All benchmarks that need an accelerator, for one model, with a verdict at the end.

    python benchmarks/gpu.py --model NAME --device cuda [--dtypes bfloat16] [--articles FILE] [--write]

``make gpu model=NAME device=cuda`` is the same. It runs every section below in every number format that the
device has, prints the tables, and ends with 1 if a target was missed or a section failed. On a CPU sizes are
small, the model is the testbed's unless one is named, and no target of speed is judged.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import capture
import labels
import serve_vllm
import torch
from cost import peak
from report import device_name, invocation, publish
from streams import NEW
from synthetic import synthetic
from timing import Results, now, verdict
from workload import SHAPES, Options, build, long_prompts

import serve
import train
from probers import CausalLM, Prober
from probers.heads import HEADS as KINDS
from probers.model.loading import native_bfloat16, pick_device
from probers.store.spec import FeatureSpec
from probers.types import UserError, first_line

TITLES = {
    "capture": "capture while generating",
    "memory": "peak memory",
    "labels": "labels from articles",
    "train": "training of heads",
    "serve": "server",
    "vllm": "vLLM",
}
HEADS = {
    "capture": capture.HEADS["capture"],
    "memory": "model | batch | way | weights, MB | beside them at the peak, MB | altogether, MB",
    "labels": "model | articles | cuts | labels | seconds | cuts/s | labels/s",
    "train": "heads | width | examples | seconds | a step, ms | validation accuracy",
    "serve": serve.HEADS["serve"],
    "vllm": serve_vllm.HEADS["served"],
}
#: Names in ``peers.ways``.
WAYS = {
    "plain": "plain `generate`",
    "ours": "capture of all layers and of the last layer's attention",
    "peers": "the same by `output_hidden_states=True` and a second pass",
}
NOT_JUDGED = "not judged on cpu"
NOTES = {
    "capture": "All ways take turns. The last two columns of ratios hold ours against the engine recording "
    "nothing and against `output_hidden_states=True`.",
    "memory": "On an accelerator what torch allocated. On a CPU the resident memory of a process for each "
    "way, without what it held before it began to generate.",
    "labels": "From reading the articles to the finished store, batches of 32, states of all layers.",
    "train": "One pass over all layers with the default head and settings; a synthetic store.",
    "serve": f"Up to {NEW} new tokens, greedy; two servers that take turns, their client on the same "
    "machine. The prober is untrained: what it costs does not depend on what it says.",
    "vllm": f"Two servers of vLLM that take turns; {NEW} new tokens in every stream.",
}
#: Limit of vLLM's time between two tokens, with scores relative to without.
SLOWER = 1.01


OPTIONS = Options(only=("capture", "states"), repeats=5, target=0.95)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements; ``vllm_share`` is the share of the accelerator's memory of each engine."""

    options: Options = OPTIONS
    articles: int = 1000
    examples: int = 5000
    streams: tuple[int, ...] = (1, 16, 64)
    rounds: int = 5
    vllm_share: float | None = 0.4


#: Sizes on a CPU.
SMALL = Sizes(
    options=replace(OPTIONS, repeats=2, batches=(1, 4), prompt_tokens=64, new_tokens=24),
    articles=60, examples=480, rounds=2, vllm_share=None,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """Measurement in one number format; its findings go into ``results``.

    Attributes:
        prober: folder of the servers' prober; it is made here.
        articles: articles in a form that ``open_articles`` takes.
    """

    model: str
    device: torch.device
    dtype: str
    prober: Path
    articles: str
    sizes: Sizes
    results: Results

    @property
    def title(self) -> str:
        """Name of the model in tables."""
        return f"{self.model}, {self.dtype}"

    @property
    def options(self) -> Options:
        return replace(self.sizes.options, dtype=self.dtype)


def dtypes_of(device: torch.device) -> list[str]:
    """List the number formats in which a device multiplies matrices without emulation."""
    if device.type == "cpu":
        return ["float32", *(["bfloat16"] if native_bfloat16() else [])]
    kinds = ["bfloat16", "float16", "float32"]
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        kinds.remove("bfloat16")
    return [kind for kind in kinds if _multiplies(device, kind)]


def _multiplies(device: torch.device, dtype: str) -> bool:
    try:
        some = torch.ones(8, 8, device=device, dtype=getattr(torch, dtype))
        return bool((some @ some).sum() == 512)
    except (RuntimeError, TypeError):
        return False


def measure_capture(job: Job, lm: CausalLM) -> None:
    """Compare capture with plain ``generate`` and with ``output_hidden_states=True``."""
    capture.measure(job.model, lm, job.options, job.results)


def measure_memory(job: Job, lm: CausalLM) -> None:
    """Measure peak memory of the largest batch: plain, with capture, and in the peers' way."""
    weights = sum(each.nbytes for each in lm.model.parameters()) / 1e6
    batch = max(job.options.batches)
    prompts = long_prompts(lm.tokenizer, batch, job.options.prompt_tokens)
    for way, name in WAYS.items():
        more = peak(job.model, way, lm, prompts, job.options) / 1e6
        cells = f"{weights:.0f}", f"{more:.0f}", f"{weights + more:.0f}"
        job.results.row("memory", job.title, batch, name, *cells)


def measure_labels(job: Job) -> None:
    """Measure ``probers-datagen source=wiki``, from reading the articles to the finished store."""
    lm = CausalLM.from_pretrained(job.model, device=str(job.device), dtype=job.dtype, batch_size=32)
    labels.ours(lm, job.articles, min(20, job.sizes.articles))  # warm-up
    begun = now(job.device)
    made = labels.ours(lm, job.articles, job.sizes.articles)
    seconds = now(job.device) - begun
    counts = [int(made[name]) for name in ("articles", "cuts", "spans")]
    rates = [f"{count / seconds:.1f}" for count in counts[1:]]
    job.results.row("labels", job.title, *counts, f"{seconds:.1f}", *rates)


def measure_training(job: Job, layers: int, width: int) -> None:
    """Train the default heads of all layers in one pass, over a store of the model's shape."""
    if job.device.type == "xpu":
        job.results.row("train", layers, width, "skipped: heads are not trained on xpu")
        return
    with tempfile.TemporaryDirectory(prefix="probers-gpu-") as folder:
        store = synthetic(Path(folder), job.sizes.examples, layers, width)
        made = train.trained_on(store, range(1, layers + 1), 0, str(job.device))
    cells = f"{made['seconds']:.1f}", f"{1000 * made['step']:.1f}", f"{made['accuracy']:.2f}"
    job.results.row("train", layers, width, job.sizes.examples, *cells)


def measure_server(job: Job) -> None:
    """Measure our server without scores and with them."""
    how = {"dtype": job.dtype, "device": str(job.device)}
    rows = max(job.sizes.streams)
    with (
        serve.served(job.model, "none", rows, **how) as plain,
        serve.served(job.model, str(job.prober), rows, **how) as scored,
    ):
        for streams in job.sizes.streams:
            calls = {
                name: partial(serve.tokens_of, url, job.model, serve_vllm.prompts_of(0, streams))
                for name, url in {serve.PLAIN: plain, serve.SCORED: scored}.items()
            }
            serve.compare(job.results, job.title, streams, calls, job.sizes.rounds, torch.device("cpu"))


def measure_vllm(job: Job) -> None:
    """Measure the same for vLLM; skip it if vLLM does not run."""
    if why := serve_vllm.absent(job.device.type):
        job.results.row("vllm", job.title, "", f"skipped: {why}")
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    sizes = job.sizes
    setting = serve_vllm.Setting(job.dtype, sizes.streams, SLOWER, sizes.vllm_share)
    found = Results(serve_vllm.HEADS)
    serve_vllm.served(found, job.model, str(job.prober), sizes.rounds, setting)
    job.results.rows.setdefault("vllm", []).extend(found.rows["served"])


def untrained(lm: CausalLM, folder: Path) -> None:
    """Save a prober of the shape of the shipped one; its scores mean nothing."""
    layers = sorted({max(1, round(lm.num_layers * share)) for share in (0.55, 0.65, 0.7)})
    spec = FeatureSpec(lm.spec, tuple(layers), lm.width, pool="tokens")
    head = KINDS["radio"]([f"0/layer{k}" for k in layers], lm.width)
    Prober(spec, head, 0.0, aggregate="max").save_pretrained(folder)


@contextmanager
def going_on(section: str, missed: list[str]) -> Iterator[None]:
    """Print a failure of the block and count it as missed, so that the other sections still run."""
    print(f"{section} ...", file=sys.stderr)
    try:
        yield
    except (Exception, SystemExit) as error:
        missed.append(f"{section} failed: {type(error).__name__}: {first_line(error)}")
        print(missed[-1], file=sys.stderr)


def run(job: Job, only: Sequence[str], missed: list[str], *, training: bool) -> None:
    """Run all sections in one number format; train heads, which have their own format, only if asked to."""
    lm = build(job.model, job.device, job.dtype)
    untrained(lm, job.prober)
    shape = lm.num_layers, lm.width
    sections: dict[str, Callable[[], Any]] = {
        "capture": partial(measure_capture, job, lm),
        "memory": partial(measure_memory, job, lm),
    }
    every_section(job, sections, only, missed)
    sections.clear()
    del lm  # the next sections need its memory
    sections = {
        "labels": partial(measure_labels, job),
        "train": partial(measure_training, job, *shape),
        "serve": partial(measure_server, job),
        "vllm": partial(measure_vllm, job),
    }
    every_section(job, sections, only if training else [name for name in only if name != "train"], missed)


def every_section(
    job: Job, sections: dict[str, Callable[[], Any]], only: Sequence[str], missed: list[str]
) -> None:
    """Run the requested sections; free the memory of earlier ones before each."""
    for section in [name for name in sections if name in only]:
        with going_on(f"{TITLES[section]}, {job.title}", missed):
            gc.collect()
            if job.device.type != "cpu":
                torch.get_device_module(job.device).empty_cache()
            sections[section]()


def judge(results: Results, device: torch.device) -> list[str]:
    """List the targets that were missed, by table and row; on a CPU remove the verdicts from the tables."""
    missed = []
    for section, rows in results.rows.items():
        for place, row in enumerate(rows):
            cells, _, word = row.rpartition(" | ")
            if device.type == "cpu" and word in (verdict(True), verdict(False)):
                rows[place] = f"{cells} | {NOT_JUDGED}"
            elif word == verdict(False):
                missed.append(f"{TITLES[section]}: {cells}")
    if not results.same:
        missed.append("the ways of generating that were compared did not write the same texts")
    return missed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a target was missed or a section failed."""
    typed = list(sys.argv[1:] if argv is None else argv)
    args, begun = parse(typed), time.monotonic()
    device, results, failed = pick_device(args.device), Results(HEADS), list[str]()
    sizes = SMALL if device.type == "cpu" else Sizes()
    for number, dtype in enumerate(args.dtypes):
        with tempfile.TemporaryDirectory(prefix="probers-gpu-") as folder, going_on(dtype, failed):
            job = Job(args.model, device, dtype, Path(folder) / "prober", args.articles, sizes, results)
            run(job, args.only, failed, training=not number)
    missed = judge(results, device) + failed
    show(results, args, typed, device)
    for each in missed:
        print(f"missed: {each}")
    minutes = (time.monotonic() - begun) / 60
    print(f"{'FAIL' if missed else 'PASS'}: {args.model} on {device_name(device)}, {minutes:.1f} minutes")
    return int(bool(missed))


def show(results: Results, args: argparse.Namespace, typed: Sequence[str], device: torch.device) -> None:
    """Print the tables, and write them if asked to."""
    words = [Path(word).name if word == args.articles else word for word in typed]
    for section in [name for name in TITLES if name in results.rows]:
        results.note(section, NOTES[section])
        title = f"make gpu: {TITLES[section]} ({args.model}, {device.type})"
        publish({title: results.body(section)}, invocation("gpu.py", words), write=args.write)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", default="", help="folder or id of the Hub; default on a CPU: testbed")
    add("--device", default="auto", help="cpu, cuda, xpu, mps; default: the best one")
    add("--dtypes", default="", help="number formats, as bfloat16,float32; default: all that the device has")
    add("--articles", default="testbed", help="FILE.jsonl with articles to label; default: the testbed's")
    add("--only", nargs="+", choices=TITLES, default=list(TITLES), help="sections")
    add("--write", action="store_true", help="put the tables into benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    try:
        device = pick_device(args.device)
    except UserError as error:
        parser.error(str(error))
    if not args.model and device.type != "cpu":
        parser.error("--model: name the model to measure, a folder or an id of the Hub")
    args.model = args.model or "testbed"
    if args.model in SHAPES:
        parser.error(f"--model {args.model} has no folder that a server could load")
    there = dtypes_of(device)
    args.dtypes = args.dtypes.split(",") if args.dtypes else there
    if unknown := [each for each in args.dtypes if each not in there]:
        parser.error(f"--dtypes {','.join(unknown)}: {device} has {', '.join(there)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
