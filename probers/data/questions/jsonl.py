"""Questions of unpublished sets: your own file, as described in docs/formats.md, and the testbed's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ...types import Passage, Question, UserError, shortlist
from ..records import given_records
from ..rows import records_of
from ..splits import SPLIT_NAMES
from ..tables import Row
from .base import FLASHRAG, Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, records, strings, text

#: Fields of the accepted answers: ours, FlashRAG's and PopQA's.
_ANSWERS = ("answers", "golden_answers", "possible_answers")
#: Fields of a question, for messages.
_NEEDS = ("id", "question", "answers")
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
            raise UserError("questions=file needs a file: give questions.path=FILE", "missing-value")
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
            names = shortlist(sorted(unknown))
            message = f"{self.spec}: questions have no answers, but fields that are not read"
            raise UserError(f"{message} ({names}): name them answers, or leave them out", "labels")

    def mismatch(self, keys: Collection[str]) -> str | None:
        if isinstance(keys, Mapping) and isinstance(keys.get("answers"), Mapping):  # SQuAD's
            return "answers must be a list of strings, found an object"
        return super().mismatch(keys)

    def question(self, record: Record) -> Question:
        key = next((key for key in _ANSWERS if record.get(key)), "answers")
        value = record.get(key)
        alone = key != "answers" and isinstance(value, str) and not value.startswith("[")
        answers = (str(value),) if alone else strings(record, key)
        if any(not a.strip() for a in answers):
            raise ValueError("answers holds an empty string")
        split = optional(record, "split")
        if split and split.lower() not in SPLIT_NAMES:
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
            split=SPLIT_NAMES.get(split.lower(), "") if self.splits == "file" else "",
        )


@dataclass(frozen=True, kw_only=True)
class Given(JSONL):
    """Questions in memory: texts, dictionaries with the fields of a JSONL file, or ``Question`` objects.

    A question without an id is named by its number from 1 on.
    """

    given: Sequence[Mapping[str, Any] | Question] = ()

    name: ClassVar[str] = "given"

    @classmethod
    def of(cls, rows: Any) -> Given:
        """Take rows of :func:`probers.data.rows.records_of`, or ``Question`` objects (UserError: neither)."""
        if not isinstance(rows, (list, tuple)) or not any(isinstance(row, Question) for row in rows):
            return cls(given=tuple(records_of(rows, "question", _NEEDS)))
        plain = [{} if isinstance(row, Question) else row for row in rows]
        pairs = zip(rows, records_of(plain, "question", _NEEDS), strict=True)
        return cls(given=tuple(row if isinstance(row, Question) else record for row, record in pairs))

    @property
    def spec(self) -> str:
        return "questions=[..]"

    @property
    def answered(self) -> bool:
        """True if every question has answers."""
        return all(
            bool(each.answers) if isinstance(each, Question) else any(each.get(key) for key in _ANSWERS)
            for each in self.given
        )

    def all_asked(self) -> Given:
        """Make every question one to ask, a test question, unless some name a split."""
        splits = (e.split if isinstance(e, Question) else e.get("split") for e in self.given)
        if any(splits):
            return self
        tests = (
            replace(e, split="test") if isinstance(e, Question) else {**e, "split": "test"}
            for e in self.given
        )
        return replace(self, given=tuple(tests))

    def rows(self) -> Iterator[Row]:
        return self._checked(self._row(number, question) for number, question in enumerate(self.given, 1))

    def _row(self, number: int, given: Mapping[str, Any] | Question) -> Row:
        where = f"question {number}"
        if isinstance(given, Question):
            return Row(where, given)
        record = {"id": str(number), **{name: value for name, value in given.items() if value is not None}}
        return Row(where, record, self.mismatch(record) or "")


@dataclass(frozen=True, kw_only=True)
class Testbed(QuestionSource):
    """Questions about a small fictional world; see docs/testbed.md."""

    name: ClassVar[str] = "testbed"
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if given := list(self._given()):
            raise UserError(f"questions=testbed has no questions.{given[0]}: it takes none", "unknown-key")

    @property
    def spec(self) -> str:
        return "questions=testbed"

    def rows(self) -> Iterator[Row]:
        from ...testbed import assets

        yield from (Row(f"question {n}", q) for n, q in enumerate(assets.load_questions(), 1))
