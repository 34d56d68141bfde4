"""All benchmarks that need an accelerator, in at most eight minutes, with a verdict at the end.

    python benchmarks/gpu.py --device cuda [--models NAME ..] [--dtypes bfloat16] [--out runs/gpu.md]

``make gpu device=cuda`` is the same. It measures SmolLM2 and random weights of the shapes of Qwen3-1.7B and
Llama-3.1-8B, which are made on the card. Each model has a process of its own and each section a time limit;
what is found is printed and written to ``--out`` at once. It ends with 1 if a target was missed or a section
failed. On a CPU sizes and models are small, and no target of speed or memory is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sections
import torch
from results import START, Results, Sending, commit, device_name, machine, measured, run_sections, verdict
from sections import HEADS, MODELS, NOTES, SECTIONS, SMALL, TINY, Job, Sizes
from workload import SHAPES

from probers.model.loading import native_bfloat16, pick_device
from probers.types import UserError

TITLES = {
    "capture": "capture while generating",
    "memory": "peak memory",
    "serve": "server",
    "attention": "attention while generating",
    "heads": "heads while generating",
    "labels": "labels from articles",
    "train": "training of heads",
    "vllm": "vLLM",
}
NOT_JUDGED = "not judged on cpu"
#: Seconds of a section, and of making a model; and of everything.
LIMITS = {
    START: 90.0, "capture": 90.0, "memory": 60.0, "serve": 60.0, "attention": 20.0, "heads": 20.0,
    "labels": 30.0, "train": 45.0, "vllm": 240.0,
}  # fmt: skip
MOST = 480.0
#: Times as long on a CPU, whose memory is measured in processes, and which may be busy.
ON_CPU = 5


def dtypes_of(device: torch.device) -> list[str]:
    """List the number formats in which a device multiplies matrices without emulation, the usual first."""
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


def worker(model: str, dtype: str, device: str, articles: str, names: Sequence[str], pipe: int) -> int:
    """Run the process of one model, which sends what it finds over a pipe."""
    results, sizes = Sending(HEADS, pipe=pipe), SMALL if device == "cpu" else Sizes()
    job = Job(model, torch.device(device), dtype, articles, sizes, results)
    lm = sections.load(job)

    def measure(name: str) -> None:
        sections.free(job.device)
        SECTIONS[name](job, lm)

    run_sections(results, {name: partial(measure, name) for name in names})
    return 0


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
    if typed[:1] == ["--worker"]:
        return worker(**json.loads(typed[1]))
    args, begun = parse(typed), time.monotonic()
    device, results, failed = pick_device(args.device), Results(HEADS), list[str]()
    slower = ON_CPU if device.type == "cpu" else 1
    limits = {section: seconds * slower for section, seconds in LIMITS.items()}
    until = begun + slower * args.minutes * 60
    for dtype in args.dtypes:
        for model in args.models:
            command = partial(_command, model, dtype, device, args.articles)
            # Heads have their own number format.
            names = [name for name in args.only if name != "train" or dtype == args.dtypes[0]]
            here = {START: limits[START]} | {name: limits[name] for name in names}
            problems = measured(command, here, until, results, partial(save, results, args, device))
            failed += [f"{model}, {dtype}, {name}: {problem}" for name, problem in problems.items()]
            for name in problems.keys() & set(TITLES):
                results.row(name, f"{model}, {dtype}", problems[name])
    missed = judge(results, device) + failed
    for section in [name for name in TITLES if name in results.rows]:
        results.note(section, NOTES[section])
    save(results, args, device)
    print(args.out.read_text("utf-8"))
    for each in missed:
        print(f"missed: {each}")
    minutes = (time.monotonic() - begun) / 60
    about = f"{', '.join(args.models)} on {device_name(device)}, {minutes:.1f} minutes"
    print(f"{'FAIL' if missed else 'PASS'}: {about}")
    return int(bool(missed))


def _command(
    model: str, dtype: str, device: torch.device, articles: str, names: Sequence[str], pipe: int
) -> list[str]:
    given: dict[str, Any] = {"model": model, "dtype": dtype, "device": str(device), "articles": articles}
    return [sys.executable, __file__, "--worker", json.dumps({**given, "names": list(names), "pipe": pipe})]


def save(results: Results, args: argparse.Namespace, device: torch.device, section: str = "") -> None:
    """Write the tables as they are into the file of this run, and print a section's last row."""
    if section:
        print(f"{TITLES[section]}: {results.rows[section][-1]}", file=sys.stderr)
    head = f"# make gpu\n\n{device_name(device)}, commit {commit()}, {machine()}.\n"
    tables = [f"## {TITLES[each]}\n\n{results.body(each)}\n" for each in TITLES if each in results.rows]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join([head, *tables]), encoding="utf-8")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", default=[], help=f"folders, ids of the Hub, or among {', '.join(SHAPES)}")
    add("--device", default="auto", help="cpu, cuda, xpu, mps; default: the best one")
    add("--dtypes", default="", help="number formats, as bfloat16,float32; default: the usual one")
    add("--articles", default="testbed", help="FILE.jsonl with articles to label; default: the testbed's")
    add("--only", nargs="+", choices=TITLES, default=list(TITLES), help="sections")
    add(
        "--minutes", type=float, default=MOST / 60, help="of everything; default: 8, on a CPU five times that"
    )
    add("--out", type=Path, default=Path("runs/gpu.md"), help="file for the tables, written as they are made")
    args = parser.parse_args(argv)
    try:
        device = pick_device(args.device)
    except UserError as error:
        parser.error(str(error))
    args.models = args.models or list(TINY if device.type == "cpu" else MODELS)
    for name in args.models:
        if device.type == "cpu" and name in SHAPES and SHAPES[name].cuda_only:
            parser.error(f"--models {name} is too large for a CPU: give tiny-{name}")
    there = dtypes_of(device)
    args.dtypes = args.dtypes.split(",") if args.dtypes else there[:1]
    if unknown := [each for each in args.dtypes if each not in there]:
        parser.error(f"--dtypes {','.join(unknown)}: {device} has {', '.join(there)}")
    if args.articles != "testbed":
        args.articles = os.path.abspath(args.articles)
    return args


if __name__ == "__main__":
    sys.exit(main())
