"""Report of a comparison as one self-contained HTML page, its verdict, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probers.evaluation.bootstrap import LEAST_GROUPS
from probers.files import write_text
from probers.pages import num, render, span
from probers.types import count

from .charts import roc_chart, tradeoff_charts
from .lookup import LEVEL, LEVELS, Findings, level, scales, shown_at_once, stem, token_scores, verdict
from .svg import interval_glyph, level_glyph, mark_glyph, shares_glyph

__all__ = ["LEVEL", "conclusion", "write_report"]

#: Kinds of methods that decide by rule, by chance or by the gold answer.
_RULES = ("never", "always", "random", "oracle", "fixed")
#: Questions from which an interval of a share is at most about 0.1 wide.
_ENOUGH = 400


class Advice(NamedTuple):
    """Next step: why, and what to add to the command or to run."""

    why: str
    command: str


def conclusion(results: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Say in one sentence how a comparison came out; ``results`` and ``data`` as of :func:`write_report`.

    The sentence is about the best method that decides for itself, if possible one that did not always or
    never fire: how often it is right, at how many retrievals, against always and never, and whether it is
    above random retrieval at the same budget. Of few questions it says first that they settle nothing.
    """
    findings = Findings(results, data)
    groups = findings.results.get("bootstrap", {}).get("units", findings.n)
    said = _outcome(findings)
    if findings.n is None or groups is None or groups >= LEAST_GROUPS:
        return f"In short: {said}"
    # The unit is a group where several questions belong together.
    noun = "question" if groups == findings.n else "group"
    verb = "settles" if groups == 1 else "settle"
    return f"{count(int(groups), noun)} {verb} nothing: {said}"


def advice(findings: Findings) -> list[Advice]:
    """List what to try next, the most telling first."""
    steps = []
    there = findings.results.get("config", {}).get("asked", {}).get("available", _ENOUGH)
    if findings.n is not None and findings.n < min(_ENOUGH, there) and findings.methods:
        why = f"More questions: with {count(int(findings.n), 'question')} only large differences show."
        steps.append(Advice(why, f"limit={10 * _ENOUGH // 4}"))
    if findings.data.get("replay") and not findings.data.get("reruns"):
        why = "Curves of the triggers that fire within an answer, each run at four further settings."
        steps.append(Advice(why, "sweep=4"))
    rows = findings.results.get("probers", {}).items()
    probers = {name: row["prober"] for name, row in rows if "prober" in row}
    ranked = findings.ranked()
    best = next((name for name in ranked if name in probers and stem(name) == "probing"), None)
    if best is not None:
        command = f'probers-rag trigger=probing prober={probers[best]} question=".."'
        steps.append(Advice("A question of your own, answered where the prober is unsure.", command))
    if not findings.methods:
        return steps
    command = "probers-compare questions=FILE.jsonl corpus=PASSAGES.jsonl model=MODEL"
    return [*steps, Advice("Your own questions, passages and model.", command)]


def _outcome(findings: Findings) -> str:
    key = findings.headline.key
    ranked = findings.ranked()
    if not findings.methods:
        return "no method was run."
    if not ranked:
        return "the questions have no gold answers, so that no method can be called right."
    if (shared := findings.shared()) is not None:
        return f"all methods are right on {_share(shared)}, so that they are not told apart."
    deciding = [name for name in ranked if stem(name) not in _RULES]
    deciding.sort(key=lambda name: name in findings.flags)  # those that always or never fired are last
    best = deciding[0] if deciding else next(iter(ranked))
    above = deciding and ranked.get("random", 0.0) > ranked[best]
    fixed = ("random", "always", "never") if above else ("always", "never")
    others = [name for name in fixed if name in ranked and name != best]
    against = " and ".join(f"{_share(ranked[name])} for {name}{_cost(findings, name)}" for name in others)
    of_questions = " of the questions" if findings.n is None else f" of {count(int(findings.n), 'question')}"
    said = f"{best}, the best {'trigger' if deciding else 'method'}, is right on"
    said += f" {_share(ranked[best])}{of_questions}{_cost(findings, best)}"
    said += f", against {against}" if against else ""
    entry = findings.results.get("random_at_budget", {}).get(best, {})
    lead = (entry.get("common") or entry).get(key, {})
    if "diff" not in lead or "ci95" not in lead:
        return f"{said}."
    settled = "not settled" if lead.get("p_holm", 0.0) >= LEVEL else verdict(lead["ci95"])
    interval = span((100 * end for end in lead["ci95"]), 0, sign=True)
    shown = f"{num(100 * lead['diff'], 0, sign=True)} points, 95% interval {interval}"
    word = "not shown to differ from" if settled == "not settled" else settled
    return f"{said}; it is {word} random retrieval at the same number of retrievals ({shown})."


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _cost(findings: Findings, name: str) -> str:
    retrievals = findings.figure(name, "retrievals")
    return "" if not retrievals else f" with {num(retrievals)} retrievals each"


def write_report(results: Mapping[str, Any], data: Mapping[str, Any], path: Path) -> None:
    """Write the comparison as one HTML file without scripts or network access.

    Parts without data are left out; figures that are null are dashes. ``results`` are results.json, schema 1;
    ``data`` any of ``title``, ``command``, ``model``, ``corpus``, ``n``, ``threshold_rule``, ``date``,
    ``flags``, ``knowledge_em``, ``roc``, ``replay``, ``reruns``,
    ``points``, ``notes`` and ``examples``.
    """
    findings = Findings(results, data)
    glyphs = (mark_glyph, interval_glyph, level_glyph, shares_glyph)
    functions = (*glyphs, stem, verdict, level, token_scores, shown_at_once)
    first, further = tradeoff_charts(findings)
    page = render(
        "probers.rag.report/page.html.j2",
        findings=findings,
        verdict_sentence=conclusion(results, data),
        advice=advice(findings),
        first=first,
        decisions=further + roc_chart(findings),
        scales=scales(findings.data.get("examples", ())),
        levels=LEVELS,
        **{function.__name__: function for function in functions},
    )
    write_text(path, page)
