"""Natural Questions (Kwiatkowski et al., TACL 2019) as open-domain questions (Lee et al., ACL 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...types import Question
from .base import Layout, layout
from .dpr import DPR, DPRSource
from .files import Record, accepted, hashed, strings, text


@dataclass(frozen=True, kw_only=True)
class NaturalQuestions(DPRSource):
    """``NQ-open.{train,dev}.jsonl``, or DPR's ``biencoder-nq-{train,dev}.json``.

    Neither gives ids: they are made from the question's text, so that both files agree.
    """

    hub: str | None = "google-research-datasets/nq_open"

    name: ClassVar[str] = "nq"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("NQ-open", "question answer", lacks="id _id qid question_id context paragraphs facts"),
        DPR,
    )

    def own_question(self, record: Record) -> Question:
        asked = text(record, "question")
        return Question(
            id=hashed(self.name, asked),
            question=asked,
            answers=accepted(strings(record, "answer")),
            dataset=self.name,
        )
