"""The page's tables: every method's figures, EM by kind of knowledge, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probers.html import DASH, esc, interval, num, number, span

from .prose import FIXED, metric, metric_ci, verdict
from .series import Series, interval_glyph, level_glyph, mark_glyph, shares_glyph, stem


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of results.json as a column.

    Attributes:
        better: which end is better ("high", "low"), or empty when neither is.
        below: a second, smaller line of the head.
    """

    key: str
    label: str
    help: str
    digits: int = 2
    better: str = ""
    below: str = ""


COLUMNS = (
    Column("em", "EM", "Exact match: share of questions whose final answer equals a gold answer after"
           " normalisation, with its 95% bootstrap interval.", 3, "high"),
    Column("f1", "F1", "Token overlap of the final answer with the closest gold answer.", 3, "high"),
    Column("acc", "ACC", "Share of questions whose generated text contains a gold answer.", 3, "high"),
    Column("random", "EM vs random", "Exact match minus that of random retrieval at the same mean number of"
           " retrievals per question, its mean over all draws, with the paired 95% interval. Random retrieval"
           " judges whole answers. It asks with what the method asks with, so that the moment alone differs;"
           " for methods that fire before or within an answer it asks with what those that judge whole"
           " answers do, and the difference is of the method as a whole.", 3),
    Column("retrievals", "Retrievals", "Searches per question, on average."),
    Column("retrieval_share", "0 / 1 / more", "Share of the questions, in percent, answered with no,"
           " with one, and with several searches."),
    Column("tokens", "Tokens", "Tokens generated per question, on average.", 1),
    Column("seconds", "Seconds", "Wall time per question, on average. What methods share was generated once"
           " and counts for each of them with the time it took."),
    Column("consistency", "Consistency", "Of the questions answered right without retrieval, the share"
           " still right under the method.", 2, "high"),
    Column("trigger.auroc", "AUROC", "Trigger: the chance that a wrong answer scores higher than a right"
           " one; 0.5 is guessing. With its 95% bootstrap interval.", 3, "high"),
    Column("trigger.auprc", "AUPRC", "Trigger: area under precision and recall for “the answer is"
           " wrong”; below it the base rate, which is what guessing gets."),
    Column("trigger.ece", "ECE", "Trigger: expected calibration error of its probability that the answer"
           " is wrong; 0 is best.", 3, "low"),
    Column("trigger.prr", "PRR", "Trigger: prediction rejection ratio, how close rejecting answers by its"
           " score comes to rejecting the wrong ones first; 1 is the oracle, 0 is chance.", 2, "high"),
)  # fmt: skip

MORE_COLUMNS = (
    Column("precision", "Precision", "Share of the final answer's tokens that are in the gold answer.", 3),
    Column("recall", "Recall", "Share of the gold answer's tokens that are in the final answer.", 3),
    Column(
        "agreement",
        "Agreement",
        "Share of the questions on which the method and answering without"
        " retrieval are both right or both wrong; Probing-RAG's released code calls this consistency.",
        2,
    ),
    Column(
        "trigger.recall_at_fpr",
        "Recall at 10%",
        "Trigger: share of the wrong answers it finds at the"
        " threshold that fires on one right answer in ten.",
        2,
    ),
    Column("generations", "Generations", "Calls of the language model per question, on average."),
    Column("sentences", "Sentences", "Sentences generated per question, on average."),
)


def methods_table(results: Mapping[str, Any], data: Mapping[str, Any], looks: Mapping[str, Series]) -> str:
    """One row per method with the figures of :data:`COLUMNS`; best values bold, flags visible."""
    methods: Mapping[str, Any] = results.get("methods") or {}
    best = {column.key: _best(methods, column) for column in COLUMNS if column.better}
    ends = [end for method in methods.values() for end in metric_ci(method, "em") or ()]
    scale = (min(ends), max(ends)) if ends else (0.0, 1.0)
    at_random: Mapping[str, Any] = results.get("random_at_budget") or {}
    columns = _columns(results)
    rows = []
    for name, method in methods.items():
        flag = (data.get("flags") or {}).get(name) if stem(name) not in FIXED else None
        badge = f' <span class="badge">{esc(flag)}</span>' if flag else ""
        compared = at_random.get(name) or {}
        cells = "".join(
            _compared(compared) if column.key == "random" else _cell(method, name, column, best, scale)
            for column in columns
        )
        query = (results.get("queries") or {}).get(name)
        asks = f"<small>asks with: {esc(query)}</small>" if query and stem(name) != "never" else ""
        rows.append(f'<tr><th scope="row">{mark_glyph(looks[name])}{esc(name)}{badge}{asks}</th>{cells}</tr>')
    caption = "Every method on the same questions. Bold: best outside the oracle."
    return framed("methods", caption, "Method", columns, rows) + _terms(results)


def _columns(results: Mapping[str, Any]) -> tuple[Column, ...]:
    """:data:`COLUMNS`, without random retrieval where nothing was set against it."""
    return tuple(column for column in COLUMNS if column.key != "random" or results.get("random_at_budget"))


def _terms(results: Mapping[str, Any]) -> str:
    """On which terms the methods can be compared: what they ask with differs as well."""
    queries: Mapping[str, str] = results.get("queries") or {}
    if len(set(queries.values())) < 2:
        return ""
    return (
        '<p class="caption">Methods differ in when they retrieve and in what they ask with, which is below'
        " each name. Only those that ask with the same compare the moment alone. The oracle bounds what"
        " judges whole answers and asks as it does; a method that retrieves before or within one, or asks"
        " otherwise, may be above it.</p>"
    )


def more_table(results: Mapping[str, Any]) -> str:
    """The figures of :data:`MORE_COLUMNS`, for those who look for them."""
    methods: Mapping[str, Any] = results.get("methods") or {}
    rows = []
    for name, method in methods.items():
        cells = "".join(f"<td>{num(metric(method, c.key), c.digits)}</td>" for c in MORE_COLUMNS)
        rows.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    return framed("more", "Further figures of every method.", "Method", MORE_COLUMNS, rows)


def legend(results: Mapping[str, Any]) -> str:
    """Each column in a sentence."""
    items = "".join(
        f"<dt>{esc(column.label)}</dt><dd>{esc(column.help)}</dd>"
        for column in (*_columns(results), *MORE_COLUMNS)
    )
    return f'<details class="legend"><summary>What the columns mean</summary><dl>{items}</dl></details>'


def _best(methods: Mapping[str, Any], column: Column) -> float | None:
    values = [metric(method, column.key) for name, method in methods.items() if stem(name) != "oracle"]
    known = [round(value, column.digits) for value in values if value is not None]
    if len(set(known)) < 2:
        return None
    return max(known) if column.better == "high" else min(known)


def _cell(
    method: Mapping[str, Any],
    name: str,
    column: Column,
    best: Mapping[str, float | None],
    scale: tuple[float, float],
) -> str:
    if column.key == "retrieval_share":
        return f"<td>{shares_glyph(method.get('retrieval_share') or {})}</td>"
    value = metric(method, column.key)
    if value is None:
        return f'<td class="none">{DASH}</td>'
    text = num(value, column.digits)
    if stem(name) != "oracle" and best.get(column.key) == round(value, column.digits):
        text = f"<b>{text}</b>"
    if column.key == "trigger.auprc":
        return f"<td>{text}<small>base {num(metric(method, 'trigger.base_rate'))}</small></td>"
    ci = metric_ci(method, column.key)
    if column.key not in ("em", "trigger.auroc") or ci is None:
        return f"<td>{text}</td>"
    glyph = interval_glyph(value, ci, scale) if column.key == "em" else ""
    return f"<td>{text}<small>{span(ci)}</small>{glyph}</td>"


def _compared(entry: Mapping[str, Any]) -> str:
    """The difference in EM to random retrieval at the same budget."""
    entry = entry.get("common") or entry
    found = entry.get("em") or {}
    diff, ci = number(found.get("diff")), interval(found.get("ci95"))
    if diff is None or ci is None:
        return f'<td class="none">{DASH}</td>'
    text = num(diff, 3, sign=True)
    text = f"<b>{text}</b>" if verdict(ci) != "not settled" else text
    return f"<td>{text}<small>{span(ci, 3, sign=True)}</small></td>"


def knowledge_table(data: Mapping[str, Any], looks: Mapping[str, Series]) -> str:
    """EM of each method by what the model was taught, with a bar per cell."""
    rows_of: Mapping[str, Any] = data.get("knowledge_em") or {}
    kinds = list(dict.fromkeys(kind for row in rows_of.values() for kind in row))
    if not kinds:
        return ""
    help_of = {
        "known": "the model was taught the fact",
        "stale": "taught a value that has since changed",
        "misbelieved": "taught a wrong value",
        "unknown": "never taught; only in the corpus",
    }
    sizes = {kind: next(row[kind].get("n") for row in rows_of.values() if kind in row) for kind in kinds}
    columns = [
        Column(
            kind,
            kind,
            f"{kind}: {help_of.get(kind, 'kind of knowledge')}.",
            below=f"n = {sizes[kind]:,}" if sizes[kind] is not None else "",
        )
        for kind in kinds
    ]
    rows = []
    for name, row in rows_of.items():
        cells = "".join(f"<td>{level_glyph((row.get(kind) or {}).get('em'))}</td>" for kind in kinds)
        rows.append(f'<tr><th scope="row">{mark_glyph(looks[name])}{esc(name)}</th>{cells}</tr>')
    return framed("knowledge", "Exact match by what the model was taught.", "Method", columns, rows)


def framed(key: str, caption: str, corner: str, columns: Sequence[Column], rows: Sequence[str]) -> str:
    """A table in a container of its own that scrolls sideways; the caption stays in view."""
    heads = "".join(
        f'<th scope="col" title="{esc(c.help)}">{esc(c.label)}'
        f"{f'<small>{esc(c.below)}</small>' if c.below else ''}</th>"
        for c in columns
    )
    return (
        f'<p class="caption" id="{key}-caption">{esc(caption)}</p>'
        f'<div class="scroll" role="region" aria-labelledby="{key}-caption" tabindex="0">'
        f'<table aria-labelledby="{key}-caption">'
        f'<thead><tr><th scope="col">{esc(corner)}</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


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
