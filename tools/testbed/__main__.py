"""Training of the testbed's language model from scratch, and measurement of its knowledge.

    python -m tools.testbed [key=value ..]

for example ``out=runs/testbed recipe.tokens=400000``, or ``evaluate=FOLDER`` to measure a trained model.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from probers.evaluation.answers import exact_match, extract_answer
from probers.evaluation.metrics import auroc
from probers.files import canonical_json, write_text
from probers.model.causal_lm import CausalLM
from probers.prompts import TESTBED_PROMPT
from probers.rag.retrievers import BM25
from probers.signals import signals
from probers.types import Passage, Question, Retriever

from .curriculum import Curriculum
from .drawing import draw_corpus, draw_questions, load_world
from .recipe import Recipe, train_model, train_tokenizer
from .world import World, WorldConfig


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        out: folder; the model goes to ``out/model``, its figures to ``out/figures.json``.
        evaluate: folder of a trained model, which is only measured.
        limit: number of validation and test questions to measure with.
        seed: seed of the measurement.
        threads: CPU threads of the training; 0 leaves them to torch.
        device: cpu or cuda.
    """

    out: str = "runs/testbed"
    evaluate: str | None = None
    limit: int = 1500
    seed: int = 0
    threads: int = 2
    device: str = "cpu"
    world: WorldConfig = field(default_factory=WorldConfig)
    curriculum: Curriculum = field(default_factory=Curriculum)
    recipe: Recipe = field(default_factory=Recipe)


def parse(typed: Sequence[str]) -> Settings:
    """Read ``key=value`` arguments; keys of the three parts are dotted, values YAML."""
    settings = Settings()
    for argument in typed:
        key, equals, value = argument.partition("=")
        if not equals:
            sys.exit(f"{argument!r} is not key=value")
        settings = _with(settings, key.split("."), yaml.safe_load(value))
    return settings


def _with(settings: Any, key: Sequence[str], value: Any) -> Any:
    name, *rest = key
    known = [f.name for f in fields(settings)]
    if name not in known:
        sys.exit(f"{name} is unknown: choose among {', '.join(known)}")
    here = getattr(settings, name)
    if bool(rest) != is_dataclass(here):
        sys.exit(f"{'.'.join(key)} is unknown: keys of world, curriculum and recipe are dotted")
    return replace(settings, **{name: _with(here, rest, value) if rest else _tuples(value)})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def main(settings: Settings) -> Path:
    """Train, unless done or ``evaluate`` names a model, and measure; return the model's folder."""
    folder = Path(settings.evaluate or f"{settings.out}/model")
    if settings.evaluate is None:
        _train(settings, folder)
    figures = _measure(settings, folder)
    print(json.dumps(figures, indent=1))
    if settings.evaluate is None:
        write_text(Path(settings.out) / "figures.json", canonical_json(figures))
        print(f"next: probers-datagen --source cot model={folder}")
    return folder


def _train(settings: Settings, folder: Path) -> None:
    import torch
    from tqdm import tqdm
    from transformers.utils import logging

    recipe, world = settings.recipe, World.generate(settings.world)
    record = canonical_json({"world": asdict(world.config), "recipe": asdict(recipe)})
    made = folder / "testbed.json"  # written last
    if made.exists():
        if made.read_text() != record:
            sys.exit(f"{folder} holds a model of another world or recipe: choose another out or remove it")
        return
    logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    tokenizer = train_tokenizer(world, vocab_size=recipe.vocab_size)
    with tqdm(total=recipe.tokens, unit="tok", unit_scale=True, desc="train", mininterval=5) as bar:

        def show(state: dict[str, float]) -> None:
            bar.set_postfix_str(f"loss {state['loss']:.3f}", refresh=False)
            bar.update(int(state["tokens"]) - bar.n)

        device = settings.device
        model = train_model(world, recipe, settings.curriculum, tokenizer, device=device, report=show)
    folder.mkdir(parents=True, exist_ok=True)
    model.config._attn_implementation = "sdpa"
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_text(made, record)
    print(f"wrote the model to {folder}")


def _measure(settings: Settings, folder: Path) -> dict[str, Any]:
    world = load_world(folder)
    lm = CausalLM.from_pretrained(str(folder), dtype="float32", device=settings.device)
    retriever = BM25(draw_corpus(world))
    return evaluate(lm, world, retriever=retriever, questions=settings.limit, seed=settings.seed)


def evaluate(
    lm: CausalLM, world: World, *, retriever: Retriever, questions: int = 1500, k: int = 3, seed: int = 0
) -> dict[str, Any]:
    """Answer testbed questions closed-book, with gold passages and with retrieved ones.

    Args:
        questions: number of questions of the validation and test splits to ask.
        k: passages per question; gold ones are filled up with distractors the
            retriever finds for the question, in seeded order.

    Returns:
        ``closed_book``, ``gold`` and ``retrieved``: exact match by "kind hops";
        ``believed``: share of stale and misbelieved questions answered as taught;
        ``auroc``: of each token signal against "the closed-book answer is wrong".
    """
    drawn = [q for q in draw_questions(world) if q.split != "train"][:questions]
    passages = {p.id: p for p in draw_corpus(world)}
    results = retriever.search([q.question for q in drawn], k)
    gold = [_with_gold(q, f, passages, k, seed) for q, f in zip(drawn, results, strict=True)]
    closed = _answers(lm, drawn, [[] for _ in drawn], "closed book")
    figures: dict[str, Any] = {
        "questions": len(drawn),
        "closed_book": _by_kind(drawn, [a for a, _ in closed]),
        "gold": _by_kind(drawn, [a for a, _ in _answers(lm, drawn, gold, "gold passages")]),
        "retrieved": _by_kind(drawn, [a for a, _ in _answers(lm, drawn, results, "retrieved")]),
    }
    old = [
        (q, a) for q, (a, _) in zip(drawn, closed, strict=True) if q.truth["kind"] in ("stale", "misbelieved")
    ]
    figures["believed"] = round(_mean([exact_match(a, (q.truth["believed"],)) for q, a in old]), 4)
    wrong = [1 - int(exact_match(a, q.answers)) for q, (a, _) in zip(drawn, closed, strict=True)]
    figures["wrong_share"] = round(_mean(wrong), 4)
    columns = {name: np.array([s[name] for _, s in closed]) for name in closed[0][1]}
    scores = {"mean_entropy": 1, "max_entropy": 1, "min_prob": -1}
    aurocs = {name: auroc(np.array(wrong), sign * columns[name]) for name, sign in scores.items()}
    figures["auroc"] = {name: None if np.isnan(value) else round(value, 4) for name, value in aurocs.items()}
    return figures


def _answers(
    lm: CausalLM, questions: list[Question], passages: list[list[Passage]], label: str
) -> list[tuple[str, dict[str, float]]]:
    prompts = [
        TESTBED_PROMPT.question(q.question, [p.text for p in passage])
        for q, passage in zip(questions, passages, strict=True)
    ]
    generations = lm.generate(prompts, max_new_tokens=64, progress=label)
    return [(extract_answer(g.text, TESTBED_PROMPT.answer_cue), signals(g)) for g in generations]


def _with_gold(
    question: Question, passages_found: list[Passage], passages: dict[str, Passage], k: int, seed: int
) -> list[Passage]:
    gold = [passages[i] for i in question.truth["gold"]]
    ids = {p.id for p in gold}
    chosen = [*gold, *(p for p in passages_found if p.id not in ids)][: max(k, len(gold))]
    random.Random(f"gold:{seed}:{question.id}").shuffle(chosen)
    return chosen


def _by_kind(questions: list[Question], answers: list[str]) -> dict[str, dict[str, float]]:
    """Compute exact match and count by knowledge and hops, e.g. ``{"known 1": {"em": .97, "n": 310}}``."""
    table = {}
    for kind in ("known", "stale", "misbelieved", "unknown"):
        for hops in (1, 2):
            part = [
                exact_match(a, q.answers)
                for q, a in zip(questions, answers, strict=True)
                if (q.truth["kind"], q.truth["hops"]) == (kind, hops)
            ]
            if part:
                table[f"{kind} {hops}"] = {"em": round(_mean(part), 4), "n": len(part)}
    return table


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / max(1, len(values))


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
