"""Answers of the parts of a run, in the order of the whole's questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probers.commands.merge import PartRuns
from probers.data.partition import Partition
from probers.types import Question

from .traces import Answer, TraceFile


def own(questions: Sequence[Question], part: Partition | None) -> list[Question]:
    """The questions of one part, which has all of a group or none; None is the whole."""
    return [q for q in questions if part is None or part.owns(q.group or q.id)]


def join_traces(parts: PartRuns, questions: Sequence[Question], file: str, out: Path) -> list[Answer]:
    """Write the parts' answers into one file, as a run in one piece has them.

    Args:
        parts: of one run.
        questions: of the whole.
        file: the traces' path in the folder of each part.
        out: folder of the whole.

    Raises:
        UserError: a part has other questions, or lacks an answer.
        RunError: the file cannot be written.
    """
    found: dict[str, Answer] = {}
    for run in parts.runs:
        mine = own(questions, run.part)
        found |= {answer.id: answer for answer in TraceFile(run.path / file).answers(mine)}
    answers = [found[question.id] for question in questions]
    TraceFile(out / file).rewrite(answers)
    return answers
