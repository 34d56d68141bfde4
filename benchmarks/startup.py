"""Processor seconds to score one short text, and the size of the wheel.

python benchmarks/startup.py [--model smollm2]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from results import ROOT, Results, Section, options, ratios, script, spread, verdict

#: Most processor seconds, and most megabytes of the wheel.
SECONDS, MEGABYTES = 4.0, 6.0
TEXT = {"prompt": "Who was she?", "answer": " Jane Austen was born in Steventon in 1775. She wrote Emma."}
IMPORTS = {
    "`import torch`": "import torch",
    "`import` of transformers' Llama": "import transformers.models.llama.modeling_llama",
}


def seconds_of(command: Sequence[str], folder: str) -> float:
    """Run a command on one thread, and return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_startup(results: Results, args: argparse.Namespace) -> None:
    """Time the command, and the imports that it cannot do without, in turn."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.jsonl").write_text(json.dumps(TEXT) + "\n", "utf-8")
        score = str(Path(sys.executable).with_name("probers-score"))
        options = ["texts=a.jsonl", f"model={args.model}", "out=scores", "overwrite=true"]
        if args.model == "testbed":
            score, options = str(Path(sys.executable).with_name("probers-rag")), [
                "trigger=never", "question=Who does Lena Zaser work for?",
            ]  # fmt: skip
        else:
            options += [f"prober={args.model}"]
        command = f"`{Path(score).name}` of one text, {args.model}"
        ways = {command: [score, *options]}
        ways |= {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(args.rounds + 1):
            for name, given in ways.items():
                spent = seconds_of(given, folder)
                if turn:  # the first fills the caches
                    seconds[name].append(spent)
    for name, times in seconds.items():
        met = statistics.median(times) <= SECONDS
        aim = (f"<= {SECONDS:g}", verdict(met)) if name == command else ()
        results.row("startup", name, spread(times), spread(ratios(times, seconds[command])), *aim)


def measure_size(results: Results, args: argparse.Namespace) -> None:
    """Build the wheel of the last commit, and weigh it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        with (
            subprocess.Popen(["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE) as made,
            tarfile.open(fileobj=made.stdout, mode="r|") as archive,
        ):
            archive.extractall(source, filter="data")
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, str(source)]
        subprocess.run(pip, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(folder).glob("*.whl")
        size = wheel.stat().st_size / 1e6
    results.row("size", wheel.name, f"{size:.2f}", f"<= {MEGABYTES:g}", verdict(size <= MEGABYTES))


SECTIONS = {
    "startup": Section(
        "Start of a "
        "command", "what | processor seconds | of the command | target | verdict", measure_startup, 150,
        "Each in a process of its own on one thread, with everything cached.",
    ),
    "size": Section("Size of the wheel", "wheel | MB | target | verdict", measure_size, 90),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__)
    parser.add_argument("--model", default="smollm2", help="testbed answers a question in place of scoring")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
