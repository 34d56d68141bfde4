"""What a comparison found: results.json, the data of the page, and a table on the terminal."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from omegaconf import DictConfig

from probers.commands.parts import build
from probers.commands.runs import RunFolder
from probers.evaluation.metrics import auroc, exact_match
from probers.files import canonical_json, write_text
from probers.types import Passage, Question, Round

from ..traces import Answer
from .curves import Climbed, at_random, replays
from .outcomes import Comparison, Outcomes, table_lines
from .trajectories import thinned


def curves(
    runs: Mapping[str, Outcomes], wrong: np.ndarray | None, methods: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """``knowledge_em``, ``points`` and ``roc`` of the page, each by name of the method.

    Args:
        runs: by name of the method.
        wrong: (n,) whether each scored question's closed-book answer is wrong, or None.
        methods: the entries of results.json.
    """
    found: dict[str, Any] = {
        "knowledge_em": {name: kinds for name, run in runs.items() if (kinds := by_knowledge(run))},
        "points": {
            name: {"retrievals": entry["retrievals"]}
            | {key: entry[key] for key in ("em", "acc")}
            | {f"{key}_ci": entry["ci95"].get(key) for key in ("em", "acc")}
            for name, entry in methods.items()
            if entry["em"] is not None
        },
    }
    if wrong is None or not 0 < wrong.sum() < len(wrong):
        return found
    scores = {name: run.scores[run.scored] for name, run in runs.items() if run.scores is not None}
    found["roc"] = {name: roc(wrong, values) for name, values in scores.items()}
    return found


def roc(wrong: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """The ROC curve of scores for "wrong" as ``{"fpr", "tpr", "auroc"}``, thinned to what is seen."""
    levels = np.unique(scores)[::-1]
    fpr = [0.0, *(float((scores[wrong == 0] >= t).mean()) for t in levels)]
    tpr = [0.0, *(float((scores[wrong == 1] >= t).mean()) for t in levels)]
    keep = thinned(len(fpr))
    return {
        "fpr": [fpr[i] for i in keep],
        "tpr": [tpr[i] for i in keep],
        "auroc": float(auroc(wrong, scores)),
    }


def by_knowledge(run: Outcomes) -> dict[str, dict[str, Any]]:
    """EM by what the model was taught, ``{kind: {"em", "n"}}``; empty where that is not known."""
    kinds = [str(run.questions[i].truth.get("kind", "")) for i in run.scored]
    order = ("known", "stale", "misbelieved", "unknown")
    found: dict[str, dict[str, Any]] = {}
    for kind in sorted(set(kinds) - {""}, key=lambda k: (order.index(k) if k in order else len(order), k)):
        values = run.table["em"][[k == kind for k in kinds]]
        found[kind] = {"em": float(values.mean()), "n": len(values)}
    return found


def layer_figures(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The prober's own test figures by layer, with its controls, as it was trained."""
    keys = ("layer", "accuracy", "auroc", "auroc_ci")
    found: dict[str, Any] = {}
    # Of several sites in the blocks, the one of the best layer: one curve.
    site = metrics.get("best_site")
    layers = [e for e in metrics.get("layers") or [] if site is None or e.get("site", site) == site]
    if layers:
        found["layers"] = [{k: entry.get(k) for k in keys} for entry in layers]
    if metrics.get("ensemble"):
        found["ensemble"] = {k: metrics["ensemble"].get(k) for k in keys[1:]}
    controls = metrics.get("controls") or {}
    if controls:
        found["controls"] = {n: {k: e.get(k) for k in keys[1:]} for n, e in controls.items()}
    return found


def examples(
    runs: Mapping[str, Outcomes],
    questions: Sequence[Question],
    corpus: Sequence[Passage],
    count: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Seeded example questions with everything every method did on them.

    Args:
        runs: by name of the method.
        questions: the common questions.
        corpus: where the passages of the traces come from.
        count: how many questions.
        seed: of the draw.
    """
    drawn = sorted(
        random.Random(f"examples:{seed}").sample(range(len(questions)), min(count, len(questions)))
    )
    needed = {p for run in runs.values() for i in drawn for r in run.answers[i].rounds for p in r.passage_ids}
    passages = {p.id: p for p in corpus if p.id in needed}
    return [
        {
            "id": questions[i].id,
            "question": questions[i].question,
            "answers": list(questions[i].answers),
            "knowledge": questions[i].truth.get("kind"),
            "methods": [_told(n, run.answers[i], questions[i], passages) for n, run in runs.items()],
        }
        for i in drawn
    ]


def _told(name: str, answer: Answer, question: Question, passages: Mapping[str, Passage]) -> dict[str, Any]:
    return {
        "method": name,
        "answer": answer.answer,
        "correct": bool(question.answers) and bool(exact_match(answer.answer, question.answers)),
        "retrievals": answer.retrievals,
        "rounds": [_told_round(r, passages) for r in answer.rounds],
    }


def _told_round(done: Round, passages: Mapping[str, Passage]) -> dict[str, Any]:
    decision = done.decision
    # An offset leaves out what a token shares with its neighbour, so pieces run up to the next start.
    edges = [*(a for a, _ in done.tokens), len(done.text)]
    pieces = [done.text[a:b] for a, b in pairwise(edges)]
    scores = decision.token_scores if decision is not None else ()
    hits = set(decision.tokens) if decision is not None and decision.fire else set()
    tokens = [
        {"text": piece, "score": scores[i] if scores else None, "fired": i in hits}
        for i, piece in enumerate(pieces)
    ]
    return {
        "tokens": tokens or ([{"text": done.text, "score": None, "fired": False}] if done.text else []),
        "score": None if decision is None else decision.score,
        "threshold": None if decision is None else decision.threshold,
        "fired": decision is not None and decision.fire,
        "query": done.query,
        "passages": [
            {"title": passages[p].title, "text": passages[p].text} for p in done.passage_ids if p in passages
        ],
    }


@dataclass
class Runs:
    """Everything that was run.

    Attributes:
        by_name: every method asked for, in this order.
        reference: the closed-book run.
        bank: figures of the prober, {} when no method uses one.
        fixed: methods that decide without looking, or by the truth, so that nothing is tested.
        queries: what each method asks with, by name.
        climbed: recorded answers that thresholds and random retrieval are read from.
        reruns: curves of methods that were run at other settings as well.
        notes: what a reader has to know about how it was run.
    """

    questions: Sequence[Question]
    corpus: Sequence[Passage]
    bank: Mapping[str, Any]
    fixed: frozenset[str]
    queries: Mapping[str, str]
    by_name: dict[str, Outcomes] = field(default_factory=dict)
    reference: Outcomes | None = None
    climbed: list[Climbed] = field(default_factory=list)
    reruns: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def results_of(folder: RunFolder, runs: Runs, comparison: Comparison) -> dict[str, Any]:
    """The contents of results.json."""
    methods = runs.by_name
    names = list(methods)
    return {
        "schema": 1,
        "config": dict(folder.config),
        "n": len(runs.questions),
        "methods": {name: comparison.figures(outcomes) for name, outcomes in methods.items()},
        "pairs": {
            f"{later} vs {earlier}": comparison.pair(methods[later], methods[earlier])
            for i, later in enumerate(names)
            for earlier in names[:i]
        },
        "random_at_budget": at_random(runs.climbed, methods, comparison),
        "queries": dict(runs.queries),
        "options": {name: dict(outcomes.options) for name, outcomes in methods.items()},
    }


def page_of(
    cfg: DictConfig, results: Mapping[str, Any], runs: Runs, comparison: Comparison, *, tuned: bool
) -> dict[str, Any]:
    """What the page shows beside results.json: how it was run, curves and examples."""
    rule = "best balanced accuracy on questions of another split" if tuned else "as configured"
    return {
        "title": "Which trigger knows when to retrieve?",
        "command": _command(cfg),
        "model": cfg.model.name,
        "corpus": cfg.corpus,
        "n": len(runs.questions),
        "threshold_rule": rule,
        "flags": _flags(runs),
        "notes": _notes(runs, comparison),
        "examples": examples(runs.by_name, runs.questions, runs.corpus, cfg.examples, cfg.seed),
        "replay": replays(runs.climbed),
        "reruns": runs.reruns,
        **curves(runs.by_name, comparison.wrong, results["methods"]),
        **layer_figures(runs.bank),
    }


def _command(cfg: DictConfig) -> str:
    """What was asked of whom, as it is typed."""
    named = [("model.name", cfg.model.name), ("corpus", cfg.corpus)]
    others = [f"{key}={value}" for key, value in named if value != "testbed"]
    limit = "null" if cfg.limit is None else cfg.limit
    return " ".join(
        ["probers-compare", build(cfg.questions).typed, *others, f"limit={limit}", f"seed={cfg.seed}"]
    )


def _flags(runs: Runs) -> dict[str, str]:
    """Triggers that never or always fired: these questions did not test them."""
    found = {}
    for name, outcomes in runs.by_name.items():
        retrievals = outcomes.cost("retrievals")
        if name in runs.fixed:
            continue
        if (retrievals == 0).all():
            found[name] = "never fired"
        elif (retrievals > 0).all():
            found[name] = "always fired"
    return found


def _notes(runs: Runs, comparison: Comparison) -> list[str]:
    notes = list(runs.notes)
    wrong = comparison.wrong
    if wrong is not None and len(set(wrong)) == 1:
        which = "wrong" if wrong[0] else "right"
        notes.append(
            f"Every closed-book answer is {which}, so that there is nothing for a trigger to tell apart: its "
            "AUPRC and ECE here say nothing of it."
        )
    missing = sum(not q.answers for q in runs.questions)
    if missing:
        notes.append(f"{missing} of {len(runs.questions)} questions have no gold answer and are in no score.")
    for name, outcomes in runs.by_name.items():
        empty = sum(a.counters.empty_retrievals for a in outcomes.answers)
        if empty:
            notes.append(f"{name}: {empty} retrievals found nothing; those answers went on without passages.")
        cut = sum(a.counters.passages_cut for a in outcomes.answers)
        if cut:
            notes.append(f"{name}: {cut} passages were left out for want of room in the model's context.")
    return notes


def write(folder: RunFolder, results: dict[str, Any], data: dict[str, Any]) -> None:
    """Write the files, print the table, and say what to do next."""
    from ..report import write_report

    out = folder.path
    write_text(out / "results.json", canonical_json(results))
    write_text(out / "report_data.json", canonical_json(data))
    write_report(results, data, out / "report.html")
    folder.finish({"n": results["n"], "methods": list(results["methods"])})
    print(*table_lines(results["methods"], results["random_at_budget"]), sep="\n")
    for flag in dict.fromkeys(data["flags"].values()):
        names = [name for name, its in data["flags"].items() if its == flag]
        them = "it" if len(names) == 1 else "them"
        print(f"note: {', '.join(names)} {flag} on these questions, so they do not test {them}")
    for note in data["notes"]:
        print(f"note: {note}")
    print(f"wrote {out / 'results.json'}, {out / 'report.html'} and the traces in {out / 'traces'}")
    print(f"next: open {out / 'report.html'}")
