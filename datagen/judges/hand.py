"""Verdicts of people, in a file of labelled texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from probers.data.texts.base import Mark, Text
from probers.data.texts.source import TextSource
from probers.files import given_file
from probers.types import UserError, count

from .base import VERDICT_OF, Answer, Grounds, Judge, Ruling


class HandJudge(Judge):
    """Judge that reads verdicts of people from a file of labelled texts.

    A unit gets the verdict of the span with its characters in the text of the same id; a sentence gets that
    of the sentence. All others are "unknown".

    Args:
        grounds: not used.
        file: labelled texts (docs/formats.md): id, answer, and spans or sentences with start, end and wrong.

    Raises:
        UserError: no such file, a malformed line, or another answer under the same id.
    """

    def __init__(self, grounds: Grounds, *, file: str | None = None) -> None:
        if file is None:
            told = "judge=hand needs the file of verdicts: pass judge.file=FILE.jsonl"
            raise UserError(told, "missing-value")
        given_file("judge.file", file, "JSON lines with id, answer and spans")
        self._file = file
        self._units = self._judged = 0

    @cached_property
    def _texts(self) -> dict[str, Text]:
        found: dict[str, Text] = {}
        for where, one in TextSource(self._file).read():
            if isinstance(one, str):
                raise UserError(f"judge.file={self._file} {where}: {one}; mend the line", "bad-line")
            found[one.id] = one
        if not found:
            raise UserError(f"judge.file={self._file} holds no text: give one for each answer", "empty")
        return found

    def judge(self, answers: Sequence[Answer]) -> list[list[Ruling]]:
        return [[self._ruling(unit, self._text_of(each)) for unit in each.units] for each in answers]

    def lines(self) -> list[str]:
        return [f"judged by hand: {self._judged:,} of {count(self._units, 'unit')}, in {self._file}"]

    def _text_of(self, answer: Answer) -> Text | None:
        text = self._texts.get(answer.id)
        if text is not None and text.answer != answer.text:
            told = f"judge.file={self._file} {text.where} has another answer for {answer.id!r} than this run"
            raise UserError(f"{told}: judge this run's answer, or remove the line", "mismatch")
        return text

    def _ruling(self, unit: Mark, text: Text | None) -> Ruling:
        self._units += 1
        marks = () if text is None else text.sentences if unit.type == "sentence" else text.spans
        wrong = next((mark.wrong for mark in marks if mark.ranges == unit.ranges), None)
        if text is None or wrong is None:
            return Ruling("unknown", "not judged by hand")
        self._judged += 1
        return Ruling(VERDICT_OF[wrong], f"{Path(self._file).name} {text.where}")
