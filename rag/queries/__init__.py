"""Query formulations: the query for the retriever once a trigger has fired. Each works with every trigger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from ..protocol import QueryFormulator
    from .attention import CIOQF, QFS
    from .text import (
        AnswerQuery,
        FlareQuery,
        FullContextQuery,
        LastSentenceQuery,
        LastTokensQuery,
        QuestionQuery,
    )

__all__ = [
    "CIOQF", "QFS", "AnswerQuery", "FlareQuery", "FullContextQuery", "LastSentenceQuery", "LastTokensQuery",
    "QueryFormulator", "QuestionQuery",
]  # fmt: skip

__getattr__ = lazily("probers.rag", {
    "protocol": "QueryFormulator",
    "queries.attention": "CIOQF QFS",
    "queries.text": (
        "AnswerQuery FlareQuery FullContextQuery LastSentenceQuery LastTokensQuery QuestionQuery"
    ),
})  # fmt: skip
