"""Factoid questions published without passages: PopQA, WebQuestions, Bamboogle and SimpleQA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...options import Name
from ...types import Question
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, identifier, listed, optional, strings, text


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
        id, asked = identifier(record, "id"), text(record, "question")
        answers = accepted(listed(record, "possible_answers"))
        return self.made(id, asked, answers, group=self.group_of(record))

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
    has_ids: ClassVar[bool] = False
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("WebQuestions", "utterance targetValue"),
        layout("WebQuestions on the Hub", "url question answers"),
    )

    def question(self, record: Record) -> Question:
        official = "utterance" in record
        asked = text(record, "utterance" if official else "question")
        answers = _descriptions(text(record, "targetValue")) if official else strings(record, "answers")
        return self.made(None, asked, accepted(answers), group=self.group_of(record))

    def group_of(self, record: Record) -> str:
        page = optional(record, "url")
        return f"webquestions:{page}" if page else ""


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
