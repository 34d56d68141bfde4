"""Questions that tell what a retrieval does.

They are RAMDocs (Wang et al. 2025) and AdaRAGUE (Moskvoretskii et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...evaluation.answers import accuracy_contains, exact_match
from ...types import Passage, Question
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, passage, records, strings, text

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


@dataclass(frozen=True, kw_only=True)
class AdaRAGUE(QuestionSource):
    """AdaRAGUE's tables: ``question_text, context, reference, rag_one_retrieve, no_retrieve`` and a ``qid``.

    The tables hold what pandas printed of lists and arrays, which is read as Python literals and never run.
    Passages are the paragraphs of the context. ``truth`` has both answers of an 8B (``without``, ``with``)
    and ``helps``, whether the retrieval turned the answer right (1), wrong (-1) or neither (0). Right is an
    answer that equals a gold one, or contains one as whole words.
    """

    name: ClassVar[str] = "adarague"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("AdaRAGUE", "question_text reference rag_one_retrieve no_retrieve"),
    )

    def question(self, record: Record) -> Question:
        question, answers = text(record, "question_text"), accepted(strings(record, "reference"))
        without, with_ = optional(record, "no_retrieve"), optional(record, "rag_one_retrieve")
        id = None if record.get("qid") is None else identifier(record, "qid")
        right = [bool(exact_match(a, answers) or accuracy_contains(a, answers)) for a in (without, with_)]
        truth = {"without": without, "with": with_, "wrong": not right[0], "helps": right[1] - right[0]}
        texts = (
            passage(p, str(i), "paragraph_text", is_gold=flag(p, "is_supporting"))
            for i, p in enumerate(records(record, "context"))
        )
        return self.made(id, question, answers, passages=tuple(filter(None, texts)), truth=truth)
