"""StrategyQA (Geva et al., TACL 2021): yes or no."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from ...options import Name
from ...types import Passage, Question, UserError
from ..records import UnusableError, what_is_wrong
from .base import Layout, QuestionSource, layout
from .values import Record, flag, identifier, optional, passage, strings, text

#: Values in the evidence that replace a paragraph's id.
_NO_PARAGRAPH = ("operation", "no_evidence")


@dataclass(frozen=True, kw_only=True)
class StrategyQA(QuestionSource):
    """``strategyqa_train.json`` or ``strategyqa_train_filtered.json``; the test file has no answers.

    The rationale consists of the facts. Questions about one term share facts and are one group.

    Attributes:
        paragraphs: ``strategyqa_train_paragraphs.json``; the paragraphs that any annotator gave
            as evidence are then the gold passages. Without it there are none.
    """

    hub: Name | None = "ChilleD/StrategyQA"
    hub_split: str = "test"
    paragraphs: str | None = None

    name: ClassVar[str] = "strategyqa"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("StrategyQA", "qid question"),)
    extra_files: ClassVar[tuple[str, ...]] = ("paragraphs",)

    def question(self, record: Record) -> Question:
        id = identifier(record, "qid")
        answer = flag(record, "answer")
        if answer is None:
            raise UnusableError("no gold answer")
        facts = record.get("facts")
        asked, answers = text(record, "question"), ("yes" if answer else "no",)
        rationale = facts.strip() if isinstance(facts, str) else " ".join(strings(record, "facts"))
        passages, group = self._evidence(record), self.group_of(record) or id
        return self.made(id, asked, answers, rationale=rationale, passages=passages, group=group)

    def group_of(self, record: Record) -> str:
        term = optional(record, "term")
        return f"strategyqa:{term}" if term else ""

    def _evidence(self, record: Record) -> tuple[Passage, ...]:
        if self.paragraphs is None:
            return ()
        found: list[Passage] = []
        for id in dict.fromkeys(_ids(record.get("evidence"))):
            if id not in self._texts:
                raise ValueError(f"the paragraph {id!r} is not in questions.paragraphs={self.paragraphs}")
            made = passage(self._texts[id], id, "content", is_gold=True)
            if made is not None:
                found.append(made)
        return tuple(found)

    @cached_property
    def _texts(self) -> dict[str, Mapping[str, Any]]:
        assert self.paragraphs is not None
        given = f"questions.paragraphs={self.paragraphs}"
        try:
            texts = json.loads(Path(self.paragraphs).read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{given} is not JSON in UTF-8: {what_is_wrong(error)}", "bad-file") from error
        if not isinstance(texts, dict) or not all(isinstance(t, dict) for t in texts.values()):
            raise UserError(f"{given} must be an object of paragraphs, by id", "bad-file")
        return texts


def _ids(evidence: Any) -> Iterator[str]:
    """List paragraph ids in the nested lists: annotators, steps, and the evidence of each step."""
    if isinstance(evidence, str):
        if evidence not in _NO_PARAGRAPH:
            yield evidence
    elif isinstance(evidence, list):
        for part in evidence:
            yield from _ids(part)
    elif evidence is not None:
        raise ValueError(f"evidence must be nested lists of strings, found {evidence!r}")
