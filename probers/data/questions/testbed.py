"""The questions of the embedded testbed, with the splits of its world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ...types import Question, UserError
from ..records import Row
from .base import QuestionSource


@dataclass(frozen=True, kw_only=True)
class Testbed(QuestionSource):
    """Questions about a small fictional world; see docs/testbed.md."""

    name: ClassVar[str] = "testbed"
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if given := list(self._given()):
            raise UserError(
                f"questions=testbed has no questions.{given[0]}: its questions come with the package",
                "unknown-key",
            )

    @property
    def spec(self) -> str:
        return "questions=testbed"

    def rows(self) -> Iterator[Row]:
        from ...testbed import assets

        yield from (Row(f"question {n}", q) for n, q in enumerate(assets.load_questions(), 1))

    def question(self, record: Any) -> Question:
        assert isinstance(record, Question)
        return record

    def layout_of(self, record: Any) -> str:
        return self.name
