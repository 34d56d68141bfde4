"""What a testbed model knows: the figures its recipe is judged by."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from probers.answers import exact_match, extract_answer
from probers.lm import CausalLM
from probers.metrics import auroc
from probers.prompts import TESTBED_PROMPT
from probers.signals import signals
from probers.testbed.assets import load_corpus, load_questions
from probers.testbed.world import KINDS, World
from probers.types import Passage, Question, Retriever


def evaluate(
    lm: CausalLM, world: World, *, retriever: Retriever, questions: int = 1500, k: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Answer testbed questions closed-book, with gold passages and with retrieved ones.

    Args:
        questions: how many of the validation and test splits' questions to ask.
        k: passages per question; gold ones are filled up with distractors the
            retriever finds for the question, in seeded order.

    Returns:
        ``closed_book``, ``gold`` and ``retrieved``: exact match by "kind hops";
        ``believed``: share of stale and misbelieved questions answered as taught;
        ``auroc``: of each token signal against "the closed-book answer is wrong".
    """
    asked = [q for q in load_questions(world) if q.split != "train"][:questions]
    passages = {p.id: p for p in load_corpus(world)}
    found = retriever.search([q.question for q in asked], k)
    gold = [_with_gold(q, f, passages, k, seed) for q, f in zip(asked, found, strict=True)]
    closed = _answers(lm, asked, [[] for _ in asked], "closed book")
    figures: dict[str, Any] = {
        "questions": len(asked),
        "closed_book": _by_kind(asked, [a for a, _ in closed]),
        "gold": _by_kind(asked, [a for a, _ in _answers(lm, asked, gold, "gold passages")]),
        "retrieved": _by_kind(asked, [a for a, _ in _answers(lm, asked, found, "retrieved")]),
    }
    old = [
        (q, a) for q, (a, _) in zip(asked, closed, strict=True) if q.truth["kind"] in ("stale", "misbelieved")
    ]
    figures["believed"] = round(_mean([exact_match(a, (q.truth["believed"],)) for q, a in old]), 4)
    wrong = [1 - int(exact_match(a, q.answers)) for q, (a, _) in zip(asked, closed, strict=True)]
    figures["wrong_share"] = round(_mean(wrong), 4)
    columns = {name: np.array([s[name] for _, s in closed]) for name in closed[0][1]}
    scores = {"mean_entropy": 1, "max_entropy": 1, "min_prob": -1}
    figures["auroc"] = {
        name: round(auroc(np.array(wrong), sign * columns[name]), 4) for name, sign in scores.items()
    }
    return figures


def _answers(
    lm: CausalLM, asked: list[Question], passages: list[list[Passage]], label: str
) -> list[tuple[str, dict[str, float]]]:
    prompts = [
        TESTBED_PROMPT.question(q.question, [p.text for p in found])
        for q, found in zip(asked, passages, strict=True)
    ]
    generations = lm.generate(prompts, max_new_tokens=64, progress=label)
    return [(extract_answer(g.text, TESTBED_PROMPT.answer_cue), signals(g)) for g in generations]


def _with_gold(
    question: Question, found: list[Passage], passages: dict[str, Passage], k: int, seed: int
) -> list[Passage]:
    gold = [passages[i] for i in question.truth["gold"]]
    ids = {p.id for p in gold}
    chosen = [*gold, *(p for p in found if p.id not in ids)][: max(k, len(gold))]
    random.Random(f"gold:{seed}:{question.id}").shuffle(chosen)
    return chosen


def _by_kind(asked: list[Question], answers: list[str]) -> dict[str, dict[str, float]]:
    """Exact match and count by knowledge and hops, e.g. ``{"known 1": {"em": .97, "n": 310}}``."""
    table = {}
    for kind in KINDS:
        for hops in (1, 2):
            part = [
                exact_match(a, q.answers)
                for q, a in zip(asked, answers, strict=True)
                if (q.truth["kind"], q.truth["hops"]) == (kind, hops)
            ]
            if part:
                table[f"{kind} {hops}"] = {"em": round(_mean(part), 4), "n": len(part)}
    return table


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / max(1, len(values))
