"""All of benchmarks/RESULTS.md, made at one commit, and its tables as docs/results/speed_*.csv.

    python benchmarks/run.py [--scripts capture rag] [--minutes 35] [--quick]

``make benchmarks`` is the same. Each script runs in a process of its own and each section in its time limit.
A section that fails is a row that says so, and the others run. The file is written whenever there is a row;
tables of earlier commits are not in it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from results import ROOT, START, Results, Section, commit, machine, measured

#: Scripts in the order in which they run.
SCRIPTS = (
    "startup", "capture", "serve", "rag", "labels", "train", "retrieval", "search_server", "growth",
    "compiled",
)  # fmt: skip
#: Options of the smallest sizes, which try the scripts and measure nothing.
QUICK = {
    "capture": "--models tiny --batches 1 2 --prompt-tokens 16 --new-tokens 4 --rounds 1",
    "compiled": "--models tiny --batches 1 --backend eager --prompt-tokens 8 --new-tokens 4 --rounds 1",
    "labels": "--models testbed --articles 1 --few 1 --rounds 1",
    "train": "--examples 240 --layers 3 --width 8 --rounds 1",
    "rag": "--questions 1 --length 8 --exemplars 0 --rounds 1",
    "serve": "--models testbed --probers none --streams 1 2 --rounds 1",
    "retrieval": "--sizes 200 --questions 4 --articles 2 --rounds 1",
    "search_server": "--limit 200 --questions 4",
    "growth": "--quick --rounds 1",
    "startup": "--rounds 1 --model testbed",
}
HEAD = """\
# Benchmarks

Made by `make benchmarks` at commit {commit} on {date}, in {minutes:.0f} minutes{state}, on {machine}.

Compare ratios: both sides of each were measured in one run, in turn. A figure is the median of the rounds,
with the lowest and the highest in parentheses.
"""


def write(
    file: Path, head: str, tables: Mapping[str, Mapping[str, Section]], results: Mapping[str, Results]
) -> None:
    """Write the sections that have rows."""
    parts = [head]
    for name, made in results.items():
        for section, about in tables[name].items():
            if section in made.rows:
                command = f"`python benchmarks/{name}.py --only {section}`"
                parts.append(f"## {about.title}\n\n{command}\n\n{made.body(section).strip()}\n")
    text = "\n".join(parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def write_tables(folder: Path, results: Mapping[str, Results]) -> None:
    """Write each table as ``speed_SECTION.csv``, in place of all that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("speed*.csv"):
        old.unlink()
    for made in results.values():
        for section, rows in made.rows.items():
            with (folder / f"speed_{section}.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows(row.split(" | ") for row in (made.heads[section], *rows))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a section failed, or ways that were compared did not give the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--scripts", nargs="+", choices=SCRIPTS, default=list(SCRIPTS))
    add("--minutes", type=float, default=35, help="after which nothing runs; default 35")
    add("--quick", action="store_true", help="smallest sizes, to try the scripts")
    add("--nnsight", help="Python of an environment that has nnsight")
    add("--out", type=Path, default=ROOT / "benchmarks" / "RESULTS.md")
    add("--tables", type=Path, default=ROOT / "docs" / "results", help="folder of the CSV files")
    args = parser.parse_args(argv)
    begun, state, about = time.monotonic(), ", unfinished", {"commit": commit(), "machine": machine()}
    until = begun + args.minutes * 60
    tables: dict[str, Mapping[str, Section]] = {}
    results: dict[str, Results] = {}
    failed: list[str] = []

    def save(_: str = "") -> None:
        minutes = (time.monotonic() - begun) / 60
        date = datetime.date.today().isoformat()
        write(args.out, HEAD.format(**about, date=date, minutes=minutes, state=state), tables, results)

    for name in args.scripts:
        print(f"{(time.monotonic() - begun) / 60:.1f} min: {name}", file=sys.stderr)
        tables[name] = importlib.import_module(name).SECTIONS
        made = results[name] = Results({each: about.columns for each, about in tables[name].items()})
        limits = {START: 90.0} | {each: about.seconds for each, about in tables[name].items()}
        options = QUICK[name].split() if args.quick else []
        if name == "capture" and args.nnsight:
            options += ["--nnsight", args.nnsight]
        problems = measured(partial(_command, name, options), limits, until, made, save)
        if START in problems:
            failed.append(f"{name}: {problems[START]}")
        for section, each in tables[name].items():
            if (reason := problems.get(section)) is None and section not in made.rows:
                reason = "failed: no row"
            if reason is not None:
                made.row(section, reason)
                failed.append(f"{each.title}: {reason}")
            made.note(section, each.note)
        if not made.same:
            failed.append(f"{name}: the ways compared did not give the same; see the notes")
        save()
    state = ""
    save()
    if not args.quick or args.tables != parser.get_default("tables"):
        write_tables(args.tables, results)
    for line in failed:
        print(line)
    print(f"{args.out}: {(time.monotonic() - begun) / 60:.1f} minutes, {len(failed)} failed")
    return int(bool(failed))


def _command(name: str, options: Sequence[str], sections: Sequence[str], pipe: int) -> list[str]:
    script = str(Path(__file__).with_name(f"{name}.py"))
    return [sys.executable, script, *options, "--only", *sections, "--pipe", str(pipe)]


if __name__ == "__main__":
    sys.exit(main())
