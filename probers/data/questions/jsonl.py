"""Questions of no published set: one's own, as docs/formats.md describes their file, and the testbed's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from ...types import Passage, Question, UserError
from ..records import Row
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, records, strings, text

#: Other names in use for a split.
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation",
           "dev": "validation", "test": "test", "": ""}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class JSONL(QuestionSource):
    """``{"id", "question", "answers": [..]}``, one a line, optionally with more.

    Optional are ``passages`` (``title``, ``text``, ``is_gold``), ``rationale``, ``dataset``,
    ``group`` (what may not be on two sides of a split) and ``split``. Without ``answers``, or
    with an empty list, nobody knows the answer and the question counts in no score.

    Attributes:
        splits: "file" keeps the splits that the lines name ("dev" is validation) and deals the
            others; "deal" deals all of them, for a file that is one side of somebody's split.
    """

    splits: Literal["file", "deal"] = "file"

    name: ClassVar[str] = "file"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("JSON lines with answers", "id question answers"),
        layout("JSON lines", "id question", lacks="answer paragraphs context"),
    )
    whole: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, Sequence[str]]] = {"splits": ("file", "deal")}

    @property
    def spec(self) -> str:
        return f"questions={self.path}" if self.hub is None else super().spec

    @property
    def typed(self) -> str:
        if self.path is None:
            return super().typed
        return self.spec if self.splits == "file" else f"{self.spec} questions.splits={self.splits}"

    def rows(self) -> Iterator[Row]:
        if self.path is None and self.hub is None:
            told = "questions=file needs a file: give questions.path=FILE, or questions=FILE for short"
            raise UserError(told, "missing-value")
        if self.path is not None and not Path(self.path).is_file():
            told = f"questions={self.path} is not a file: give a JSONL file or a dataset's name"
            raise UserError(told, "no-file")
        yield from super().rows()

    def question(self, record: Record) -> Question:
        answers = strings(record, "answers")
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
class Testbed(QuestionSource):
    """Questions about a small fictional world; see docs/testbed.md."""

    name: ClassVar[str] = "testbed"
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if given := list(self._given()):
            told = f"questions=testbed has no questions.{given[0]}: its questions come with the package"
            raise UserError(told, "unknown-key")

    @property
    def spec(self) -> str:
        return "questions=testbed"

    def rows(self) -> Iterator[Row]:
        from ...testbed import assets

        yield from (Row(f"question {n}", q) for n, q in enumerate(assets.load_questions(), 1))
