"""Questions of unpublished sets: your own file, as described in docs/formats.md, and the testbed's."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ...types import Passage, Question, UserError
from ..records import given_records
from ..rows import records_of
from ..tables import Row
from .base import FLASHRAG, Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, records, strings, text

#: Other common names of splits.
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation",
           "dev": "validation", "test": "test", "": ""}  # fmt: skip


#: Fields of the accepted answers: ours, FlashRAG's and PopQA's.
_ANSWERS = ("answers", "golden_answers", "possible_answers")
_KNOWN = {"id", "question", *_ANSWERS, "passages", "rationale", "dataset", "group", "split"}


@dataclass(frozen=True, kw_only=True)
class JSONL(QuestionSource):
    """``{"id", "question", "answers": [..]}``, one a line, optionally with more.

    Optional are ``passages`` (``title``, ``text``, ``is_gold``), ``rationale``, ``dataset``,
    ``group`` (questions of one group stay in one split) and ``split``. Without ``answers``, or
    with an empty list, the answer is unknown and the question counts in no score. FlashRAG's
    ``golden_answers`` and PopQA's ``possible_answers`` are read as answers.

    Attributes:
        splits: "file" keeps the splits that the lines name ("dev" is validation) and deals the
            others; "deal" deals all of them, for a file that is itself one split of a dataset.
    """

    splits: Literal["file", "deal"] = "file"

    name: ClassVar[str] = "file"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("JSON lines with answers", "id question answers"),
        FLASHRAG,
        layout("PopQA's", "id question possible_answers", lacks="subj_id"),
        layout("JSON lines", "id question", lacks="answer paragraphs context subj_id"),
    )
    whole: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return f"questions={self.path}" if self.hub is None else super().spec

    def rows(self) -> Iterator[Row]:
        if self.path is None and self.hub is None:
            message = "questions=file needs a file: give questions.path=FILE, or questions=FILE for short"
            raise UserError(message, "missing-value")
        if self.path is not None:
            given_records("questions", self.path, "a JSONL file or a dataset's name")
        yield from self._checked(super().rows())

    def _checked(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; refuse ones without any answer that have fields nobody reads (UserError)."""
        answered, unknown = False, set[str]()
        for row in rows:
            if isinstance(row.record, Mapping):
                answered = answered or any(row.record.get(key) for key in _ANSWERS)
                unknown |= {str(key) for key in row.record} - _KNOWN
            yield row
        if unknown and not answered:
            names = ", ".join(sorted(unknown)[:5])
            message = f"{self.spec}: no question has answers, but fields that are not read ({names})"
            raise UserError(f"{message}: name them answers, or leave these fields out", "labels")

    def mismatch(self, keys: Collection[str]) -> str | None:
        if isinstance(keys, Mapping) and isinstance(keys.get("answers"), Mapping):  # SQuAD's
            return "answers must be a list of strings, found an object"
        return super().mismatch(keys)

    def question(self, record: Record) -> Question:
        key = next((key for key in _ANSWERS if record.get(key)), "answers")
        answers = strings(_listed(record, key), key)
        if any(not a.strip() for a in answers):
            raise ValueError("answers holds an empty string")
        split = optional(record, "split")
        if split.lower() not in _SPLITS:
            raise ValueError(f"split must be train, validation or test, found {split!r}")
        return Question(
            id=identifier(record, "id"),
            question=text(record, "question"),
            answers=accepted(answers) if answers else (),
            rationale=optional(record, "rationale"),
            dataset=optional(record, "dataset"),
            passages=tuple(
                Passage(str(i), text(p, "title"), text(p, "text"), is_gold=flag(p, "is_gold"))
                for i, p in enumerate(records(record, "passages"))
            ),
            group=optional(record, "group"),
            split=_SPLITS[split.lower()] if self.splits == "file" else "",
        )


@dataclass(frozen=True, kw_only=True)
class Given(JSONL):
    """Questions in memory: texts, dictionaries with the fields of a JSONL file, or ``Question`` objects.

    A question without an id is named by its number from 1 on.
    """

    given: Sequence[str | Mapping[str, Any] | Question] = ()

    name: ClassVar[str] = "given"

    @classmethod
    def of(cls, rows: Any) -> Given:
        """Take rows of :func:`probers.data.rows.records_of`, or ``Question`` objects (UserError: neither)."""
        if isinstance(rows, (list, tuple)) and any(isinstance(row, Question) for row in rows):
            return cls(given=tuple(rows))
        return cls(given=tuple(records_of(rows, "question", ("id", "question", "answers"))))

    @property
    def spec(self) -> str:
        return "questions=[..]"

    @property
    def answered(self) -> bool:
        """True if every question has answers."""
        rows = (row.record for row in map(self._row, range(len(self.given)), self.given))
        return all(
            bool(r.answers) if isinstance(r, Question) else any(r.get(key) for key in _ANSWERS) for r in rows
        )

    def all_asked(self) -> Given:
        """Make every question one to ask, a test question, unless some name a split."""
        splits = [
            each.get("split") if isinstance(each, Mapping) else getattr(each, "split", "")
            for each in self.given
        ]
        if any(splits):
            return self
        return replace(self, given=tuple(map(_asked, self.given)))

    def rows(self) -> Iterator[Row]:
        return self._checked(self._row(number, question) for number, question in enumerate(self.given, 1))

    def _row(self, number: int, given: Any) -> Row:
        where = f"question {number}"
        if isinstance(given, Question):
            return Row(where, given)
        record = {"question": given} if isinstance(given, str) else given
        if not isinstance(record, Mapping):
            remedy = "give a text, a dictionary with question and answers, or a Question"
            raise UserError(f"{where} is {given!r:.80}: {remedy}", "bad-value")
        record = {name: value for name, value in record.items() if value is not None}
        record = {"id": str(number), **record}
        return Row(where, record, self.mismatch(record) or "")


def _asked(given: Any) -> Any:
    """Mark a question as one of the test split; leave what is none to its own refusal."""
    if isinstance(given, Question):
        return replace(given, split="test")
    record = {"question": given} if isinstance(given, str) else given
    return {**record, "split": "test"} if isinstance(record, Mapping) else record


def _listed(record: Record, key: str) -> Record:
    """Return the record with its answers as a list; tables have it as JSON, or as Python writes it."""
    value = record.get(key)
    if not isinstance(value, str) or (key == "answers" and not value.startswith("[")):
        return record
    if not value.startswith("["):
        return {**record, key: [value]}
    with suppress(ValueError):
        return {**record, key: json.loads(value)}
    try:
        return {**record, key: ast.literal_eval(value)}
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"{key} must be a list of strings, found {value!r:.80}") from error


@dataclass(frozen=True, kw_only=True)
class Testbed(QuestionSource):
    """Questions about a small fictional world; see docs/testbed.md."""

    name: ClassVar[str] = "testbed"
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if given := list(self._given()):
            message = f"questions=testbed has no questions.{given[0]}: its questions come with the package"
            raise UserError(message, "unknown-key")

    @property
    def spec(self) -> str:
        return "questions=testbed"

    def rows(self) -> Iterator[Row]:
        from ...testbed import assets

        yield from (Row(f"question {n}", q) for n, q in enumerate(assets.load_questions(), 1))
