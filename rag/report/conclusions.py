"""Conclusions from a comparison: its verdict in one sentence, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from probers.evaluation.bootstrap import LEAST_GROUPS
from probers.pages import num, span
from probers.types import count

from .lookup import Findings, stem, verdict

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

    The sentence is about the best method that decides for itself, whether or not it is the best of all: how
    often it is right, at how many retrievals, against always and never retrieving, and whether it is above
    random retrieval at the same budget. Of few questions it says first that they settle nothing.
    """
    findings = Findings(results, data)
    groups = findings.results.get("bootstrap", {}).get("units", findings.n)
    few = findings.n is not None and groups is not None and groups < LEAST_GROUPS
    said = _outcome(findings)
    if not few:
        return f"In short: {said}"
    # The unit is a group where several questions belong together.
    noun = "question" if groups == findings.n else "group"
    verb = "settles" if groups == 1 else "settle"
    return f"{count(int(groups), noun)} {verb} nothing: {said}"


def advice(findings: Findings) -> list[Advice]:
    """List what to try next, the most telling first."""
    steps = []
    if findings.n is not None and findings.n < _ENOUGH and findings.methods:
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
    command = "probers-compare questions=FILE.jsonl corpus=PASSAGES.jsonl model=MODEL"
    return [*steps, Advice("Your own questions, passages and model.", command)] if findings.methods else steps


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
    settled = verdict(lead["ci95"])
    if settled != "not settled" and lead.get("p_holm", 0.0) >= 0.05:
        settled = "not settled"
    interval = span((100 * end for end in lead["ci95"]), 0, sign=True)
    shown = f"{num(100 * lead['diff'], 0, sign=True)} points, 95% interval {interval}"
    word = {"above": "above", "below": "below"}.get(settled, "not shown to differ from")
    return f"{said}; it is {word} random retrieval at the same number of retrievals ({shown})."


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _cost(findings: Findings, name: str) -> str:
    retrievals = findings.figure(name, "retrievals")
    return "" if not retrievals else f" with {num(retrievals)} retrievals each"
