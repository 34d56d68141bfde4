"""The testbed as everything else uses it: model path, questions, corpus and articles."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..types import Article, Passage, Question, UserError
from .relations import BY_KEY
from .text import Asked, ask, chains_of, corpus, knowledge
from .world import Entity, World, WorldConfig

#: Share of two-hop questions; volatile attributes are asked this much more often.
TWO_HOP_SHARE = 0.3
VOLATILE_WEIGHT = 2.5


def model_path() -> Path:
    """Folder of the shipped checkpoint, a plain transformers model.

    Raises:
        UserError: the package was installed without its data.
    """
    path = Path(str(resources.files("probers.testbed").joinpath("model")))
    if not (path / "model.safetensors").is_file():
        raise UserError(
            f"model=testbed has no checkpoint at {path}: make one with "
            "'probers-testbed out=runs/testbed' and pass model=runs/testbed/model"
        )
    return path


def world_config(folder: Path | None = None) -> WorldConfig:
    """The world a checkpoint was trained on, from the ``testbed.json`` beside its weights."""
    file = (folder or model_path()) / "testbed.json"
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["world"]
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing: this model was not made by probers-testbed") from error
    pairs = {k: tuple(map(tuple, v)) if k == "known" else v for k, v in fields.items()}
    pairs = {k: tuple(v) if isinstance(v, list) else v for k, v in pairs.items()}
    return WorldConfig(**pairs)


@lru_cache(maxsize=2)
def load_world(folder: Path | None = None) -> World:
    """The world of the shipped checkpoint, or of the one in ``folder``."""
    return World.generate(world_config(folder))


def load_corpus(world: World | None = None) -> list[Passage]:
    """One passage per entity, known or not, telling the truth of today."""
    world = world or load_world()
    return [Passage(e.id, e.name, " ".join(sentences)) for e, sentences in corpus(world)]


def load_articles(world: World | None = None) -> list[Article]:
    """The corpus as articles; ``truth["facts"]`` maps each value told to the fact's kind of knowledge."""
    world = world or load_world()
    articles = []
    for entity, sentences in corpus(world):
        kinds = {fact.truth: fact.kind for fact in world.facts_of(entity)}
        articles.append(Article(entity.id, entity.name, tuple(sentences), entity.split, {"facts": kinds}))
    return articles


def load_questions(world: World | None = None) -> list[Question]:
    """One seeded question per entity, of one or two hops, in an order that mixes splits and kinds.

    Two-hop questions stay inside a split because links do; each question's
    ``group`` is its subject entity.
    """
    world = world or load_world()
    rng = random.Random(f"questions:{world.config.seed}")
    questions = []
    for entity in world.entities.values():
        chain = _draw_chain(rng, entity)
        asked = ask(rng, world, entity, chain, taught=False)
        questions.append(_question(world, entity, asked))
    rng.shuffle(questions)
    return questions


def _draw_chain(rng: random.Random, entity: Entity) -> tuple[str, ...]:
    two_hop = rng.random() < TWO_HOP_SHARE
    chains = [c for c in chains_of(entity) if (len(c) == 2) == two_hop] or chains_of(entity)
    weights = [VOLATILE_WEIGHT if BY_KEY[c[0]].volatile else 1.0 for c in chains]
    return rng.choices(chains, weights=weights)[0]


def _question(world: World, entity: Entity, asked: Asked) -> Question:
    kind, believed = knowledge(world, entity, asked.chain)
    target = BY_KEY[asked.chain[-1]].target
    return Question(
        id=f"testbed-{entity.id}",
        question=asked.question,
        answers=(asked.answer,),
        rationale=asked.rationale,
        dataset="testbed",
        group=entity.id,
        split=entity.split,
        truth={
            "kind": kind, "believed": believed, "type": " > ".join(asked.chain),
            "hops": len(asked.chain), "answer_kind": target or "value", "gold": asked.gold,
        },  # fmt: skip
    )
