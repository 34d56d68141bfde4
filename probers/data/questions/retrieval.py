"""Questions of retrieval collections, and sets that tell what a retrieval does to the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...evaluation.answers import accuracy_contains, exact_match
from ...options import Name, shown
from ...types import Passage, Question, UserError
from ..records import UnusableError, bad_line, open_text
from ..tables import Row
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, passage, records, strings, text

#: The judges' answer where no passage answered a query.
_NO_ANSWER = "No Answer Present."


@dataclass(frozen=True, kw_only=True)
class MSMARCO(QuestionSource):
    """MS MARCO's question answering (Bajaj et al., 2016): ``{train,dev}_v2.1.json``, or JSON lines.

    Answers are the judges' own words, often sentences. Officially ROUGE-L and BLEU compare
    them; here exact match and F1 do, and exact match is hardly ever met. The well-formed answers,
    of another task, are not read. Passages are those found for a query, gold where the judge used
    them for the answer.

    Attributes:
        unanswerable: treatment of queries that no passage answers ("No Answer Present."). "exclude"
            leaves them out; "noanswer" makes that word the gold answer, which only matches itself.
    """

    hub: Name | None = "microsoft/ms_marco"
    config: str | None = "v2.1"
    unanswerable: Literal["exclude", "noanswer"] = "exclude"

    name: ClassVar[str] = "msmarco"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("MS MARCO", "query_id query answers passages"),)

    def question(self, record: Record) -> Question:
        id = identifier(record, "query_id")
        answers = strings(record, "answers")
        unanswerable = any(answer.strip() == _NO_ANSWER for answer in answers)
        if unanswerable and self.unanswerable == "exclude":
            raise UnusableError(f"unanswerable: {id}")
        question, answers = text(record, "query"), ("noanswer",) if unanswerable else accepted(answers)
        return self.made(id, question, answers, passages=_passages(record))


def _passages(record: Record) -> tuple[Passage, ...]:
    """List the passages of a query; official files have one list, the Hub's rows a list of each field."""
    given = record.get("passages")
    if isinstance(given, Mapping):
        texts, marks = strings(given, "passage_text"), given.get("is_selected")
        if not isinstance(marks, list) or len(marks) != len(texts):
            raise ValueError("passages must have as many is_selected as passage_text")
        pairs: list[tuple[str, Any]] = list(zip(texts, marks, strict=True))
    else:
        pairs = [(optional(p, "passage_text"), p.get("is_selected")) for p in records(record, "passages")]
    if odd := [mark for _, mark in pairs if mark not in (0, 1, None)]:
        raise ValueError(f"is_selected must be 0 or 1, found {shown(odd[0])}")
    return tuple(
        Passage(str(i), "", body.strip(), is_gold=None if mark is None else bool(mark))
        for i, (body, mark) in enumerate(pairs)
        if body.strip()
    )


@dataclass(frozen=True, kw_only=True)
class BEIR(QuestionSource):
    """The ``queries.jsonl`` of a dataset of BEIR (Thakur et al., NeurIPS 2021).

    Queries have no answers, so they count in no score. The dataset's passages are corpus=corpus.jsonl.

    Attributes:
        qrels: judgements such as ``qrels/test.tsv``; then only the queries judged there are asked, as in
            BEIR.
    """

    qrels: str | None = None

    name: ClassVar[str] = "beir"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("BEIR's queries", "_id text"),)
    extra_files: ClassVar[tuple[str, ...]] = ("qrels",)

    def rows(self) -> Iterator[Row]:
        judged = passed = False
        for row in super().rows():
            query = row.record if not row.problem and isinstance(row.record, Mapping) else None
            if self.qrels is not None and query and str(query.get("_id")) not in self._judged:
                passed = True
            else:
                judged = True
                yield row
        if passed and not judged:
            raise UserError(f"questions.qrels={self.qrels} judges no query of {self.spec}", "mismatch")

    def question(self, record: Record) -> Question:
        if optional(record, "title"):
            raise ValueError("a query has no title: BEIR's corpus.jsonl must be given as corpus=FILE")
        return self.made(identifier(record, "_id"), text(record, "text"), ())

    @cached_property
    def _judged(self) -> frozenset[str]:
        """Collect ids of the queries in the judgements, lines of query, passage and score below a header."""
        assert self.qrels is not None
        judged = set()
        with open_text(Path(self.qrels)) as (lines, _):
            for number, line in enumerate(lines, 1):
                fields = line.rstrip("\r\n").split("\t")
                if len(fields) != 3 and line.strip():
                    message = f"{len(fields)} tab-separated fields instead of query-id, corpus-id and score"
                    raise bad_line(f"questions.qrels={self.qrels} line {number}: {message}")
                if number > 1 or fields[0] != "query-id":
                    judged.add(fields[0])
        return frozenset(judged)


#: Types of documents.
_TYPES = ("correct", "misinfo", "noise")


@dataclass(frozen=True, kw_only=True)
class RAMDocs(QuestionSource):
    """RAMDocs (Wang et al. 2025), ``RAMDocs_test.jsonl``: questions with documents of three types.

    A document has ``text``, ``type`` and ``answer``. Passages are the documents, gold where they are
    correct. ``truth`` has the ``wrong_answers`` of the documents of misinformation, and ``documents``, the
    type of each passage.
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
    """AdaRAGUE (Moskvoretskii et al. 2025): questions with an 8B's answers before and after a retrieval.

    Columns are ``question_text, context, reference, rag_one_retrieve, no_retrieve`` and a ``qid``. They hold
    what pandas printed of lists and arrays, which is read as Python literals and never run. Passages are the
    paragraphs of the context. ``truth`` has both answers (``without``, ``with``) and ``helps``, whether the
    retrieval turned the answer right (1), wrong (-1) or neither (0). Right is an answer that equals a gold
    one, or contains one as whole words.
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
