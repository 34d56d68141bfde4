"""AdaRAGUE: questions that an 8B answered with one retrieval and with none (Moskvoretskii et al. 2025).

Its tables hold what pandas printed of lists and arrays, which is read as Python literals and never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...evaluation.answers import accuracy_contains, exact_match
from ...options import shown
from ...types import Passage, Question
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, text

#: Gap between the objects of an array as numpy prints it, without a comma.
_GAP = re.compile(r"\}\s*\n\s*\{")
#: Largest number of characters of a list.
_MOST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class AdaRAGUE(QuestionSource):
    """AdaRAGUE's tables: ``question_text, context, reference, rag_one_retrieve, no_retrieve`` and a ``qid``.

    Passages are the paragraphs of the context. ``truth`` has both answers of the 8B (``without``, ``with``)
    and ``helps``, whether the retrieval turned the answer right (1), wrong (-1) or neither (0).
    """

    name: ClassVar[str] = "adarague"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("AdaRAGUE", "question_text reference rag_one_retrieve no_retrieve"),
    )

    def question(self, record: Record) -> Question:
        question, answers = text(record, "question_text"), accepted(_strings(record, "reference"))
        without, with_ = optional(record, "no_retrieve"), optional(record, "rag_one_retrieve")
        id = None if record.get("qid") is None else identifier(record, "qid")
        right = [judged_right(each, answers) for each in (without, with_)]
        truth = {"without": without, "with": with_, "wrong": not right[0], "helps": right[1] - right[0]}
        return self.made(id, question, answers, passages=_paragraphs(record), truth=truth)


def judged_right(answer: str, gold: Sequence[str]) -> bool:
    """Judge an answer as AdaRAGUE does: it equals a gold answer, or contains one as whole words."""
    return bool(exact_match(answer, gold) or accuracy_contains(answer, gold))


def _paragraphs(record: Record) -> tuple[Passage, ...]:
    given = _list(record, "context") if record.get("context") is not None else []
    if odd := next((each for each in given if not isinstance(each, Mapping)), None):
        raise ValueError(f"context must be a list of objects, found {shown(odd)}")
    passages = [
        Passage(
            str(number), optional(each, "title"), optional(each, "paragraph_text"),
            is_gold=flag(each, "is_supporting"),
        )
        for number, each in enumerate(given)
    ]  # fmt: skip
    return tuple(passage for passage in passages if passage.text)


def _strings(record: Record, key: str) -> list[str]:
    values = _list(record, key)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} must be a list of strings, found {shown(record[key])}")
    return values


def _list(record: Record, key: str) -> list[Any]:
    """Read a list, which the tables write as Python or numpy prints it (ValueError)."""
    value = record[key]
    if isinstance(value, list):
        return value
    problem = f"{key} must be a list, found {shown(value)}"
    if not isinstance(value, str) or not value.strip().startswith("[") or len(value) > _MOST:
        raise ValueError(problem)
    try:
        read = ast.literal_eval(_GAP.sub("}, {", value.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(problem) from error
    if not isinstance(read, list):
        raise ValueError(problem)
    return read
