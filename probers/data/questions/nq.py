"""Natural Questions (Kwiatkowski et al., TACL 2019) as open-domain questions (Lee et al., ACL 2019).

Also the layout of DPR's training files (Karpukhin et al., EMNLP 2020), which exist of several datasets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...options import Name
from ...types import Passage, Question, UserError
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, hashed, optional, passage, records, strings, text

#: ``biencoder-<dataset>-<split>.json``.
DPR = layout("DPR's biencoder file", "question answers positive_ctxs")


@dataclass(frozen=True, kw_only=True)
class DPRSource(QuestionSource):
    """A set of questions that DPR's training files hold too.

    A subclass lists :data:`DPR` last among its layouts and makes questions of its own records
    with :meth:`own_question`.

    Attributes:
        hard_negatives: of DPR's file, how many passages without the answer are kept.
    """

    hard_negatives: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hard_negatives < 0:
            raise UserError(f"questions.hard_negatives={self.hard_negatives} must be 0 or more")

    def question(self, record: Record) -> Question:
        """The question of a record, here of one of DPR's.

        Positive passages are gold: of NQ they are from the annotated page, of TriviaQA those found by BM25
        that hold an answer. Passages keep the ids they have in psgs_w100.tsv. The random negatives, which
        belong to other questions, are not read. UserError for another dataset's file.
        """
        if "positive_ctxs" not in record:
            return self.own_question(record)
        origin = optional(record, "dataset")
        if origin and not origin.startswith(self.name.removesuffix("qa")):  # "trivia_train"
            told = f"questions={self.name}: this is DPR's file of another dataset, {origin}"
            raise UserError(told, "mismatch")
        gold = [_passage(p, i, True) for i, p in enumerate(records(record, "positive_ctxs"))]
        hard = records(record, "hard_negative_ctxs")[: self.hard_negatives]
        others = [_passage(p, i, False) for i, p in enumerate(hard, len(gold))]
        asked = text(record, "question")
        return Question(
            id=hashed(self.name, asked),
            question=asked,
            answers=accepted(strings(record, "answers")),
            dataset=self.name,
            passages=tuple(p for p in (*gold, *others) if p is not None),
        )

    def own_question(self, record: Record) -> Question:
        """The question of a record in a layout of its own; see :meth:`question`."""
        raise NotImplementedError


def _passage(record: Record, number: int, is_gold: bool) -> Passage | None:
    given = record.get("passage_id", record.get("psg_id"))
    return passage(record, str(number if given is None else given), is_gold=is_gold)


@dataclass(frozen=True, kw_only=True)
class NaturalQuestions(DPRSource):
    """``NQ-open.{train,dev}.jsonl``, or DPR's ``biencoder-nq-{train,dev}.json``.

    Neither gives ids: they are made from the question's text, so that both files agree.
    """

    hub: Name | None = "google-research-datasets/nq_open"

    name: ClassVar[str] = "nq"
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("NQ-open", "question answer", lacks="id _id qid question_id context paragraphs facts"),
        DPR,
    )

    def own_question(self, record: Record) -> Question:
        asked = text(record, "question")
        answers = accepted(strings(record, "answer"))
        return Question(hashed(self.name, asked), asked, answers, dataset=self.name)
