"""Query formulations: what to ask the retriever once a trigger has fired."""

from __future__ import annotations

from .answer import AnswerQuery
from .base import QueryFormulator
from .qfs import QFS
from .question import QuestionQuery

__all__ = ["QFS", "AnswerQuery", "QueryFormulator", "QuestionQuery"]
