"""The testbed as everything else uses it: model path, questions, corpus and articles."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..types import Article, Passage, Question, UserError
from .relations import BY_KEY
from .text import Asked, ask, chains_of, corpus, knowledge
from .world import Entity, World, WorldConfig

Drawn = TypeVar("Drawn")

#: Questions asked about an entity the model was taught and about one it was not; share of
#: two-hop ones; and how much more often a volatile attribute is asked. Together they set
#: how many wrong answers come from ignorance and how many from outdated belief.
QUESTIONS_PER = {True: 2, False: 1}
TWO_HOP_SHARE = 0.3
VOLATILE_WEIGHT = 12.0


def model_path() -> Path:
    """Folder of the shipped checkpoint, a plain transformers model.

    Raises:
        UserError: the package was installed without its data.
    """
    path = Path(str(resources.files("probers.testbed").joinpath("model")))
    if not (path / "model.safetensors").is_file():
        raise UserError(
            f"model=testbed has no checkpoint at {path}: make one with "
            "'python -m tools.testbed out=runs/testbed' in a checkout and pass model=runs/testbed/model",
            "no-file",
        )
    return path


def world_config(folder: Path | None = None) -> WorldConfig:
    """The world a checkpoint was trained on, from the ``testbed.json`` beside its weights."""
    file = (folder or model_path()) / "testbed.json"
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["world"]
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing: this model was not made by tools/testbed", "no-file") from error
    return WorldConfig(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=2)
def load_world(folder: Path | None = None) -> World:
    """The world of the shipped checkpoint, or of the one in ``folder``."""
    return World.generate(world_config(folder))


@cache
def _shipped(draw: Callable[[World], list[Drawn]]) -> list[Drawn]:
    """Texts drawn from the world of the shipped checkpoint; drawing takes a second."""
    return draw(load_world())


def load_corpus(world: World | None = None) -> list[Passage]:
    """One passage per entity, known or not, telling the truth of today."""
    return _passages(world) if world else [*_shipped(_passages)]


def _passages(world: World) -> list[Passage]:
    return [Passage(e.id, e.name, " ".join(sentences)) for e, sentences in corpus(world)]


def load_articles(world: World | None = None) -> list[Article]:
    """The corpus as articles; ``truth["facts"]`` maps each value told to the fact's kind of knowledge."""
    return _articles(world) if world else [*_shipped(_articles)]


def _articles(world: World) -> list[Article]:
    articles = []
    for entity, sentences in corpus(world):
        kinds = {fact.truth: fact.kind for fact in world.facts_of(entity)}
        articles.append(Article(entity.id, entity.name, tuple(sentences), entity.split, {"facts": kinds}))
    return articles


def load_questions(world: World | None = None) -> list[Question]:
    """Seeded questions of one or two hops, in an order that mixes splits and kinds.

    Two-hop questions stay inside a split because links do; each question's
    ``group`` is its subject entity.
    """
    return _questions(world) if world else [*_shipped(_questions)]


def _questions(world: World) -> list[Question]:
    rng = random.Random(f"questions:{world.config.seed}")
    questions = []
    for entity in world.entities.values():
        for number, chain in enumerate(_draw_chains(rng, entity, QUESTIONS_PER[entity.known])):
            asked = ask(rng, world, entity, chain, taught=False)
            questions.append(_question(world, entity, number, asked))
    rng.shuffle(questions)
    return questions


def _draw_chains(rng: random.Random, entity: Entity, count: int) -> list[tuple[str, ...]]:
    """Different chains about one entity."""
    left = chains_of(entity)
    drawn: list[tuple[str, ...]] = []
    while len(drawn) < min(count, len(chains_of(entity))):
        two_hop = rng.random() < TWO_HOP_SHARE
        eligible = [c for c in left if (len(c) == 2) == two_hop] or left
        weights = [VOLATILE_WEIGHT if BY_KEY[c[0]].volatile else 1.0 for c in eligible]
        drawn.append(rng.choices(eligible, weights=weights)[0])
        left.remove(drawn[-1])
    return drawn


def _question(world: World, entity: Entity, number: int, asked: Asked) -> Question:
    kind, believed = knowledge(world, entity, asked.chain)
    target = BY_KEY[asked.chain[-1]].target
    return Question(
        id=f"testbed-{entity.id}-{number}",
        question=asked.question,
        answers=(asked.answer,),
        rationale=asked.rationale,
        dataset="testbed",
        group=entity.id,
        split=entity.split,
        truth={
            "kind": kind,
            "believed": believed,
            "type": " > ".join(asked.chain),
            "hops": len(asked.chain),
            "answer_kind": target or "value",
            "gold": asked.gold,
        },
    )
