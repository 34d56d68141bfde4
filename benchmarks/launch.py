"""Gain and cost of ``launch=ray``, by the wall time of whole commands on the testbed.

    python benchmarks/launch.py [--limit 4000] [--rounds 3] [--write]

Two workers with one thread each against one process with two threads, and one worker against the plain
command. Each command is timed from the start of Python to its end, including Ray's start and the merge.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from flags import positive
from report import invocation, publish
from timing import Results, ratios, spread, verdict

from probers import FeatureStore

SECTION = "launch: two Ray workers, and what one costs"
_RAY = "launch=ray launch.workers={0} launch.parts={0}"
#: Way -> threads of the process, and further options.
WAYS = {
    "one process, 1 thread": (1, ""),
    "`launch=ray`, 1 worker of 1 thread": (1, _RAY.format(1)),
    "one process, 2 threads": (2, ""),
    "`launch=ray`, 2 workers of 1 thread": (1, _RAY.format(2)),
}
ONE, COST, TWO, GAIN = WAYS
#: Way -> its reference, the least or most times as fast as that, and the form of the line.
TARGETS = {COST: (ONE, 0.95, ">= 0.95"), GAIN: (TWO, 1.3, ">= 1.3")}


def run(out: Path, limit: int, threads: int, options: str) -> tuple[float, int]:
    """Run a command; return its seconds and number of labels.

    Raises:
        SystemExit: it failed; its message is on standard error.
    """
    code = "from probers.commands.main import datagen; datagen()"
    typed = ["source=cot", f"limit={limit}", f"out={out}", *options.split()]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *typed],
        stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": str(threads)},
    )  # fmt: skip
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(typed)} ended with {done.returncode}")
    return seconds, len(FeatureStore.open(out))


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--limit", type=positive, default=4000, help="questions")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    options = parser.parse_args(argv)

    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    labels: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="probers-launch-") as folder:
        for turn in range(options.rounds):
            for number, (name, (threads, more)) in enumerate(WAYS.items()):
                spent, labels[name] = run(Path(folder) / f"{turn}-{number}", options.limit, threads, more)
                seconds[name].append(spent)
                print(turn, name, f"{spent:.1f} s, {labels[name]} labels", flush=True)
    results = Results({"launch": "command | seconds | labels/s | times as fast as | target | verdict"})
    for name in WAYS:
        rate = [labels[name] / s for s in seconds[name]]
        cells: tuple[str, ...] = ()
        if name in TARGETS:
            other, least, told = TARGETS[name]
            faster = ratios(seconds[other], seconds[name])
            cells = (f"{other}: {spread(faster)}", told, verdict(statistics.median(faster) >= least))
        results.row("launch", name, spread(seconds[name], 1), spread(rate, 1), *cells)
    results.note(
        "launch",
        f"testbed, {options.limit} questions with and without passages, all layers; {options.rounds} rounds "
        "in turn. Of Ray are its start (on this machine), its workers' start, and the merge.",
    )
    given = ["--limit", str(options.limit), "--rounds", str(options.rounds)]
    publish({SECTION: results.body("launch")}, invocation("launch.py", given), write=options.write)


if __name__ == "__main__":
    main()
