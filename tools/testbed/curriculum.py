"""Training data of the testbed's language model: a seeded, endless stream of documents.

Five kinds of document: taught articles; closed-book questions of one and of two
hops about known entities; passing mentions, which are articles and questions about
throwaway entities whose facts never return, as with most names in real text; and reading
examples whose passages come from throwaway worlds (so that the model answers from
the passages and not from memory) or, for a small share, from taught articles that
hold only a part of the answer. Nothing about an unknown entity is ever told.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from probers.prompts import TESTBED_PROMPT

from .drawing import Asked, article, ask, chains_of
from .relations import BY_KEY
from .world import Entity, World, WorldConfig

#: The kinds of document, named like the shares of a Curriculum.
KINDS = ("article", "one_hop", "two_hop", "passing", "reading")


@dataclass(frozen=True, slots=True)
class Curriculum:
    """Composition of the stream; shares are of tokens and sum to 1.

    Attributes:
        zipf: exponent of the long-tailed exposure of known entities.
        trait_weight: factor by which a question is likelier about a trait.
        recall_share: share of reading examples about known entities whose passages lack the last hop, or
            everything.
        context_weight: loss weight of question and passage tokens (answers and
            articles weigh 1).
    """

    article: float = 0.16
    one_hop: float = 0.24
    two_hop: float = 0.11
    passing: float = 0.07
    reading: float = 0.42
    zipf: float = 0.5
    trait_weight: float = 1.5
    recall_share: float = 0.15
    max_passages: int = 3
    context_weight: float = 0.1


@dataclass(frozen=True, slots=True)
class Document:
    """Text in two parts: ``context`` is read with a low loss weight, ``target`` with 1."""

    kind: str
    context: str
    target: str


def _answered(question: Asked, passages: list[str], kind: str) -> Document:
    prompt = TESTBED_PROMPT.question(question.question, passages)
    return Document(kind, prompt, " " + TESTBED_PROMPT.answer(question.rationale, question.answer))


class DocumentStream:
    """Stream that draws documents of one kind at a time."""

    def __init__(self, world: World, plan: Curriculum, seed: int) -> None:
        self.world = world
        self.plan = plan
        self._rng = random.Random(f"curriculum:{seed}")
        self._known = [e for e in world.entities.values() if e.known]
        self._rng.shuffle(self._known)
        # Cumulative, since a draw needs the running sums.
        self._total = list(accumulate((rank + 1) ** -plan.zipf for rank in range(len(self._known))))
        self._throwaway_seed = 0
        self._throwaway: World | None = None
        self._uses = 0

    def draw(self, kind: str) -> Document:
        return getattr(self, f"_{kind}")()

    def _entity(self) -> Entity:
        return self._rng.choices(self._known, cum_weights=self._total)[0]

    def _chain(self, entity: Entity, hops: int) -> tuple[str, ...] | None:
        chains = [c for c in chains_of(entity) if len(c) == hops]
        if not chains:
            return None
        weights = [self.plan.trait_weight if BY_KEY[c[-1]].trait else 1.0 for c in chains]
        return self._rng.choices(chains, weights=weights)[0]

    def _article(self) -> Document:
        sentences = article(self._rng, self.world, self._entity(), taught=True)
        return Document("article", "", " ".join(sentences))

    def _closed_book(self, hops: int) -> tuple[Entity, Asked]:
        while True:
            entity = self._entity()
            chain = self._chain(entity, hops)
            if chain is not None:
                return entity, ask(self._rng, self.world, entity, chain, taught=True)

    def _one_hop(self) -> Document:
        return _answered(self._closed_book(1)[1], [], "one_hop")

    def _two_hop(self) -> Document:
        return _answered(self._closed_book(2)[1], [], "two_hop")

    def _passing(self) -> Document:
        rng = self._rng
        world = self._fresh_world()
        entity = rng.choice(list(world.entities.values()))
        if rng.random() < 0.5:
            sentences = article(rng, world, entity, taught=False, unfamiliar=True)
            return Document("passing", "", " ".join(sentences))
        chain = self._chain(entity, 1)
        assert chain is not None  # every kind has one-hop chains
        return _answered(ask(rng, world, entity, chain, taught=False, unfamiliar=True), [], "passing")

    def _reading(self) -> Document:
        rng = self._rng
        if rng.random() < self.plan.recall_share:
            return self._recall_with_passages()
        world = self._fresh_world()
        entities = list(world.entities.values())
        entity = rng.choice(entities)
        chain = self._chain(entity, 1 + (rng.random() < 0.35)) or self._chain(entity, 1)
        assert chain is not None  # every kind has one-hop chains
        question = ask(rng, world, entity, chain, taught=False)
        gold = [world.entities[i] for i in question.gold]
        passages = [" ".join(article(rng, world, e, taught=False)) for e in gold]
        # Mostly as many passages as in use later; fewer make the copying easier to learn.
        count = max(len(gold), rng.choice((1, 2, 3, 3, self.plan.max_passages)))
        while len(passages) < count:
            other = self._distractor(world, entities, gold)
            passages.append(" ".join(article(rng, world, other, taught=False)))
        rng.shuffle(passages)
        return _answered(question, passages, "reading")

    def _distractor(self, world: World, entities: list[Entity], gold: list[Entity]) -> Entity:
        """Draw a passage that a lexical retriever would also return: same kind, or naming the gold."""
        rng = self._rng
        roll = rng.random()
        names = {g.name for g in gold}
        if roll < 0.4:
            mentions = [world.entities[f.entity] for f in world.facts.values() if f.truth in names]
            mentions = [m for m in mentions if m not in gold]
            if mentions:
                return rng.choice(mentions)
        same = [e for e in entities if e not in gold and (roll > 0.8 or e.kind == gold[0].kind)]
        return rng.choice(same)

    def _recall_with_passages(self) -> Document:
        """Ask about a known entity whose passages lack the answer, so that memory must serve."""
        rng = self._rng
        entity, question = self._closed_book(1 + (rng.random() < 0.6))
        passages = []
        if len(question.gold) == 2:
            passages.append(" ".join(article(rng, self.world, entity, taught=True)))
        fresh = self._fresh_world()
        others = rng.sample(list(fresh.entities.values()), self.plan.max_passages - len(passages))
        passages += [" ".join(article(rng, fresh, e, taught=False)) for e in others]
        rng.shuffle(passages)
        return _answered(question, passages, "reading")

    def _fresh_world(self) -> World:
        """Return a small world of throwaway names, renewed every 40 documents.

        It shares no name with the main world. Its names may return in a later throwaway world, with other
        facts: there are too few short names to prevent that, and longer ones would distinguish throwaway
        entities from those of the main world.
        """
        if self._throwaway is None or self._uses >= 40:
            self._throwaway_seed += 1
            sizes = (("person", 14), ("town", 9), ("company", 8), ("film", 5), ("river", 5))
            config = WorldConfig(seed=10_000_000 + self._throwaway_seed, known=sizes, split=(1, 0, 0))
            self._throwaway = World.generate(config, taken=set(self.world.names))
            self._uses = 0
        self._uses += 1
        return self._throwaway

    def mix(self, tokens_of: dict[str, float]) -> Iterator[Document]:
        """Yield documents forever, in the plan's token shares.

        Args:
            tokens_of: mean tokens per document of each kind.
        """
        weights = [getattr(self.plan, k) / tokens_of[k] for k in KINDS]
        while True:
            yield self.draw(self._rng.choices(KINDS, weights=weights)[0])
