"""Articles, corpus and questions of the testbed, drawn from a world in seeded wordings.

    python -m tools.testbed.drawing

writes those of the shipped checkpoint into the package, as :mod:`probers.testbed.assets` reads them.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

from probers.files import write_bytes
from probers.testbed.assets import model_path
from probers.types import Article, Passage, Question, UserError

from .relations import BY_KEY, BY_KIND, CHAINS, SETTLED, UNFAMILIAR, UNSETTLED, pick_wording
from .world import Entity, Fact, World, WorldConfig

#: Numbers of questions about an entity that the model was taught and about one it was not; share of
#: two-hop ones; and how much more often a volatile attribute is asked. Together they decide
#: how many wrong answers come from ignorance and how many from outdated belief.
QUESTIONS_PER = {True: 2, False: 1}
TWO_HOP_SHARE = 0.3
VOLATILE_WEIGHT = 12.0


def world_config(folder: Path | None = None) -> WorldConfig:
    """Read the world of a checkpoint's training from the ``testbed.json`` beside its weights."""
    from pydantic import TypeAdapter

    file = (folder or model_path()) / "testbed.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))["world"]
    except FileNotFoundError as error:
        raise UserError(f"{file} is missing: this model was not made by tools/testbed", "no-file") from error
    return TypeAdapter(WorldConfig).validate_python(fields)


@lru_cache(maxsize=2)
def load_world(folder: Path | None = None) -> World:
    """Build the world of the shipped checkpoint, or of the one in ``folder``."""
    return World.generate(world_config(folder))


def draw_corpus(world: World) -> list[Passage]:
    """Write one passage per entity, known or not, with today's truth."""
    return [Passage(e.id, e.name, " ".join(sentences)) for e, sentences in corpus(world)]


def draw_articles(world: World) -> list[Article]:
    """Write the corpus as articles; ``truth["facts"]`` maps each value to its fact's kind of knowledge."""
    articles = []
    for entity, sentences in corpus(world):
        kinds = {fact.truth: fact.kind for fact in world.facts_of(entity)}
        articles.append(Article(entity.id, entity.name, tuple(sentences), entity.split, {"facts": kinds}))
    return articles


def draw_questions(world: World) -> list[Question]:
    """Draw questions of one or two hops by seed, in an order that mixes splits and kinds.

    Two-hop questions stay inside a split because links do; a question's ``group`` is its subject entity.
    """
    rng = random.Random(f"questions:{world.config.seed}")
    questions = []
    for entity in world.entities.values():
        for number, chain in enumerate(_draw_chains(rng, entity, QUESTIONS_PER[entity.known])):
            drawn = ask(rng, world, entity, chain, taught=False)
            kind, believed = knowledge(world, entity, chain)
            truth = {
                "kind": kind, "believed": believed, "type": " > ".join(chain), "hops": len(chain),
                "answer_kind": BY_KEY[chain[-1]].target or "value", "gold": drawn.gold,
            }  # fmt: skip
            questions.append(Question(
                f"testbed-{entity.id}-{number}", drawn.question, (drawn.answer,), drawn.rationale,
                dataset="testbed", group=entity.id, split=entity.split, truth=truth,
            ))  # fmt: skip
    rng.shuffle(questions)
    return questions


def _draw_chains(rng: random.Random, entity: Entity, count: int) -> list[tuple[str, ...]]:
    left = chains_of(entity)
    drawn: list[tuple[str, ...]] = []
    while len(drawn) < min(count, len(chains_of(entity))):
        two_hop = rng.random() < TWO_HOP_SHARE
        eligible = [c for c in left if (len(c) == 2) == two_hop] or left
        weights = [VOLATILE_WEIGHT if BY_KEY[c[0]].volatile else 1.0 for c in eligible]
        drawn.append(rng.choices(eligible, weights=weights)[0])
        left.remove(drawn[-1])
    return drawn


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about the world with its rationale and answer, as told by one side.

    ``gold`` has the ids of the entities that its relations are asked about, in hop order.
    """

    question: str
    rationale: str
    answer: str
    gold: tuple[str, ...]


def statement(rng: random.Random, world: World, fact: Fact, value: str, *, unfamiliar: bool = False) -> str:
    """Write one sentence that tells ``value`` as the fact, in the register of its entity.

    Entities whose trait makes their volatile attribute change often have another register than
    settled ones, and ``unfamiliar`` chooses that of passing mentions.
    """
    entity = world.entities[fact.entity]
    register = UNFAMILIAR if unfamiliar else UNSETTLED if world.is_unsettled(entity) else SETTLED
    return pick_wording(rng, BY_KEY[fact.relation].statements, register).format(n=entity.name, v=value)


def article(
    rng: random.Random, world: World, entity: Entity, *, taught: bool, unfamiliar: bool = False
) -> list[str]:
    """Write an entity's article: its facts, as ``taught`` or true, in random order, one sentence each.

    The full name opens the article; later sentences may use the pronoun if the entity is the subject.
    """
    facts = world.facts_of(entity)
    rng.shuffle(facts)
    sentences = []
    for index, fact in enumerate(facts):
        value = fact.taught if taught else fact.truth
        if value is None:
            raise ValueError(f"{entity.id} is unknown: there is no taught article about it")
        text = statement(rng, world, fact, value, unfamiliar=unfamiliar)
        if index and rng.random() < 0.35:
            for subject in (f"The {entity.name} ", f"{entity.name} "):
                if text.startswith(subject):
                    text = f"{entity.pronoun} {text.removeprefix(subject)}"
        sentences.append(text)
    return sentences


def ask(
    rng: random.Random, world: World, entity: Entity, chain: tuple[str, ...], *, taught: bool,
    unfamiliar: bool = False,
) -> Asked:  # fmt: skip
    """Ask for ``chain`` about ``entity``, answered as ``taught`` (ValueError if a hop is not) or truly."""
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
    gold = tuple(fact.entity for fact in facts)
    return Asked(question.replace("the the ", "the "), " ".join(sentences), value, gold)


def chains_of(entity: Entity) -> list[tuple[str, ...]]:
    """List every chain that starts at an entity of this kind."""
    two_hop = (chain for chain in CHAINS if BY_KEY[chain[0]].kind == entity.kind)
    return [*((relation.key,) for relation in BY_KIND[entity.kind]), *two_hop]


def knowledge(world: World, entity: Entity, chain: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the knowledge taught about a question: ``(kind, taught answer or None)``.

    The kind is "known" if the taught answer is the true one, else that of the first fact that is not known.
    """
    truth, believed = world.follow(entity, chain)
    if believed is None:
        return "unknown", None
    if (answer := believed[-1].taught) == truth[-1].truth:
        return "known", answer
    return next(fact.kind for fact in believed if fact.kind != "known"), answer


def corpus(world: World) -> Iterator[tuple[Entity, list[str]]]:
    """Yield every entity with its article in the corpus: today's truth."""
    for entity in world.entities.values():
        rng = random.Random(f"corpus:{world.config.seed}:{entity.id}")
        yield entity, article(rng, world, entity, taught=False)


def main() -> None:
    """Write ``world.jsonl.gz`` and ``questions.jsonl.gz`` beside the shipped checkpoint."""
    world, folder = load_world(), model_path().parent
    entities = [
        {
            "id": each.id, "title": each.title, "split": each.split, "sentences": each.sentences,
            "facts": [astuple(fact)[1:6] for fact in world.facts_of(world.entities[each.id])],
        }
        for each in draw_articles(world)
    ]  # fmt: skip
    questions = [
        {
            "id": each.id, "question": each.question, "answers": each.answers, "rationale": each.rationale,
            "group": each.group, "split": each.split, "truth": each.truth,
        }
        for each in draw_questions(world)
    ]  # fmt: skip
    for name, records in (("world", entities), ("questions", questions)):
        text = "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
        write_bytes(folder / f"{name}.jsonl.gz", gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
