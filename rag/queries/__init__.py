"""Query formulations: what to ask the retriever once a trigger has fired. Any of them meets any trigger."""

from __future__ import annotations

from .answer import AnswerQuery
from .base import QueryFormulator
from .cioqf import CIOQF
from .flare import FlareQuery
from .full_context import FullContextQuery
from .last_sentence import LastSentenceQuery
from .last_tokens import LastTokensQuery
from .qfs import QFS
from .question import QuestionQuery

__all__ = [
    "CIOQF", "QFS", "AnswerQuery", "FlareQuery", "FullContextQuery", "LastSentenceQuery", "LastTokensQuery",
    "QueryFormulator", "QuestionQuery",
]  # fmt: skip
