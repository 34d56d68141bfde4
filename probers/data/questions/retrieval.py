"""Questions of retrieval collections: MS MARCO's with answers, BEIR's without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...options import Name, shown
from ...types import Passage, Question, UserError
from ..records import UnusableError, bad_line, open_text
from ..tables import Row
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, identifier, optional, records, strings, text

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
