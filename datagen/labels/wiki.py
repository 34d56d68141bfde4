"""Entity hallucination labels from articles (RaDIO; MIND for the plain continuation).

An article is cut right before an entity that opens no sentence and is not in the
title; the model goes on; the entity at the head of what it wrote is compared with
the article's. The states are those of the tokens of the entity it wrote.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probers.lm import CausalLM
from probers.text import split_sentences
from probers.types import Article, Generation, Needs, UserError

from ..entities import Entity, find_entities
from ..matching import EntityMatcher, normalise
from .base import Examples, recorded

#: Characters between the cut and the written entity that still count as "at its head".
_HEAD = 5


@dataclass(frozen=True, slots=True)
class Cut:
    """An article cut before ``entity``; ``prompt`` is the text up to it, without the space."""

    article: Article
    entity: Entity
    prompt: str


def plan_cuts(articles: Sequence[Article], *, per_article: int, seed: int) -> list[Cut]:
    """The seeded choice of entities to cut at.

    Raises:
        UserError: no article has a usable entity.
    """
    cuts = []
    for article in articles:
        text = " ".join(article.sentences)
        starts = {start for start, _ in split_sentences(text)}
        title = f" {normalise(article.title)} "
        usable = [
            e
            for e in find_entities(text)
            if e.start not in starts and f" {normalise(e.text)} " not in title and text[: e.start].strip()
        ]
        rng = random.Random(f"cuts:{seed}:{article.id}")
        chosen = sorted(rng.sample(usable, min(per_article, len(usable))), key=lambda e: e.start)
        cuts += [Cut(article, e, text[: e.start].rstrip()) for e in chosen]
    if not cuts:
        raise UserError(
            f"none of the {len(articles)} articles has an entity inside a sentence and outside its title: "
            "there is nothing to cut at"
        )
    return cuts


def one_sentence(text: str) -> bool:
    """Stop rule: a second sentence has begun."""
    return len(split_sentences(text)) > 1


def head_entity(text: str) -> Entity | None:
    """The entity at the head of a continuation, or None."""
    # The continuation begins mid-sentence: a lower-case word before it keeps the
    # first word from being taken for the beginning of a sentence.
    lead = "x"
    for entity in find_entities(lead + text if text[:1].isspace() else f"{lead} {text}"):
        shift = len(lead) + (not text[:1].isspace())
        if entity.start - shift <= _HEAD:
            return Entity(entity.start - shift, entity.end - shift, entity.text, entity.type)
        return None
    return None


@dataclass(slots=True)
class WikiBuilder:
    """Continues cut articles and labels the entities written.

    Attributes:
        units: the cuts.
        needs: layers to read; the pooling of the needs is applied to the entity's tokens.
    """

    lm: CausalLM
    units: list[Cut]
    needs: Needs
    matcher: EntityMatcher = field(default_factory=EntityMatcher)
    max_new_tokens: int = 24
    unit_name: str = "cut"
    prompt_id: str = "continuation"

    def build(self, units: Sequence[Cut]) -> Examples:
        per_token = Needs(self.needs.layers, self.needs.site, "tokens", attention=True)
        generations = self.lm.generate(
            [cut.prompt for cut in units],
            max_new_tokens=self.max_new_tokens,
            needs=per_token,
            stop=[one_sentence],
            names=[f"{cut.article.id}/{cut.entity.start}" for cut in units],
        )
        examples = Examples()
        for cut, generation in zip(units, generations, strict=True):
            self._label(cut, generation, examples)
        return examples

    def _label(self, cut: Cut, generation: Generation, examples: Examples) -> None:
        """Add the example unless no entity was written or the comparison is undecided."""
        written = head_entity(generation.text)
        if written is None:
            return
        match = self.matcher.match(cut.entity.text, written.text)
        if match.verdict == "undecided":
            return
        tokens = [i for i, (a, b) in enumerate(generation.offsets) if a < written.end and b > written.start]
        assert generation.states is not None and tokens  # the span lies in the decoded text
        states: np.ndarray = generation.states[tokens]
        pooled = states[-1] if self.needs.pool == "last" else states.mean(axis=0)
        facts = cut.article.truth.get("facts", {})
        row = {
            "id": f"{cut.article.id}/{cut.entity.start}",
            "group": cut.article.id,
            "split": cut.article.split,
            "correct": int(match.verdict == "equivalent"),
            "dataset": "wiki",
            "condition": "continuation",
            "question": cut.prompt,
            "answer": written.text,
            "gold": cut.entity.text,
            "question_type": cut.entity.type,
            "answer_kind": cut.entity.type,
            "knowledge": facts.get(cut.entity.text, ""),
            "entity_start": written.start,
            "entity_end": written.end,
            "match_stage": match.stage,
            "match_evidence": match.evidence,
            **recorded(generation, tokens),
        }
        examples.add(row, pooled)

    def summarise(self, rows: Any) -> tuple[dict[str, Any], list[str]]:
        """Label balance, by entity type and by matching stage, and what could not be decided."""
        hallucinated = 1.0 - float(rows["correct"].mean())
        undecided = 1.0 - len(rows) / len(self.units)
        figures = {"hallucinated": round(hallucinated, 6), "undecided": round(undecided, 6)}
        lines = [
            f"{len(rows)} of {len(self.units)} cuts labelled, {hallucinated:.3f} hallucinated; "
            f"{undecided:.3f} without an entity at the head or undecided"
        ]
        for column in ("question_type", "match_stage"):
            parts = rows.groupby(column)["correct"].agg(["size", "mean"])
            shown = ", ".join(
                f"{k} {r['size']:.0f} ({1 - r['mean']:.2f} hallucinated)" for k, r in parts.iterrows()
            )
            lines.append(f"by {column.replace('question', 'entity')}: {shown}")
        return figures, lines
