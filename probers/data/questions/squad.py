"""SQuAD 1.1 (Rajpurkar et al., EMNLP 2016) and 2.0 (Rajpurkar et al., ACL 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import unquote

from ...options import Name, shown
from ...types import Passage, Question
from ..records import UnusableError
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, hashed, identifier, optional, records, strings, text


@dataclass(frozen=True, kw_only=True)
class SQuAD(QuestionSource):
    """``{train,dev}-v1.1.json`` and ``{train,dev}-v2.0.json``, or rows as on the Hub.

    2.0 is on the Hub as ``questions.hub=rajpurkar/squad_v2``. The question's own paragraph is
    its passage, gold where it answers the question. Questions on one article are one group.

    Attributes:
        unanswerable: treatment of 2.0's questions that their paragraph does not answer. "exclude"
            leaves them out; "noanswer" makes that word the gold answer, which only matches itself.
    """

    hub: Name | None = "rajpurkar/squad"
    unanswerable: Literal["exclude", "noanswer"] = "exclude"

    name: ClassVar[str] = "squad"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("SQuAD", "paragraphs", lacks="question"),
        layout("SQuAD on the Hub", "id title context question answers", lacks="supporting_facts"),
    )

    def unfold(self, record: Record) -> Sequence[Record]:
        if "paragraphs" not in record:
            return (record,)
        title = {"title": record.get("title")}
        return [
            {**question, **title, "context": paragraph.get("context"), "paragraphs": None}
            for paragraph in records(record, "paragraphs")
            for question in records(paragraph, "qas")
        ]

    def question(self, record: Record) -> Question:
        id, context = identifier(record, "id"), text(record, "context")
        answers = _texts(record)
        # The Hub's rows have no is_impossible: a question without an answer is unanswerable.
        impossible = flag(record, "is_impossible") if "paragraphs" in record else not answers
        if impossible and self.unanswerable == "exclude":
            raise UnusableError(f"unanswerable: {id}")
        title = unquote(optional(record, "title")).replace("_", " ")
        asked, gold = text(record, "question"), ("noanswer",) if impossible else accepted(answers)
        passages = (Passage("0", title, context, is_gold=not impossible),)
        group = self.group_of(record) or hashed("squad", context)
        return self.made(id, asked, gold, passages=passages, group=group)

    def group_of(self, record: Record) -> str:
        title = optional(record, "title")
        return f"squad:{title}" if title else ""

    def layout_of(self, record: Record) -> str:
        if "paragraphs" not in record:
            return self.layouts[1].name
        return "SQuAD 2.0" if "is_impossible" in record else "SQuAD 1.1"


def _texts(record: Record) -> Sequence[str]:
    """List the texts of a question's answers: each with its place, on the Hub all texts and all places."""
    answers = record.get("answers")
    if isinstance(answers, Mapping):
        return strings(answers, "text")
    if answers is not None and not isinstance(answers, list):
        raise ValueError(f"answers must be a list or an object, found {shown(answers)}")
    return [optional(answer, "text") for answer in records(record, "answers")]
