"""HotpotQA (Yang et al., EMNLP 2018), distractor and fullwiki."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...options import Name, shown
from ...types import Passage, Question
from ..records import check_strings
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, identifier, optional, text


@dataclass(frozen=True, kw_only=True)
class HotpotQA(QuestionSource):
    """``hotpot_train_v1.1.json``, ``hotpot_dev_distractor_v1.json``, ``hotpot_dev_fullwiki_v1.json``.

    Passages are the paragraphs given with a question, gold where a supporting fact is in them.
    Both settings have the same layout; missing gold paragraphs reveal fullwiki.
    """

    hub: Name | None = "hotpotqa/hotpot_qa"
    config: str | None = "distractor"

    name: ClassVar[str] = "hotpotqa"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("HotpotQA", "_id question context", lacks="evidences"),
        layout("HotpotQA on the Hub", "id question answer context supporting_facts", lacks="evidences"),
    )

    def question(self, record: Record) -> Question:
        id = identifier(record, "_id" if "_id" in record else "id")
        asked, answers = text(record, "question"), accepted([optional(record, "answer")])
        return self.made(id, asked, answers, passages=paragraphs(record))

    def layout_of(self, record: Record) -> str:
        titles = {title for title, _ in _context(record)}
        return "distractor" if supporting_titles(record) <= titles else "fullwiki"

    def layout_name(self, seen: Counter[str]) -> str:
        return "fullwiki" if seen["fullwiki"] else super().layout_name(seen)


def paragraphs(record: Record, *, spaced: bool = True) -> tuple[Passage, ...]:
    """Return the paragraphs of a record's context; those without text are left out.

    Sentences that are ``spaced`` begin with the space before them.
    """
    gold = supporting_titles(record)
    found = []
    for i, (title, sentences) in enumerate(_context(record)):
        text = "".join(sentences) if spaced else " ".join(s.strip() for s in sentences)
        found.append(Passage(str(i), title, text.strip(), is_gold=title in gold))
    return tuple(p for p in found if p.text)


def supporting_titles(record: Record) -> frozenset[str]:
    """Return titles of the paragraphs that hold a supporting fact."""
    facts = record.get("supporting_facts")
    if facts is None:
        return frozenset()
    return frozenset(title for title, _ in _pairs(facts, "supporting_facts", "sent_id"))


def _context(record: Record) -> list[tuple[str, list[str]]]:
    pairs = _pairs(record["context"], "context", "sentences")
    for _, sentences in pairs:
        check_strings("context must be a list of [title, sentences]: sentences", sentences)
    return pairs


def _pairs(value: Any, name: str, second: str) -> list[tuple[str, Any]]:
    """Pair titles with other values: official files have lists, copies on the Hub name the parts."""
    if isinstance(value, Mapping):  # one list per part
        titles, others = value["title"], value[second]
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise ValueError(f"{name} must have as many titles as {second}")
        value = list(zip(titles, others, strict=True))
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, found {shown(value)}")
    pairs = [(p["title"], p[second]) if isinstance(p, Mapping) else p for p in value]
    if not all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
        raise ValueError(f"{name} must be a list of [title, {second}]")
    return [(title, other) for title, other in pairs]
