"""Factoid questions: Natural Questions, TriviaQA, SQuAD, PopQA, WebQuestions, Bamboogle and SimpleQA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal
from urllib.parse import unquote

from ...options import Name, shown
from ...types import Passage, Question, UserError
from ..records import UnusableError
from .base import Layout, QuestionSource, hashed, layout
from .values import Record, accepted, flag, identifier, optional, passage, records, strings, text

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
            raise UserError(f"questions={self.name}: this is DPR's file of {origin}", "mismatch")
        gold = [(p, True) for p in records(record, "positive_ctxs")]
        hard = [(p, False) for p in records(record, "hard_negative_ctxs")[: self.hard_negatives]]
        passages = []
        for number, (context, is_gold) in enumerate(gold + hard):
            id = context.get("passage_id", context.get("psg_id"))
            passages.append(passage(context, str(number if id is None else id), is_gold=is_gold))
        question, answers = text(record, "question"), accepted(strings(record, "answers"))
        return self.made(None, question, answers, passages=tuple(filter(None, passages)))

    def own_question(self, record: Record) -> Question:
        """Make the question of a record in a layout of its own; see :meth:`question`."""
        raise NotImplementedError


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


#: Placeholder on the Hub in files without answers.
_UNKNOWN = "<unk>"
#: Fields of the answer and of lists of others, in the official files and on the Hub.
_OFFICIAL = ("Value", "Aliases", "NormalizedAliases", "HumanAnswers")
_ON_HUB = ("value", "aliases", "normalized_aliases", "human_answers")


@dataclass(frozen=True, kw_only=True)
class TriviaQA(DPRSource):
    """``qa/{web,wikipedia}-{train,dev}.json``, ``unfiltered-web-{train,dev}.json``, or DPR's files.

    Accepted are the value, the aliases, their normalised forms and the humans' answers, as
    in the official evaluation. Its documents, which nobody has marked as gold, are not read.
    """

    hub: Name | None = "mandarjoshi/trivia_qa"
    config: str | None = "rc.nocontext"

    name: ClassVar[str] = "triviaqa"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("TriviaQA", "QuestionId Question"),
        layout("TriviaQA on the Hub", "question_id question answer"),
        DPR,
    )

    def own_question(self, record: Record) -> Question:
        official = "QuestionId" in record
        answer = record.get("Answer" if official else "answer") or {}
        if not isinstance(answer, Mapping):
            raise ValueError(f"the answer must be an object, found {shown(answer)}")
        value, *lists = _OFFICIAL if official else _ON_HUB
        given = [optional(answer, value), *(each for key in lists for each in strings(answer, key))]
        id = identifier(record, "QuestionId" if official else "question_id")
        question = text(record, "Question" if official else "question")
        return self.made(id, question, accepted(each for each in given if each != _UNKNOWN))


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
    group_field: ClassVar[str] = "title"
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
        question, gold = text(record, "question"), ("noanswer",) if impossible else accepted(answers)
        passages = (Passage("0", title, context, is_gold=not impossible),)
        group = self.group_of(record) or hashed("squad", context)
        return self.made(id, question, gold, passages=passages, group=group)

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


@dataclass(frozen=True, kw_only=True)
class PopQA(QuestionSource):
    """PopQA (Mallen et al., ACL 2023): ``popQA.tsv``, which is ``test.tsv`` on the Hub.

    Any of the possible answers is right. The authors' accuracy looks for one of them anywhere in the text;
    ``acc_substring`` does the same but ignores case. Questions about one subject are one group.
    """

    hub: Name | None = "akariasai/PopQA"
    hub_split: str = "test"

    name: ClassVar[str] = "popqa"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("PopQA", "id subj_id question possible_answers"),)

    def question(self, record: Record) -> Question:
        id, question = identifier(record, "id"), text(record, "question")
        answers = accepted(() if record["possible_answers"] == "" else strings(record, "possible_answers"))
        return self.made(id, question, answers, group=self.group_of(record))

    def group_of(self, record: Record) -> str:
        return f"popqa:{identifier(record, 'subj_id')}" if "subj_id" in record else ""


#: Text around and between the answers of a WebQuestions file.
_LIST, _NEXT, _END = "(list (description ", ") (description ", "))"


@dataclass(frozen=True, kw_only=True)
class WebQuestions(QuestionSource):
    """WebQuestions (Berant et al., EMNLP 2013): ``webquestions.examples.{train,test}.json``.

    Any of the answers is right, as in open-domain question answering; the authors' F1 compares whole sets of
    entities. There are no ids: they are made from the question's text. Questions on one Freebase page are
    one group.
    """

    hub: Name | None = "stanfordnlp/web_questions"
    hub_split: str = "test"

    name: ClassVar[str] = "webquestions"
    group_field: ClassVar[str] = "url"
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("WebQuestions", "utterance targetValue"),
        layout("WebQuestions on the Hub", "url question answers"),
    )

    def question(self, record: Record) -> Question:
        official = "utterance" in record
        question = text(record, "utterance" if official else "question")
        answers = _descriptions(text(record, "targetValue")) if official else strings(record, "answers")
        return self.made(None, question, accepted(answers), group=self.group_of(record))


def _descriptions(value: str) -> list[str]:
    """Parse the answers of ``(list (description "Jamaican English") (description Lawyer))``.

    Several words are quoted; quotes within them are not escaped.
    """
    if value == "(list)":
        return []
    if not (value.startswith(_LIST) and value.endswith(_END)):
        raise ValueError(f'targetValue must be (list (description "..") ..), found {value!r:.80}')
    answers = value[len(_LIST) : -len(_END)].split(_NEXT)
    return [answer[1:-1] if answer[:1] == answer[-1:] == '"' else answer for answer in answers]


@dataclass(frozen=True, kw_only=True)
class Bamboogle(QuestionSource):
    """Bamboogle (Press et al., Findings of EMNLP 2023): the authors' sheet as CSV.

    The second answer, given for a few questions, is right as well. Ids are made from the question's text.
    """

    hub: Name | None = "chiayewken/bamboogle"
    hub_split: str = "test"

    name: ClassVar[str] = "bamboogle"
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (layout("Bamboogle", "Question Answer", lacks="QuestionId"),)

    def question(self, record: Record) -> Question:
        answers = (optional(record, key) for key in ("Answer", "Answer 2"))
        return self.made(None, text(record, "Question"), accepted(answers))


@dataclass(frozen=True, kw_only=True)
class SimpleQA(QuestionSource):
    """SimpleQA (Wei et al., 2024) and SimpleQA Verified (Haas et al., 2025): the CSV files.

    Officially a language model grades the answers as correct, incorrect or not attempted. Here they are
    compared with the one gold answer, as in any set, by exact match, F1 or ``match``. This is stricter with
    paraphrased answers, so the figures are not those of its leaderboard. Ids are made from the
    question's text; the metadata is not read.
    """

    hub: Name | None = "basicv8vc/SimpleQA"
    hub_split: str = "test"

    name: ClassVar[str] = "simpleqa"
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("SimpleQA", "metadata problem answer"),
        layout("SimpleQA Verified", "original_index problem answer"),
    )

    def question(self, record: Record) -> Question:
        return self.made(None, text(record, "problem"), accepted([optional(record, "answer")]))
