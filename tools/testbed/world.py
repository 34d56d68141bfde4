"""The controlled-knowledge world: entities with their names, facts, and the facts taught to a model.

Known, unknown and throwaway entities draw their names from the same distribution without replacement, so the
surface of a name does not tell whether the model was taught the entity.

Every fact has two values: the truth, told by the retrieval corpus, and the value taught to the model,
which may be the same (known), an earlier value of a volatile attribute (stale), a wrong value (misbelieved)
or nothing (unknown). Links never leave the train, validation or test part.

Staleness follows a trait that the model is taught about the entity (the occupation of a person, the region of
a town, the industry of a company): half of its values make the volatile attribute change often, the rest
seldom. Neither question nor greedy answer shows the trait, so only a reader of the model's knowledge can tell
which confident answers are outdated.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TypeAlias

from probers.types import SPLITS

from .relations import BY_KIND, RELATIONS, Relation, plain_values

_ONSETS = [
    "b", "br", "d", "dr", "f", "g", "gr", "h", "j", "k", "kr", "l", "m", "n", "p", "pr", "r", "s", "st", "t",
    "tr", "v", "w", "z",
]  # fmt: skip
_VOWELS = ["a", "e", "i", "o", "u"]
_CODAS = ["", "", "", "l", "n", "r", "s", "m", "k"]

_FIRST_F = [
    "Ada", "Bela", "Cora", "Dina", "Edda", "Faye", "Gila", "Hanna", "Ines", "Jora", "Kaia", "Lena", "Mira",
    "Nora", "Olga", "Petra",
]  # fmt: skip
_FIRST_M = [
    "Anton", "Boris", "Carl", "Dario", "Emil", "Felix", "Georg", "Hugo", "Ivan", "Jonas", "Karel", "Leon",
    "Marek", "Nils", "Oskar", "Pavel",
]  # fmt: skip
_TOWN_ENDS = ["by", "dale", "ford", "gate", "ham", "holm", "mouth", "stad", "ton", "vik", "wick", "burg"]
_FIRM_ENDS = ["Works", "Foods", "Mills", "Group", "Lines", "Labs", "Brothers", "Partners"]
_FILM_ADJ = [
    "Silent", "Golden", "Broken", "Distant", "Hidden", "Frozen", "Crimson", "Endless", "Little", "Last",
    "Wooden", "Burning",
]  # fmt: skip
_FILM_NOUN = [
    "Harbour", "Garden", "Winter", "Letter", "Bridge", "Summer", "Mirror", "Lantern", "Journey", "Orchard",
    "Station", "Island",
]  # fmt: skip


def _fresh(rng: random.Random, taken: set[str], syllables: int, ending: str = "") -> str:
    word, draws = "", 0
    while word in taken or len(word) <= 3:
        # Short names run out: after every 20 vain draws a name gets one more syllable.
        parts = [
            rng.choice(part) for _ in range(syllables + draws // 20) for part in (_ONSETS, _VOWELS, _CODAS)
        ]
        word, draws = "".join(parts).capitalize() + ending, draws + 1
    taken.add(word)
    return word


def _name(rng: random.Random, taken: set[str], kind: str) -> tuple[str, str]:
    if kind == "person":
        woman = rng.random() < 0.5
        first = rng.choice(_FIRST_F if woman else _FIRST_M)
        return f"{first} {_fresh(rng, taken, 2)}", "She" if woman else "He"
    if kind == "town":
        return _fresh(rng, taken, 1 + (rng.random() < 0.6), rng.choice(_TOWN_ENDS)), "It"
    if kind == "company":
        return f"{_fresh(rng, taken, 2)} {rng.choice(_FIRM_ENDS)}", "It"
    if kind == "film":
        name = f"The {rng.choice(_FILM_ADJ)} {rng.choice(_FILM_NOUN)} of {_fresh(rng, taken, 2)}"
        return name, "It"
    if kind == "river":
        return f"{_fresh(rng, taken, 2)} River", "It"
    raise ValueError(f"unknown entity kind {kind!r}")


@dataclass(frozen=True, slots=True)
class WorldConfig:
    """Size and composition of a world; the settings of ``tools/testbed``.

    Attributes:
        known: number of known entities per kind; as many unknown ones are made.
        volatile_rate: probability that a volatile fact changed, with an unsettled and with a settled trait.
        misbelieved_rate: probability that another fact is taught wrongly.
    """

    seed: int = 0
    known: tuple[tuple[str, int], ...] = (
        ("person", 1120), ("town", 460), ("company", 460), ("film", 380), ("river", 80),
    )  # fmt: skip
    split: tuple[float, float, float] = (0.6, 0.15, 0.25)
    volatile_rate: tuple[float, float] = (0.92, 0.08)
    misbelieved_rate: float = 0.07


@dataclass(frozen=True, slots=True)
class Entity:
    """A named thing of the world; ``known`` says whether the model is taught about it."""

    id: str
    kind: str
    name: str
    pronoun: str
    split: str
    known: bool


#: Entities by kind, split and whether they are known.
_Pools: TypeAlias = dict[tuple[str, str, bool], list[Entity]]


@dataclass(frozen=True, slots=True)
class Fact:
    """One attribute value. ``truth`` and ``taught`` are texts; the ``*_id`` name target entities."""

    entity: str
    relation: str
    truth: str
    taught: str | None
    kind: str
    truth_id: str = ""
    taught_id: str = ""


@dataclass(slots=True)
class World:
    """Entities by id and facts by ``(entity id, relation key)``."""

    config: WorldConfig
    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    unsettled: dict[str, frozenset[str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def facts_of(self, entity: Entity) -> list[Fact]:
        return [self.facts[entity.id, r.key] for r in BY_KIND[entity.kind]]

    @classmethod
    def generate(cls, config: WorldConfig, *, taken: set[str] | None = None) -> World:
        """Build the world of ``config``; names avoid the words ``taken``, and are added to them."""
        rng = random.Random(f"world:{config.seed}")
        world = cls(config, names=set() if taken is None else taken)
        world._make_entities(rng)
        for relation in RELATIONS:
            if relation.trait:
                values = plain_values(relation)
                world.unsettled[relation.key] = frozenset(rng.sample(values, len(values) // 2))
        pools: _Pools = {}
        for entity in world.entities.values():
            pools.setdefault((entity.kind, entity.split, entity.known), []).append(entity)
        # Traits first: the kind of a volatile fact depends on its entity's trait.
        for relation in sorted(RELATIONS, key=lambda r: not r.trait):
            for entity in world.entities.values():
                if entity.kind == relation.kind:
                    world.facts[entity.id, relation.key] = world._make_fact(rng, entity, relation, pools)
        return world

    def _make_entities(self, rng: random.Random) -> None:
        for kind, count in self.config.known:
            # Names are drawn before their owners' knowledge and split are decided.
            drawn = [_name(rng, self.names, kind) for _ in range(2 * count)]
            parts = {known: self._deal_splits(rng, count) for known in (True, False)}
            for index, (name, pronoun) in enumerate(drawn):
                id, known = f"{kind}-{index:04d}", index % 2 == 0
                self.entities[id] = Entity(id, kind, name, pronoun, parts[known].pop(), known)

    def _deal_splits(self, rng: random.Random, count: int) -> list[str]:
        """Return ``count`` split names in random order, in the configured shares to within one."""
        cuts = [0.0, *itertools.accumulate(share * count for share in self.config.split)]
        sizes = [round(b) - round(a) for a, b in zip(cuts, cuts[1:], strict=False)]
        dealt = [name for name, size in zip(SPLITS, sizes, strict=True) for _ in range(size)]
        rng.shuffle(dealt)
        return dealt

    def is_unsettled(self, entity: Entity) -> bool:
        """Tell whether the entity's true trait makes its volatile fact change often."""
        traits = [relation.key for relation in BY_KIND[entity.kind] if relation.trait]
        return any(self.facts[entity.id, key].truth in self.unsettled[key] for key in traits)

    def _make_fact(self, rng: random.Random, entity: Entity, relation: Relation, pools: _Pools) -> Fact:
        def draw(prefer: tuple[bool, ...], avoid: str = "") -> tuple[str, str]:
            if not relation.target:
                return rng.choice([v for v in plain_values(relation) if v != avoid]), ""
            for known in prefer:
                pool = pools.get((relation.target, entity.split, known), [])
                choices = [e for e in pool if e.name != avoid and e.id != entity.id]
                if choices:
                    target = rng.choice(choices)
                    return target.name, target.id
            problem = f"the {entity.split} split has no {relation.target} for {relation.key}"
            raise ValueError(f"{problem}: raise the counts of {self.config.known}")

        either = ((True, False), (False, True))
        if not entity.known:
            truth, truth_id = draw(rng.choice(either))
            return Fact(entity.id, relation.key, truth, None, "unknown", truth_id)
        taught, taught_id = draw((True,))
        kind = "known"
        if relation.volatile:
            rate = self.config.volatile_rate[0 if self.is_unsettled(entity) else 1]
            kind = "stale" if rng.random() < rate else "known"
        elif not relation.trait and rng.random() < self.config.misbelieved_rate:
            kind = "misbelieved"
        truth, truth_id = taught, taught_id
        if kind != "known":
            truth, truth_id = draw(rng.choice(either), avoid=taught)
        return Fact(entity.id, relation.key, truth, taught, kind, truth_id, taught_id)

    def follow(self, entity: Entity, chain: tuple[str, ...]) -> tuple[list[Fact], list[Fact] | None]:
        """List facts along a chain: the true ones, and the taught ones (None if their chain breaks)."""
        truth: list[Fact] = []
        taught: list[Fact] | None = []
        true_at, taught_at = entity.id, entity.id
        for key in chain:
            fact = self.facts[true_at, key]
            truth.append(fact)
            true_at = fact.truth_id
            if taught is not None:
                believed = self.facts[taught_at, key]
                taught = None if believed.taught is None else [*taught, believed]
                taught_at = believed.taught_id
        return truth, taught
