"""All attacks with a seed and a scale, and the table of their outcomes (``make attack``)."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from . import damage, kills, options, sandbox, servers, writers
from .grounds import Grounds, prepare

Attack = Callable[[Grounds, int, random.Random], sandbox.Finding]

#: Kind -> (attack, number of cases at scale 1).
ATTACKS: dict[str, tuple[Attack, int]] = {
    "options": (options.attack, 6000),
    "damage": (damage.attack, 5000),
    "kills": (kills.attack, 400),
    "interrupts": (kills.interrupt, 100),
    "races": (writers.race, 64),
    "full disk": (writers.full_disk, 60),
    "read-only": (writers.read_only, 24),
    "servers": (servers.attack, 200),
}
_FEWEST = 4  # fewest cases of a kind at any scale


def campaign(
    seed: int, scale: float, only: str, folder: Path, progress: Callable[[str], None]
) -> list[sandbox.Finding]:
    """Run all attacks, or those of one kind ("damage"), some ("damage:0-99") or one ("damage:17") of them."""
    sandbox.warm()
    progress("preparing inputs and runs")
    grounds = prepare(folder)
    chosen, _, some = only.partition(":")
    first, _, last = some.partition("-")
    found: list[sandbox.Finding] = []
    for kind, (attack, count) in ATTACKS.items():
        if chosen not in ("", kind):
            continue
        cases = range(max(_FEWEST, round(count * scale)))
        if some:
            cases = range(int(first), int(last or first) + 1)
        began = time.monotonic()
        for done, index in enumerate(cases, 1):
            rng = random.Random(f"{seed} {kind} {index}")
            try:
                case = attack(grounds, index, rng)
            except Exception as error:  # a mistake of the attack itself must not end the campaign
                case = sandbox.Finding(
                    kind, index, "the attack itself failed", "traceback", repr(error)[:500]
                )
            found.append(case)
            if case.column in sandbox.BAD or len(cases) == 1:
                progress(told(case, seed))
            if done % 100 == 0:
                progress(f"{kind}: {done} of {len(cases)}, {(time.monotonic() - began) / done:.2f} s each")
    return found


def told(case: sandbox.Finding, seed: int) -> str:
    """Describe a case and how to repeat it."""
    kind = case.kind.partition(":")[0]
    head = f"{case.column.upper()} {case.kind} {case.index}: {case.what}"
    return f"{head}\n    {case.note}\n    make attack seed={seed} only='{kind}:{case.index}'"


def table(found: Sequence[sandbox.Finding]) -> str:
    """Format the table in Markdown."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for case in found:
        rows[case.kind][case.column] += 1
    heads = (
        "kind",
        "cases",
        "refused (exit 2)",
        "failed (exit 1)",
        "fine",
        "tracebacks",
        "hangs",
        "losses",
        "differences",
    )
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for kind, counts in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        cells = [counts[column] for column in sandbox.COLUMNS]
        lines.append(f"| {' | '.join([kind, str(counts.total()), *map(str, cells)])} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run ``seed=1 scale=1 only= report= folder=``; return exit code 1 if anything bad was found.

    ``folder`` keeps inputs and runs for the next campaign, which then need not be made again.
    """
    given = {"seed": "1", "scale": "1", "only": "", "report": "", "folder": ""}
    given |= dict(argument.split("=", 1) for argument in arguments)
    top = Path(given["folder"] or tempfile.mkdtemp(prefix="attack-"))
    folder = top / "deep" / "down"  # a path such as ../../x stays inside
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        found = campaign(
            int(given["seed"]),
            float(given["scale"]),
            given["only"],
            folder,
            lambda line: print(line, flush=True),
        )
    finally:
        if not given["folder"]:
            shutil.rmtree(top, ignore_errors=True)
    bad = [case for case in found if case.column in sandbox.BAD]
    minutes = (time.monotonic() - began) / 60
    about = f"seed={given['seed']} scale={given['scale']}, {len(found)} cases in {minutes:.0f} minutes"
    lines = [table(found), "", f"{about}: {len(bad)} bad"]
    print("\n".join(lines))
    if given["report"]:
        told_all = [f"- {told(case, int(given['seed']))}" for case in bad]
        Path(given["report"]).write_text(
            "\n".join([*lines, "", *told_all]) + "\n", encoding="utf-8", errors="replace"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
