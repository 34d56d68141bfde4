"""Paired differences between methods, with intervals, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probers.markup import DASH, esc, interval, num, number, span

from .glyphs import interval_glyph
from .series import stem
from .summary import verdict
from .tables import Column, framed


def pairs_table(results: Mapping[str, Any], *, shown: int = 16) -> str:
    """Paired differences with intervals; those with a prober first, the rest folded away."""
    pairs: Mapping[str, Any] = results.get("pairs") or {}
    entries = [
        _oriented(pair, name, float(entry["diff"]), interval(entry.get("ci95")))
        for pair, figures in pairs.items()
        for name, entry in figures.items()
        if number((entry or {}).get("diff")) is not None
    ]
    if not entries:
        return ""
    entries.sort(
        key=lambda entry: (0, entry.pair.split(" vs ")[0]) if stem(entry.pair) == "probing" else (1, "")
    )
    reach = max((abs(end) for entry in entries for end in entry.ci or (entry.diff,)), default=0.0) or 1.0
    rows = [_difference_row(entry, reach) for entry in entries]
    columns = [
        Column("figure", "Figure", "Which figure the difference is in."),
        Column("diff", "Difference", "First method minus second, on the same questions."),
        Column("ci", "95% interval", "Paired bootstrap interval of the difference."),
        Column("plot", "around zero", "The interval around zero, all rows on one scale."),
        Column("verdict", "First is", "What the interval allows to say."),
    ]
    caption = "Differences between two methods, first minus second, on the same questions."
    table = framed("pairs", caption, "Pair", columns, rows[:shown])
    if len(rows) > shown:
        rest = framed("other-pairs", "The other pairs.", "Pair", columns, rows[shown:])
        table += f"<details><summary>The other {len(rows) - shown} differences</summary>{rest}</details>"
    return table


@dataclass(frozen=True, slots=True)
class Difference:
    """First method minus second in one figure, with the paired interval."""

    pair: str
    figure: str
    diff: float
    ci: tuple[float, float] | None


def _oriented(pair: str, figure: str, diff: float, ci: tuple[float, float] | None) -> Difference:
    """The difference with the prober first, so that its rows read alike."""
    first, versus, second = pair.partition(" vs ")
    if versus and stem(second) == "probing" and stem(first) != "probing":
        return Difference(f"{second} vs {first}", figure, -diff, None if ci is None else (-ci[1], -ci[0]))
    return Difference(pair, figure, diff, ci)


def _difference_row(entry: Difference, reach: float) -> str:
    key = entry.figure.split(".")[-1]
    label = {"em": "EM", "f1": "F1", "acc": "ACC", "auroc": "AUROC"}.get(key, key)
    words = verdict(entry.ci) if entry.ci else DASH
    settled = entry.ci is not None and words != "not settled"
    glyph = interval_glyph(entry.diff, entry.ci, (-reach, reach), zero=True) if entry.ci else DASH
    return (
        f'<tr><th scope="row">{esc(entry.pair)}</th><td>{esc(label)}</td>'
        f"<td>{num(entry.diff, 3, sign=True)}</td><td>{span(entry.ci, 3, sign=True) or DASH}</td>"
        f"<td>{glyph}</td><td>{f'<b>{words}</b>' if settled else words}</td></tr>"
    )
