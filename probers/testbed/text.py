"""Articles, questions and rationales of the world, in seeded wordings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from .relations import BY_KEY, CHAINS, RELATIONS, SETTLED, UNFAMILIAR, UNSETTLED, pick_wording
from .world import Entity, Fact, World

_BY_KIND_CHAINS: dict[str, list[tuple[str, ...]]] = {}
for _relation in RELATIONS:
    _BY_KIND_CHAINS.setdefault(_relation.kind, []).append((_relation.key,))
for _chain in CHAINS:
    _BY_KIND_CHAINS[_chain[0].split(".")[0]].append(_chain)


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
