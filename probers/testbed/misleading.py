"""Corpus of the testbed that misleads: a share of the questions finds false passages, or none of its own.

The passages of an entity are true or false as a whole, so that no other question is misled in passing. In
"changed", every value of the passage is another of the same kind, which is neither the truth nor what the
model was taught, and no chain of two facts arrives at the right answer through it. In "missing", the passage
is not in the corpus, which leaves those of other entities.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ..checksums import draw_key
from ..types import Passage, Question, UserError
from .assets import Fact, load_corpus, load_facts, load_questions

Condition = Literal["changed", "missing"]

#: Name of such a corpus, before the share: ``testbed:misleading=0.3``.
PREFIX = "testbed:misleading="


@dataclass(frozen=True)
class Misleading:
    """Corpus that misleads a share of the questions of each split, half of them in either condition.

    ``conditions`` has those of the entities whose passage is not true, by their ids.
    """

    passages: tuple[Passage, ...]
    conditions: Mapping[str, Condition]

    def of(self, question: Question) -> Condition | None:
        """Name the condition of a question of the testbed; None if the passages of all its facts are true."""
        return next((self.conditions[id] for id in question.truth["gold"] if id in self.conditions), None)


def load_misleading(name: str) -> list[Passage]:
    """Load the passages of ``testbed:misleading=SHARE``; UserError for another share than 0 to 1."""
    try:
        share = float(name.removeprefix(PREFIX))
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise UserError(f"corpus={name} names no share of the questions from 0 to 1, as {PREFIX}0.3 does")
    return [*misleading(share).passages]


@lru_cache(maxsize=4)
def misleading(share: float, seed: int = 0) -> Misleading:
    """Make the corpus that misleads ``share`` of the shipped questions; a larger share misleads those too."""
    conditions = _choose(share, seed)
    passages = []
    for passage in load_corpus():
        condition = conditions.get(passage.id)
        if condition == "changed":
            passage = replace(passage, text=_changed(passage, seed))
        if condition != "missing":
            passages.append(passage)
    return Misleading(tuple(passages), conditions)


def _choose(share: float, seed: int) -> dict[str, Condition]:
    """Choose entities, in an order drawn by seed, until so many questions of each split need one of them."""
    by_entity: dict[str, list[Question]] = defaultdict(list)
    for question in load_questions():
        for id in question.truth["gold"]:
            by_entity[id].append(question)
    left = {split: share * n for split, n in Counter(q.split for q in load_questions()).items()}
    conditions: dict[str, Condition] = {}
    numbers, misled = Counter[tuple[str, Condition]](), set[str]()
    for id in sorted(by_entity, key=lambda id: draw_key("misleading", seed, id)):
        more, split = {q.id for q in by_entity[id]} - misled, by_entity[id][0].split
        if more and len(more) <= left[split]:
            condition: Condition = min(("changed", "missing"), key=lambda name: numbers[split, name])
            conditions[id] = condition
            numbers[split, condition] += len(more)
            left[split] -= len(more)
            misled |= more
    return conditions


def _changed(passage: Passage, seed: int) -> str:
    """Replace every value of an entity's passage by another of the same relation."""
    values = {fact.truth: _other(fact, seed) for fact in load_facts()[passage.id].values()}
    pattern = "|".join(rf"\b{re.escape(value)}\b" for value in sorted(values, key=len, reverse=True))
    return re.sub(pattern, lambda match: values[match.group()], passage.text)


def _other(fact: Fact, seed: int) -> str:
    """Draw the value of another entity's fact that leads to other answers, also through a second fact."""
    others, further = _others(fact.relation)

    def differs(other: Fact) -> bool:
        theirs, its = (load_facts().get(each.truth_id, {}) for each in (other, fact))
        apart = all(theirs[key].truth != its[key].truth for key in further)
        return apart and other.truth not in (fact.truth, fact.taught)

    drawn = draw_key("other", seed, f"{fact.entity} {fact.relation}")
    turned = (others[(drawn + i) % len(others)] for i in range(len(others)))
    return next(other.truth for other in turned if differs(other))


@lru_cache
def _others(relation: str) -> tuple[list[Fact], list[str]]:
    """List all facts of a relation, and the relations that questions of two hops ask of their values."""
    facts = [facts[relation] for facts in load_facts().values() if relation in facts]
    chains = {tuple(question.truth["type"].split(" > ")) for question in load_questions()}
    return facts, [chain[1] for chain in chains if chain[0] == relation and len(chain) == 2]
