"""TriviaQA (Joshi et al., ACL 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...options import Name, shown
from ...types import Question
from .base import Layout, layout
from .nq import DPR, DPRSource
from .values import Record, accepted, identifier, optional, strings, text

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
        asked = text(record, "Question" if official else "question")
        return self.made(id, asked, accepted(each for each in given if each != _UNKNOWN))
