"""What the page shows beside the figures: curves, kinds of knowledge, and example questions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from probers.metrics import auroc, exact_match
from probers.types import Passage, Question, Round

from .figures import Outcomes
from .replay import thinned
from .traces import Answer


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
