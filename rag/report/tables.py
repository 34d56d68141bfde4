"""The page's tables: every method's figures, EM by kind of knowledge, paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from probers.pages import DASH, esc, num, span

from .lookup import FIXED, Difference, Findings, Json, stem, verdict
from .svg import interval_glyph, level_glyph, mark_glyph, shares_glyph


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
    Column("agreement", "Agreement", "Share of the questions on which the method and answering without"
           " retrieval are both right or both wrong; Probing-RAG's released code calls this consistency."),
    Column("trigger.recall_at_fpr", "Recall at 10%", "Trigger: share of the wrong answers it finds at the"
           " threshold that fires on one right answer in ten."),
    Column("generations", "Generations", "Calls of the language model per question, on average."),
    Column("sentences", "Sentences", "Sentences generated per question, on average."),
)  # fmt: skip


#: On which terms the methods can be compared: what they ask with differs as well.
_TERMS = (
    '<p class="caption">Methods differ in when they retrieve and in what they ask with, which is below'
    " each name. Only those that ask with the same compare the moment alone. The oracle bounds what"
    " judges whole answers and asks as it does; a method that retrieves before or within one, or asks"
    " otherwise, may be above it.</p>"
)


def methods_html(found: Findings) -> str:
    """Every method with the figures of :data:`COLUMNS`, best values bold and flags visible.

    What the columns mean and the figures of :data:`MORE_COLUMNS` are folded away below the table.
    """
    if not found.methods:
        return ""
    at_random = found.results.get("random_at_budget")
    columns = [column for column in COLUMNS if column.key != "random" or at_random]
    best = {column.key: _best(found, column) for column in columns if column.better}
    ends = [end for name in found.methods for end in found.interval(name, "em") or ()]
    scale = (min(ends), max(ends)) if ends else (0.0, 1.0)
    queries: Mapping[str, str] = found.results.get("queries", {})
    rows, more = [], []
    for name in found.methods:
        flag = found.data.get("flags", {}).get(name) if stem(name) not in FIXED else None
        badge = f' <span class="badge">{esc(flag)}</span>' if flag else ""
        query = queries.get(name) if stem(name) != "never" else None
        asks = f"<small>asks with: {esc(query)}</small>" if query else ""
        cells = "".join(_cell(found, name, column, best.get(column.key), scale) for column in columns)
        rows.append(f"{_row_head(found, name)}{badge}{asks}</th>{cells}</tr>")
        cells = "".join(f"<td>{num(found.figure(name, c.key), c.digits)}</td>" for c in MORE_COLUMNS)
        more.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    caption = "Every method on the same questions. Bold: best outside the oracle."
    table = _framed("methods", caption, "Method", columns, rows)
    terms = _TERMS if len(set(queries.values())) > 1 else ""
    meanings = "".join(f"<dt>{esc(c.label)}</dt><dd>{esc(c.help)}</dd>" for c in (*columns, *MORE_COLUMNS))
    further = _framed("more", "Further figures of every method.", "Method", MORE_COLUMNS, more)
    return (
        f'{table}{terms}<details class="legend"><summary>What the columns mean</summary><dl>{meanings}</dl>'
        f"</details><details><summary>Further figures</summary>{further}</details>"
    )


def _row_head(found: Findings, name: str) -> str:
    return f'<tr><th scope="row">{mark_glyph(found.looks[name])}{esc(name)}'


def _best(found: Findings, column: Column) -> float | None:
    values = [found.figure(name, column.key) for name in found.methods if stem(name) != "oracle"]
    known = {round(value, column.digits) for value in values if value is not None}
    if len(known) < 2:
        return None
    return max(known) if column.better == "high" else min(known)


def _cell(found: Findings, name: str, column: Column, best: float | None, scale: Sequence[float]) -> str:
    if column.key == "random":
        return _compared(found.results["random_at_budget"].get(name, {}))
    if column.key == "retrieval_share":
        return f"<td>{shares_glyph(found.methods[name].get('retrieval_share', {}))}</td>"
    value, ci = found.figure(name, column.key), found.interval(name, column.key)
    if value is None:
        return _NONE
    text = num(value, column.digits)
    if stem(name) != "oracle" and best == round(value, column.digits):
        text = f"<b>{text}</b>"
    if column.key == "trigger.auprc":
        return f"<td>{text}<small>base {num(found.figure(name, 'trigger.base_rate'))}</small></td>"
    if column.key not in ("em", "trigger.auroc") or ci is None:
        return f"<td>{text}</td>"
    glyph = interval_glyph(value, ci, scale) if column.key == "em" else ""
    return f"<td>{text}<small>{span(ci)}</small>{glyph}</td>"


_NONE = f'<td class="none">{DASH}</td>'


def _compared(entry: Json) -> str:
    """The difference in EM to random retrieval at the same budget."""
    found = (entry.get("common") or entry).get("em", {})
    if not found.keys() >= {"diff", "ci95"}:
        return _NONE
    text = num(found["diff"], 3, sign=True)
    text = f"<b>{text}</b>" if verdict(found["ci95"]) != "not settled" else text
    return f"<td>{text}<small>{span(found['ci95'], 3, sign=True)}</small></td>"


def knowledge_table(found: Findings) -> str:
    """EM of each method by what the model was taught, with a bar per cell."""
    help_of = {
        "known": "the model was taught the fact",
        "stale": "taught a value that has since changed",
        "misbelieved": "taught a wrong value",
        "unknown": "never taught; only in the corpus",
    }
    table: Mapping[str, Json] = found.data.get("knowledge_em", {})
    sizes: dict[str, str] = {}
    for row in table.values():
        for kind, entry in row.items():
            sizes.setdefault(kind, f"n = {entry['n']:,}" if "n" in entry else "")
    if not sizes:
        return ""
    columns = [
        Column(kind, kind, f"{kind}: {help_of.get(kind, 'kind of knowledge')}.", below=size)
        for kind, size in sizes.items()
    ]
    rows = []
    for name, row in table.items():
        cells = "".join(f"<td>{level_glyph(row.get(kind, {}).get('em'))}</td>" for kind in sizes)
        rows.append(f"{_row_head(found, name)}</th>{cells}</tr>")
    return _framed("knowledge", "Exact match by what the model was taught.", "Method", columns, rows)


def pairs_table(found: Findings, *, shown: int = 16) -> str:
    """Paired differences with intervals; those with a prober first, the rest folded away."""
    # A prober stands first, so that its rows read alike.
    entries = [e.turned() if stem(e.second) == "probing" != stem(e.first) else e for e in found.differences]
    if not entries:
        return ""
    entries.sort(key=lambda entry: (0, entry.first) if stem(entry.first) == "probing" else (1, ""))
    reach = max((abs(end) for entry in entries for end in entry.ci or (entry.value,)), default=0.0) or 1.0
    rows = [_difference_row(entry, reach) for entry in entries]
    columns = [
        Column("figure", "Figure", "Which figure the difference is in."),
        Column("diff", "Difference", "First method minus second, on the same questions."),
        Column("ci", "95% interval", "Paired bootstrap interval of the difference."),
        Column("plot", "around zero", "The interval around zero, all rows on one scale."),
        Column("verdict", "First is", "What the interval allows to say."),
    ]
    caption = "Differences between two methods, first minus second, on the same questions."
    table = _framed("pairs", caption, "Pair", columns, rows[:shown])
    if len(rows) > shown:
        rest = _framed("other-pairs", "The other pairs.", "Pair", columns, rows[shown:])
        table += f"<details><summary>The other {len(rows) - shown} differences</summary>{rest}</details>"
    return table


def _difference_row(entry: Difference, reach: float) -> str:
    label = {"em": "EM", "f1": "F1", "acc": "ACC", "auroc": "AUROC"}.get(entry.figure, entry.figure)
    interval, glyph, words = "", DASH, DASH
    if entry.ci:
        interval = span(entry.ci, 3, sign=True)
        glyph = interval_glyph(entry.value, entry.ci, (-reach, reach), zero=True)
        words = verdict(entry.ci)
        words = f"<b>{words}</b>" if words != "not settled" else words
    return (
        f'<tr><th scope="row">{esc(entry.first)} vs {esc(entry.second)}</th><td>{esc(label)}</td>'
        f"<td>{num(entry.value, 3, sign=True)}</td><td>{interval or DASH}</td>"
        f"<td>{glyph}</td><td>{words}</td></tr>"
    )


def _framed(key: str, caption: str, corner: str, columns: Sequence[Column], rows: Sequence[str]) -> str:
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
