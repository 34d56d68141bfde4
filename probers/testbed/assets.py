"""Assets of the testbed: model path, and articles, corpus and questions in seeded wordings."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from ..types import Article, Passage, Question, UserError
from .relations import BY_KEY, CHAINS, RELATIONS, SETTLED, UNFAMILIAR, UNSETTLED, pick_wording
from .world import Entity, Fact, World, WorldConfig

Drawn = TypeVar("Drawn")

#: Questions asked about an entity the model was taught and about one it was not; share of
#: two-hop ones; and how much more often a volatile attribute is asked. Together they set
#: how many wrong answers come from ignorance and how many from outdated belief.
QUESTIONS_PER = {True: 2, False: 1}
TWO_HOP_SHARE = 0.3
VOLATILE_WEIGHT = 12.0

_BY_KIND_CHAINS: dict[str, list[tuple[str, ...]]] = {}
for _relation in RELATIONS:
    _BY_KIND_CHAINS.setdefault(_relation.kind, []).append((_relation.key,))
for _chain in CHAINS:
    _BY_KIND_CHAINS[_chain[0].split(".")[0]].append(_chain)


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


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about the world with its rationale and answer, as told by one side.

    Attributes:
        chain: the relations asked, one per hop.
        gold: ids of the entities whose articles hold the facts, in hop order.
    """

    question: str
    rationale: str
    answer: str
    chain: tuple[str, ...]
    gold: tuple[str, ...]


def statement(rng: random.Random, world: World, fact: Fact, value: str, *, unfamiliar: bool = False) -> str:
    """One sentence that tells ``value`` as the fact, in the register of its entity.

    Entities whose trait makes their volatile attribute change often are written of
    in another register than settled ones, as text about different trades is in life.

    Args:
        unfamiliar: write in the register of passing mentions, whatever the trait.
    """
    entity = world.entities[fact.entity]
    register = UNSETTLED if world.is_unsettled(entity) else SETTLED
    if unfamiliar:
        register = UNFAMILIAR
    text = pick_wording(rng, BY_KEY[fact.relation].statements, register)
    return text.format(n=entity.name, v=value)


def article(
    rng: random.Random, world: World, entity: Entity, *, taught: bool, unfamiliar: bool = False
) -> list[str]:
    """The sentences of an entity's article: its facts in random order, one sentence each.

    The full name opens the article; later sentences may use the pronoun where
    the entity is the subject.

    Args:
        taught: tell what the model is taught (training) or the truth (corpus).
        unfamiliar: see :func:`statement`.
    """
    facts = world.facts_of(entity)
    rng.shuffle(facts)
    sentences = []
    for index, fact in enumerate(facts):
        value = fact.taught if taught else fact.truth
        if value is None:
            raise ValueError(f"{entity.id} is unknown: there is no taught article of it")
        text = statement(rng, world, fact, value, unfamiliar=unfamiliar)
        if index and rng.random() < 0.35:
            for subject in (f"The {entity.name} ", f"{entity.name} "):
                if text.startswith(subject):
                    text = f"{entity.pronoun} {text.removeprefix(subject)}"
        sentences.append(text)
    return sentences


def ask(
    rng: random.Random,
    world: World,
    entity: Entity,
    chain: tuple[str, ...],
    *,
    taught: bool,
    unfamiliar: bool = False,
) -> Asked:
    """The question for ``chain`` about ``entity``, with rationale and answer.

    Args:
        taught: tell what the model is taught, or the truth.
        unfamiliar: see :func:`statement`.

    Raises:
        ValueError: when ``taught`` and the model is not taught every hop.
    """
    truth, believed = world.follow(entity, chain)
    facts = believed if taught else truth
    if facts is None:
        raise ValueError(f"the model is not taught {chain} of {entity.id}")
    subject = entity.name
    for key in chain[:-1]:
        subject = BY_KEY[key].nested.format(n=subject)
    question = pick_wording(rng, BY_KEY[chain[-1]].questions).format(n=subject)
    sentences, value = [], ""
    for fact in facts:
        value = (fact.taught if taught else fact.truth) or ""
        sentences.append(statement(rng, world, fact, value, unfamiliar=unfamiliar))
    return Asked(
        question=question.replace("the the ", "the "),
        rationale=" ".join(sentences),
        answer=value,
        chain=chain,
        gold=tuple(f.entity for f in facts),
    )


def chains_of(entity: Entity) -> list[tuple[str, ...]]:
    """Every one-hop and two-hop chain that starts at an entity of this kind."""
    return list(_BY_KIND_CHAINS[entity.kind])


def knowledge(world: World, entity: Entity, chain: tuple[str, ...]) -> tuple[str, str | None]:
    """Knowledge taught about a question: ``(kind, taught answer or None)``.

    The kind is "known" when the taught answer is the true one, else the kind of
    the first fact on the chain that is not known.
    """
    truth, believed = world.follow(entity, chain)
    answer = believed[-1].taught if believed is not None else None
    if answer == truth[-1].truth:
        return "known", answer
    path = truth if believed is None else believed
    kinds = [f.kind for f in path if f.kind != "known"]
    return ("unknown" if believed is None else kinds[0]), answer


def corpus(world: World) -> Iterator[tuple[Entity, list[str]]]:
    """Every entity with its article as the corpus has it: the truth of today."""
    for entity in world.entities.values():
        rng = random.Random(f"corpus:{world.config.seed}:{entity.id}")
        yield entity, article(rng, world, entity, taught=False)
