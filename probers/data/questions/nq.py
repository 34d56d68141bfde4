"""Natural Questions (Kwiatkowski et al., TACL 2019) as open-domain questions (Lee et al., ACL 2019).

It includes the layout of DPR's training files (Karpukhin et al., EMNLP 2020), which cover several datasets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...options import Name
from ...types import Passage, Question, UserError
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, optional, passage, records, strings, text

#: ``biencoder-<dataset>-<split>.json``.
DPR = layout("DPR's biencoder file", "question answers positive_ctxs")


@dataclass(frozen=True, kw_only=True)
class DPRSource(QuestionSource):
    """A set of questions that also comes in DPR's training files.

    A subclass lists :data:`DPR` last among its layouts and makes questions of its own records
    with :meth:`own_question`.

    Attributes:
        hard_negatives: number of passages without the answer kept from DPR's file.
    """

    hard_negatives: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hard_negatives < 0:
            raise UserError(f"questions.hard_negatives={self.hard_negatives} must be 0 or more")

    def question(self, record: Record) -> Question:
        """Make the question of a record, here of DPR's layout.

        Positive passages are gold: NQ's are from the annotated page, TriviaQA's were found by BM25
        and hold an answer. Passages keep their ids of psgs_w100.tsv. The random negatives, which
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
        passages = tuple(p for p in (*gold, *others) if p is not None)
        asked, answers = text(record, "question"), accepted(strings(record, "answers"))
        return self.made(None, asked, answers, passages=passages)

    def own_question(self, record: Record) -> Question:
        """Make the question of a record in a layout of its own; see :meth:`question`."""
        raise NotImplementedError


def _passage(record: Record, number: int, is_gold: bool) -> Passage | None:
    given = record.get("passage_id", record.get("psg_id"))
    return passage(record, str(number if given is None else given), is_gold=is_gold)


@dataclass(frozen=True, kw_only=True)
class NaturalQuestions(DPRSource):
    """``NQ-open.{train,dev}.jsonl``, or DPR's ``biencoder-nq-{train,dev}.json``.

    Neither has ids: they are made from the question's text, so that both files agree.
    """

    hub: Name | None = "google-research-datasets/nq_open"

    name: ClassVar[str] = "nq"
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("NQ-open", "question answer", lacks="id _id qid question_id context paragraphs facts"),
        DPR,
    )

    def own_question(self, record: Record) -> Question:
        return self.made(None, text(record, "question"), accepted(strings(record, "answer")))
