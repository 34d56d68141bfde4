"""RAMDocs: questions whose documents are right, noise or misinformation (Wang et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...types import Passage, Question
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, optional, records, strings, text

#: Types of documents.
_TYPES = ("correct", "misinfo", "noise")


@dataclass(frozen=True, kw_only=True)
class RAMDocs(QuestionSource):
    """``RAMDocs_test.jsonl``: question, documents with ``text``, ``type`` and ``answer``, gold answers.

    Passages are the documents, gold where they are correct. ``truth`` has the ``wrong_answers`` that the
    documents of misinformation give, and ``documents``, the type of each passage.
    """

    name: ClassVar[str] = "ramdocs"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("RAMDocs", "question documents gold_answers"),)
    has_ids: ClassVar[bool] = False

    def question(self, record: Record) -> Question:
        question, answers = text(record, "question"), accepted(strings(record, "gold_answers"))
        passages, kinds = [], []
        for number, document in enumerate(records(record, "documents")):
            if (kind := optional(document, "type")) not in _TYPES:
                raise ValueError(f"documents[{number}].type must be {', '.join(_TYPES)}, found {kind!r:.80}")
            body = text(document, "text")
            passages.append(Passage(str(number), "", body, is_gold=kind == "correct"))
            kinds.append(kind)
        truth = {"documents": kinds, "wrong_answers": list(strings(record, "wrong_answers"))}
        return self.made(None, question, answers, passages=tuple(passages), truth=truth)
