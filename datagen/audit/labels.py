"""Composition of labelled data, and how well a text-only detector predicts the labels.

A head that finds hallucinations proves something only if the text alone does not give
them away. Labels of held-out articles are therefore predicted from words, length, position
and entity type, and the result is compared with a linear probe on the hidden states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probers.evaluation.bootstrap import UNDEFINED, Interval
from probers.pages import number, render
from probers.store.store import FeatureStore

from .leaks import BASELINES, PROBE, Leaks, measure_leaks
from .sampling import UNDECIDED, Drawn, Tally, draw_rows, read_drawn

#: Text-only AUROC that counts as a leak whatever a probe reaches, if its interval is above chance.
FAR = 0.65
#: Characters read of a prompt (its end), and of a continuation and an answer (their beginnings).
_READ = 4000
#: Largest distance of the share of wrong texts from a half that needs no advice to balance.
_UNEVEN = 0.05
#: Number of values of a column that are printed, the most frequent ones.
_LISTED = 20
#: Number of cases without a label that are shown.
MOST_UNDECIDED = 15
#: Characters shown of the text before the cut, of a continuation, and of any shorter text.
_BEFORE, _AFTER, _SHORT = 300, 600, 240
#: Labels in words with a sign, so that colour is not the only difference.
_LABELS = {1: ("faithful", "✓"), 0: ("hallucinated", "✗")}


@dataclass(frozen=True, slots=True)
class Audit:
    """Figures of :func:`audit` for JSON, and the same figures as lines to print.

    ``labels`` are counted by column and value, ``undecided`` for compared entities only. ``differences`` are
    the AUROC of the probe minus that of a baseline.
    """

    figures: dict[str, Any]
    lines: list[str]


def audit(store: FeatureStore, *, seed: int, most: int = 20_000) -> Audit:
    """Count labels, and measure what predicts the labels of held-out articles.

    Everything is fitted on training groups (articles) and measured on test groups, with 95% bootstrap
    intervals clustered by group. Predictions use at most ``most`` spans, counts use all. Long prompts are
    read at their end, long texts at their beginning.
    """
    drawn = draw_rows(store, seed=seed, most=most, tally=("correct", "question_type", "match_stage"))
    columns = ["group", "split", "correct", *(c for _, _, *read in BASELINES.values() for c in read)]
    cuts = {"question": slice(-_READ, None), "text": slice(_READ), "answer": slice(_READ)}
    table = read_drawn(store, drawn, columns, cuts)
    leaks = measure_leaks(store, drawn.rows, table, seed=seed)
    both = table.groupby("group")["split"].nunique()
    warnings = _warnings(leaks, [str(group) for group in both.index[both > 1]], store.config, drawn)
    labels = {name: tally for name, tally in drawn.tallies.items() if name != "correct"}
    wrong = sum(events for _, events in drawn.tallies["correct"].values()) / max(drawn.spans, 1)
    undecided = _undecided(store) if "match_stage" in labels else None
    figures = {
        "rows": drawn.stored, "spans": drawn.spans, "drawn": len(drawn.rows), "wrong": round(wrong, 4),
        "labels": {
            name: {value: {"n": n, "wrong": round(k / n, 4)} for value, (n, k) in sorted(tally.items())}
            for name, tally in labels.items()
        },
        "undecided": undecided,
        "splits": leaks.splits,
        "detectors": {
            name: _figures("accuracy", m.accuracy) | _figures("auroc", m.auroc)
            for name, m in leaks.detectors.items()
        },
        "probe": leaks.probe and {
            "layer": leaks.probe.layer, "tried": list(leaks.probe.tried),
            "validation_auroc": leaks.probe.validation and round(leaks.probe.validation, 4),
        },
        "differences": {name: _figures("auroc", d) for name, d in leaks.differences.items()},
        "warnings": warnings, "notes": leaks.notes,
    }  # fmt: skip
    word = "hallucinated" if "match_stage" in labels else "wrong"
    lines = [*_counts(drawn, wrong, labels, word), *_left_out(undecided), *_table(leaks, word), *warnings]
    return Audit(figures, lines)


def _undecided(store: FeatureStore) -> dict[str, Any]:
    stages = Counter(str(case.get("stage", "")) for case in store.left_out() if case["reason"] == UNDECIDED)
    n, cuts = stages.total(), len(store.units)
    return {"n": n, "share": round(n / cuts, 4) if cuts else None, "by_stage": dict(sorted(stages.items()))}


def _left_out(undecided: Mapping[str, Any] | None) -> list[str]:
    if undecided is None or not undecided["n"]:
        return []
    share = "" if undecided["share"] is None else f" ({undecided['share']:.1%} of all cuts)"
    stages = ", ".join(f"{stage} {n:,}" for stage, n in undecided["by_stage"].items())
    return [f"  undecided and left out: {undecided['n']:,}{share}{f': {stages}' if stages else ''}"]


def _counts(drawn: Drawn, wrong: float, labels: Mapping[str, Tally], word: str) -> list[str]:
    lines = [f"audit: {drawn.spans:,} examples, {wrong:.1%} {word}"]
    if drawn.stored != drawn.spans:
        rows = f"{drawn.stored:,} rows are tokens of {drawn.spans:,} spans"
        lines.append(f"  {rows}: every figure is of one row per span, its last token")
    if len(drawn.rows) < drawn.spans:
        lines.append(f"  the predictions below use {len(drawn.rows):,} examples drawn by seed")
    for name, tally in labels.items():
        counts = sorted(tally.items(), key=lambda item: (-item[1][0], item[0]))
        shown = [f"{value or '(none)'} {n:,} ({events / n:.0%} {word})" for value, (n, events) in counts]
        if len(shown) > _LISTED:
            shown[_LISTED:] = [f"{len(shown) - _LISTED} more"]
        kind = name.replace("question", "entity") if "match_stage" in labels else name
        lines.append(f"  by {kind.replace('_', ' ')}: {', '.join(shown)}")
    return lines


def _table(leaks: Leaks, word: str) -> list[str]:
    notes = [f"note: {note}" for note in leaks.notes]
    if leaks.probe is None:
        return notes
    train, test = leaks.splits["train"], leaks.splits["test"]
    lines = [
        f"what tells the labels apart: fitted on {train['n']:,} examples of {train['groups']:,} groups, "
        f"measured on {test['n']:,} of {test['groups']:,} others ({test['wrong']:.0%} {word}); 95% intervals",
        f"  {'':24}{'accuracy':22}AUROC",
    ]
    for name, measured in leaks.detectors.items():
        shown = f"{name}, layer {leaks.probe.layer}" if name == PROBE else name
        lines.append(f"  {shown:24}{_shown(measured.accuracy):22}{_shown(measured.auroc)}")
    return [*lines, *notes]


def _warnings(leaks: Leaks, two_sided: list[str], config: Mapping[str, Any], drawn: Drawn) -> list[str]:
    """Warn of whatever inflates a head's figure on these labels, with remedies."""
    lines = []
    if two_sided:
        where = f"{len(two_sided)} groups are on two sides of the split (such as {two_sided[0]!r})"
        lines.append(f"warning: {where}: no figure on it is held out")
    if leaks.probe is None:
        return lines
    probe = leaks.detectors[PROBE].auroc
    if blind := probe is None or not probe.low > 0.5:
        chance = f"the probe is not above chance (AUROC {_shown(probe)})"
        remark = "these states are not shown to tell the labels apart, and every baseline is within reach"
        lines.append(f"warning: {chance}: {remark}")
    same: dict[tuple[Interval, Interval], list[str]] = {}  # where answer and text are the same words
    for name, difference in leaks.differences.items():
        same.setdefault((leaks.detectors[name].auroc or UNDEFINED, difference), []).append(name)
    for (measured, difference), names in same.items():
        above = measured.low > 0.5
        far, near = above and measured.value >= FAR, not blind and not difference.low > 0
        claim = f"the probe has {_shown(probe)}, difference {_shown(difference, sign=True)}"
        reach = f", and is within reach of what a head could claim: {claim}" if near else ""
        what = f"predict{'s' * (len(names) == 1)} the labels without the model"
        what = what if above else "not shown to be above chance"
        line = f"warning: {' and '.join(names)} {what}, AUROC {_shown(measured)}{reach}"
        lines += [line] if far or near else []
    if not lines:
        return []
    options = []
    uneven = any(abs((size["wrong"] or 0.5) - 0.5) > _UNEVEN for size in leaks.splits.values())
    # Labels of single tokens cannot be balanced.
    if uneven and not (config.get("balance", True) or config.get("balance_to") or "mark" in drawn.columns):
        options.append("balance=true (as many of one label as of the other in every split)")
    if config.get("negatives") == "untouched":
        options.append("negatives=generated (both labels from texts the model wrote)")
    options.append("more articles or questions (a higher limit narrows the intervals)")
    return [*lines, f"what may help: {'; '.join(options)}"]


def _figures(name: str, interval: Interval | None) -> dict[str, Any]:
    """Round value and limits; undefined ones become null."""
    value, low, high = (None if np.isnan(x) else round(x, 4) for x in interval or UNDEFINED)
    return {name: value, f"{name}_ci95": None if value is None or low is None else [low, high]}


def _shown(interval: Interval | None, *, sign: bool = False) -> str:
    if interval is None or np.isnan(interval.value):
        return "-"
    form = "+.2f" if sign else ".2f"
    return f"{interval.value:{form}} ({interval.low:{form}} to {interval.high:{form}})"


def sample_html(
    rows: Sequence[Mapping[str, Any]], *, about: Mapping[str, str],
    undecided: Sequence[Mapping[str, Any]] = (),
) -> str:  # fmt: skip
    """Render labelled cases as one self-contained HTML page without scripts, to be read before use.

    ``rows`` and ``undecided`` come from :func:`~probers.datagen.audit.draw` and
    :func:`~probers.datagen.audit.draw_undecided`; at most :data:`MOST_UNDECIDED` undecided ones are shown.
    Fields that a row lacks are left out. ``about`` are facts for the head.
    """
    given = bool(rows) and all(row.get("condition") == "read" for row in rows)
    words = {"faithful": "right", "hallucinated": "wrong"} if given else {}
    return render(
        "probers.datagen.audit/sample.html.j2",
        given=given, said=words, rows=rows, about=about, undecided=undecided, most=MOST_UNDECIDED,
        labels=_LABELS, tables=_tables(rows), before=_before, continuation=_continuation, short=_short,
        number=number,
    )  # fmt: skip


def _tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[str, list[int]]]]:
    """Count cases by label and in all, by entity type and by match stage."""
    tables = {}
    for column, head in (("question_type", "Entity type"), ("match_stage", "Match stage")):
        if any(column in row for row in rows):
            cells = Counter((str(row.get(column, "")), int(row["correct"])) for row in rows)
            sizes = Counter(str(row.get(column, "")) for row in rows).most_common()
            lines = [(value, [*(cells[value, label] for label in _LABELS), n]) for value, n in sizes]
            tables[head] = [*lines, ("all", [sum(n) for n in zip(*(n for _, n in lines), strict=True)])]
    return tables


def _before(prompt: str) -> str:
    """Cut the end of the text before the cut, from the beginning of a word where words have spaces."""
    _, space, rest = prompt[-_BEFORE:].partition(" ")
    shown = f"… {rest}" if space and len(rest) > _BEFORE * 0.8 else f"…{prompt[-_BEFORE:]}"
    return shown if len(prompt) > _BEFORE else prompt


def _continuation(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Split into text before the entity, the entity, and text after it; without a span, the entity alone."""
    text = str(row.get("text", ""))
    start, end = row.get("entity_start"), row.get("entity_end")
    if start is None or end is None or not 0 <= start < end <= len(text):
        return "", _short(row.get("answer")), ""
    start, end = int(start), int(end)
    return text[:start].lstrip(), text[start:end], _short(text[end:], _AFTER)


def _short(value: Any, length: int = _SHORT) -> str:
    """Shorten a piece of text that is too long; empty for None."""
    text = "" if value is None else str(value)
    return text if len(text) <= length else f"{text[:length]}…"
