"""Speed and memory of the engine, compared with plain generation and with the peers' way.

    python benchmarks/capture.py                              # testbed and a random 12-layer model
    python benchmarks/capture.py --models testbed,random,7b   # with a GPU
    python benchmarks/capture.py --models smollm2 --prompt-tokens 256 --new-tokens 48

Every figure is a ratio of variants that take turns in this process, so a slow moment of the
machine affects all of them. The ratio is computed within each round; the tables show the median
over rounds with the lowest and highest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from cost import against_peers, passages, speed
from flags import add_place
from report import device_name, invocation, publish
from reuse import batching, prefix
from timing import Results
from workload import ABOUT, REAL, SECTIONS, SHAPES, Options, build

from probers import CausalLM
from probers.model.loading import pick_device
from probers.types import RunError, UserError

TITLES = {
    "capture": "Capture while generating, against plain generation",
    "peers": "Capture against the peers' way",
    "prefix": "Reuse of a common prefix",
    "batching": "Batches of prompts of mixed length",
    "passages": "Reading after passages, with and without attention by passage",
}
HEADS = {
    "capture": "model | batch | way | tokens/s | of plain | of nothing asked | of all states | "
    "target | verdict",
    "peers": "model | batch | figure | peers | ours | ratio | target | verdict",
    "prefix": "model | way | seconds | times as fast | target | verdict",
    "batching": "model | way | prompts/s | times as fast | padding waste | target | verdict",
    "passages": "model | batch | way | seconds | of states | target | verdict",
}
NOT_HERE = "not measured: needs an accelerator"


def measure(name: str, lm: CausalLM, options: Options, results: Results) -> None:
    """Measure all requested sections on one model."""
    parts = {
        "capture": speed, "peers": against_peers, "prefix": prefix, "batching": batching,
        "passages": passages,
    }  # fmt: skip
    for section in sections(options):
        print(f"{name}: {section}", file=sys.stderr)
        parts[section](name, lm, options, results)


def sections(options: Options) -> list[str]:
    """List the requested tables; capture, attention and states share one."""
    shared = {"attention", "states"} & set(options.only)
    return [s for s in TITLES if s in options.only or (s == "capture" and shared)]


def surroundings(device: torch.device, load: Sequence[float]) -> str:
    """Describe the influences on the figures besides the machine."""
    place = device_name(device)
    loads = f"{load[0]:.1f} before and {os.getloadavg()[0]:.1f} after"
    return f"On {place}, float32 unless stated otherwise, {torch.get_num_threads()} threads, load {loads}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if the compared ways did not give the same."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    args = _parse(argv)
    device = pick_device(args.device)
    options = Options(**{f.name: getattr(args, f.name) for f in fields(Options) if hasattr(args, f.name)})
    results, load, begun, code = Results(HEADS), os.getloadavg(), time.monotonic(), 0
    for name in args.models:
        if name in SHAPES and SHAPES[name].cuda_only and device.type == "cpu":
            for section in sections(options):
                results.row(section, ABOUT[name], NOT_HERE)
            continue
        try:
            measure(name, build(name, device, options.dtype), options, results)
        except (UserError, RunError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2 if isinstance(error, UserError) else 1
            break
    for section in [s for s in sections(options) if s in results.rows]:
        results.note(section, surroundings(device, load))
        of = f": {ABOUT[REAL]}" if REAL in args.models else ""
        title, body = f"{TITLES[section]}{of} ({device.type})", results.body(section)
        publish({title: body}, invocation("capture.py", argv), write=args.write and not code)
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes", file=sys.stderr)
    if not results.same:
        print("error: the ways compared did not give the same; see the notes", file=sys.stderr)
    return code or int(not results.same)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    def listed(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
        def parse(text: str) -> tuple[str, ...]:
            for word in text.split(","):
                if word not in known:
                    raise argparse.ArgumentTypeError(f"{word!r} is unknown; choose among {', '.join(known)}")
            return tuple(text.split(","))

        return parse

    def sizes(text: str) -> tuple[int, ...]:
        return tuple(positive(word) for word in text.split(","))

    def positive(text: str) -> int:
        if not text.isdecimal() or not int(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
        return int(text)

    usual = Options()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    known = ", ".join(ABOUT)
    add("--models", type=listed(list(ABOUT)), default=("testbed", "random", "7b"), help=f"among {known}")
    add("--batches", type=sizes, default=usual.batches, help="default 1,8,32")
    add("--repeats", type=positive, help="rounds per comparison; default: at least 3 (testbed) or 2")
    add("--prompt-tokens", type=positive, default=usual.prompt_tokens)
    add("--new-tokens", type=positive, default=usual.new_tokens)
    add("--only", type=listed(SECTIONS), default=SECTIONS, help=f"among {', '.join(SECTIONS)}")
    add_place(parser)
    add("--quick", action="store_true", help="batches 1 and 8, two rounds, a quarter of the questions")
    add("--slow", action="store_true", help="batching of the random model on a CPU as well")
    add("--write", action="store_true", help="replace the tables in benchmarks/RESULTS.md")
    args = parser.parse_args(argv)
    if REAL in args.models and len(args.models) > 1:
        parser.error(f"--models {REAL} is measured alone: its tables are sections of their own")
    if args.new_tokens < 2:
        parser.error("--new-tokens must be at least 2: the peers' way has no state of the last token")
    if args.quick:
        args.batches = tuple(batch for batch in args.batches if batch <= 8) or parser.error(
            "--quick takes batches up to 8"
        )
        args.repeats = args.repeats or 2
        args.questions, args.mixed = usual.questions // 4, usual.mixed // 4
    return args


if __name__ == "__main__":
    sys.exit(main())
