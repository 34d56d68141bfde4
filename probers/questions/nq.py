"""Natural Questions (Kwiatkowski et al., TACL 2019) as open-domain questions (Lee et al., ACL 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..types import Question, UserError
from .base import Layout, QuestionSource, layout
from .dpr import DPR, dpr_question
from .values import Record, accepted, hashed, strings, text


@dataclass(frozen=True, kw_only=True)
class NaturalQuestions(QuestionSource):
    """``NQ-open.{train,dev}.jsonl``, or DPR's ``biencoder-nq-{train,dev}.json``.

    Neither gives ids: they are made from the question's text, so that both files agree.

    Attributes:
        hard_negatives: of DPR's file, how many passages without the answer are kept.
    """

    hub: str | None = "google-research-datasets/nq_open"
    hard_negatives: int = 10

    name: ClassVar[str] = "nq"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("NQ-open", "question answer", lacks="id _id qid question_id context paragraphs facts"),
        DPR,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_negatives(self.hard_negatives)

    def question(self, record: Record) -> Question:
        if "positive_ctxs" in record:
            return dpr_question(record, self.name, self.hard_negatives)
        asked = text(record, "question")
        return Question(
            id=hashed(self.name, asked),
            question=asked,
            answers=accepted(strings(record, "answer")),
            dataset=self.name,
        )


def check_negatives(number: int) -> None:
    """Refuse a number of hard negatives below 0."""
    if number < 0:
        raise UserError(f"questions.hard_negatives={number} must be 0 or more")
