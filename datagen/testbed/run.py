"""The command ``probers-testbed``: train the testbed's language model and measure what it knows."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from probers.commands.parts import record_of
from probers.commands.runs import RunFolder
from probers.engine.model import CausalLM
from probers.evaluation.answers import exact_match, extract_answer
from probers.evaluation.metrics import auroc
from probers.files import canonical_json, write_text
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import load_corpus, load_questions
from probers.testbed.world import KINDS, World, WorldConfig
from probers.types import Passage, Question, Retriever
from probers.uncertainty import signals

from .curriculum import Curriculum


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


def run(cfg: DictConfig) -> Path:
    """Train (unless ``evaluate`` names a model) and evaluate; returns the model's folder."""
    if cfg.evaluate is not None:
        folder = Path(cfg.evaluate)
        _evaluate(cfg, folder)
        return folder
    run_folder = RunFolder(Path(cfg.out), "testbed", record_of(cfg))
    if not run_folder.begin(what="model"):
        return Path(cfg.out) / "model"
    folder = run_folder.path / "model"
    if not (folder / "testbed.json").exists():  # written last: training is done
        _train(cfg, folder)
    figures = _evaluate(cfg, folder)
    run_folder.finish({"model": str(folder), "figures": figures})
    print(f"next: probers-datagen --source cot model={folder}")
    return folder


def _train(cfg: DictConfig, folder: Path) -> None:
    import torch
    from tqdm import tqdm
    from transformers.utils import logging

    from .recipe import Recipe, train_model, train_tokenizer

    logging.disable_progress_bar()
    if cfg.threads:
        torch.set_num_threads(cfg.threads)
    world = World.generate(_dataclass(WorldConfig, cfg.world))
    recipe = _dataclass(Recipe, cfg.recipe)
    tokenizer = train_tokenizer(world, vocab_size=recipe.vocab_size)
    with tqdm(total=recipe.tokens, unit="tok", unit_scale=True, desc="train", mininterval=5) as bar:

        def show(state: dict[str, float]) -> None:
            bar.set_postfix_str(f"loss {state['loss']:.3f}", refresh=False)
            bar.update(int(state["tokens"]) - bar.n)

        model = train_model(
            world, recipe, _dataclass(Curriculum, cfg.curriculum), tokenizer, device=cfg.device, report=show
        )
    folder.mkdir(parents=True, exist_ok=True)
    model.config._attn_implementation = "sdpa"
    model.half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {"world": asdict(world.config), "recipe": asdict(recipe)}
    write_text(folder / "testbed.json", canonical_json(record))
    print(f"wrote the model to {folder}")


def _evaluate(cfg: DictConfig, folder: Path) -> dict[str, Any]:
    from hydra.utils import instantiate

    from probers.engine.model import CausalLM
    from probers.testbed.assets import load_corpus, load_world

    world = load_world(folder)
    lm = CausalLM.from_pretrained(str(folder), dtype="float32", device=cfg.device)
    retriever = instantiate(cfg.retriever, load_corpus(world))
    figures = evaluate(lm, world, retriever=retriever, questions=cfg.limit, seed=cfg.seed)
    print(json.dumps(figures, indent=1))
    return figures


def _dataclass(kind: Any, node: DictConfig) -> Any:
    """A frozen dataclass from a config node, with lists as tuples."""
    values: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
    return kind(**{k: _tuples(v) for k, v in values.items()})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.items())
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
