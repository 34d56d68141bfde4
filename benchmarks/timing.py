"""Timing of alternatives that take turns, their ratios, and the tables of these."""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

_CELL_S = 25.0  # a shorter comparison is repeated more often
_MOST = 9


@dataclass(slots=True)
class Results:
    """Rows and remarks per section, and whether all ways gave the same.

    Attributes:
        heads: column titles per section, separated as the cells of a row are.
    """

    heads: dict[str, str]
    rows: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    same: bool = True

    def row(self, section: str, *cells: object) -> None:
        """Add a row; cells left out at its end are empty."""
        cells += ("",) * (len(self.heads[section].split(" | ")) - len(cells))
        self.rows.setdefault(section, []).append(" | ".join(map(str, cells)))

    def note(self, section: str, text: str) -> None:
        """Add a remark unless it is already there."""
        notes = self.notes.setdefault(section, [])
        if text not in notes:
            notes.append(text)

    def body(self, section: str) -> str:
        """Format the section as Markdown."""
        head = self.heads[section]
        rule = " | ".join("---" for _ in head.split(" | "))
        table = "\n".join(f"| {line} |" for line in (head, rule, *self.rows.get(section, [])))
        return table + "\n\n" + "\n".join(f"- {note}" for note in self.notes.get(section, []))


def by_turns(
    work: dict[str, Callable[[], Any]],
    *,
    warm: dict[str, Callable[[], Any]],
    least: int,
    exactly: int | None,
    device: torch.device,
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return seconds of every way in every round, and each way's first result.

    Each round begins with another way, so that no way always follows the slowest.

    Args:
        work: the ways.
        warm: run once before, untimed.
        least: fewest rounds; more if they are short.
        exactly: number of rounds, whatever they take; None leaves it to ``least``.
    """
    for warm_up in warm.values():
        warm_up()
    gc.collect()
    gc.freeze()  # present objects are never garbage, so collecting between the ways is free
    names = list(work)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, Any] = {}
    rounds, done = exactly or least, 0
    while done < rounds:
        start = done % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            begun = now(device)
            result = work[name]()
            seconds[name].append(now(device) - begun)
            results.setdefault(name, result)
        done += 1
        if done == 1 and exactly is None:
            spent = sum(times[0] for times in seconds.values())
            rounds = max(least, min(_MOST, int(_CELL_S / spent)))
    gc.unfreeze()
    print(
        f"  {', '.join(f'{n} {t[0]:.2f} s' for n, t in seconds.items())}; rounds: {rounds}", file=sys.stderr
    )
    return seconds, results


def now(device: torch.device | None) -> float:
    """Return the time once the accelerator has finished its work; None stands for the present one, if any."""
    if torch.accelerator.is_available() and (device is None or device.type != "cpu"):
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format median with lowest and highest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide the times ``above`` by the times ``below``, round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def verdict(reached: bool) -> str:
    """Say in the table's words whether a target was reached."""
    return "met" if reached else "**not met**"
