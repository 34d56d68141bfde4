"""Question sets in their published layouts, by kind.

A set is a dataclass whose fields are its options. :func:`open_questions` takes its name,
or an object of your own class derived from :class:`QuestionSource`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...files import digest
from ...options import nearest, refuse_unknown
from ...parts import PARTS, load_part
from ...progress import Bar
from ...types import SPLITS, Question, UserError, count
from ..records import (
    BadLine,
    LeftOut,
    UnusableError,
    check_bad_line,
    check_object,
    check_unicode,
    what_is_wrong,
)
from ..splits import Drawn, Limit, Unfit, draw_stream, draw_whole, parts_of
from ..tables import Row
from .base import FLASHRAG, Layout, QuestionSource, layout
from .jsonl import Given
from .values import Record, check_names

__all__ = [
    "EmptySplitError", "Excluded", "Layout", "QuestionSet", "QuestionSource", "UnusableError",
    "layout", "load_questions", "make_source", "open_questions", "source_class",
]  # fmt: skip

log = logging.getLogger(__name__)


class EmptySplitError(UserError):
    """Error of questions without any in the requested split."""


@dataclass
class Excluded(LeftOut):
    """Questions that were left out, each named by its place or its id.

    ``lost`` is the place where a file is truncated.
    """

    noun: str = "question"
    lost: str = ""


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a run, and a record of their choice.

    Every question has group and split. ``record``, for the run's record, has source, layout, seed,
    limit, split and the numbers of questions (``dealt``: those whose split was dealt);
    its ``digest`` is the same exactly when the same questions are asked.
    """

    questions: list[Question]
    excluded: Excluded
    record: dict[str, Any]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return notes for the user; none when everything requested was there."""
        return [*self.notes, *self.excluded.lines(most=10)]


def load_questions(
    source: str | QuestionSource, *, limit: Limit = None, split: str | None = None, seed: int = 0,
    on_bad_line: BadLine = "error",
) -> list[Question]:  # fmt: skip
    """Load the questions of :func:`open_questions`; log those left out as a warning."""
    drawn = open_questions(source, limit=limit, split=split, seed=seed, on_bad_line=on_bad_line)
    for line in drawn.lines():
        log.warning(line)
    return drawn.questions


def open_questions(
    source: str | QuestionSource = "testbed",
    *,
    limit: Limit = None,
    split: str | None = None,
    seed: int = 0,
    deal_splits: bool = True,
    on_bad_line: BadLine = "error",
    unfit: Unfit = lambda question: False,
    **options: Any,
) -> QuestionSet:
    """Read a question set and draw from it.

    Args:
        source: a name in the table of parts, the path of a JSONL file, or an object.
        limit: number of usable questions, drawn by ``seed``; a smaller limit is a part of a larger one. None
            takes all. A mapping has a number for each split; unnamed splits give none.
        split: only those of "train", "validation" or "test".
        seed: also deals groups of questions to splits, where the file does not say.
        deal_splits: False leaves a set without splits whole: all its questions are test questions.
        on_bad_line: policy for a malformed record. A well-formed question that cannot be asked (no answer, a
            repeated id) is always left out, and counted.
        unfit: predicate of questions not to ask, since something was trained on them; they are counted.
        options: fields of the source's class, such as ``path``.

    Raises:
        UserError: a wrong request or file; also when questions left out make the rest
            fewer than ``limit``. A set that never had enough gives all it has, with a note.
        EmptySplitError: no question is in the split asked for, or in one that ``limit`` names.
        RunError: the Hub cannot be reached.
    """
    _check_limit(limit, split)
    check_bad_line(on_bad_line)
    opened = make_source(source, **options).seeded(seed)
    reading, parts = _Reading(opened, on_bad_line), parts_of(limit, split)
    draw = draw_whole if opened.whole else draw_stream
    drawn = draw(reading, parts, seed=seed, deal_splits=deal_splits, unfit=unfit)
    excluded, where = reading.excluded, f" in the {split} split" if split else ""
    if not sum(drawn.splits.values()) and not drawn.seen:
        reasons = excluded.summary() or "it is empty"
        raise UserError(f"{opened.spec} holds no usable question: {reasons}", "empty")
    if drawn.seen and not drawn.questions:
        raise EmptySplitError(f"{opened.spec}: all {drawn.seen} questions{where} were trained on", "overlap")
    notes = [opened.selected] if opened.selected else []
    if drawn.seen:
        left = count(drawn.seen, "question")
        notes.append(f"{left} left out: a part of this run was trained or tuned on them")
    if excluded.lost:
        notes.append(f"{opened.spec} is truncated at {excluded.lost}: nothing after it was read")
    for part, most in parts.items():
        key = f"limit.{part}" if isinstance(limit, Mapping) else "limit"
        notes += _shortage(opened, drawn, excluded, key, part, most)
    content = "".join(repr((q.id, q.question, q.answers, q.split)) for q in drawn.questions)
    record = {
        "source": opened.spec, "layout": opened.layout_name(reading.layouts), "seed": seed,
        "limit": dict(limit) if isinstance(limit, Mapping) else limit,
        "split": split, "read": reading.read, "splits": drawn.splits, "dealt": drawn.dealt,
        "available": sum(map(drawn.available, parts)),
        "used": len(drawn.questions), "excluded": dict(excluded.counts), "digest": digest(content),
        **({"trained_on": drawn.seen} if drawn.seen else {}),
        **({"selected": opened.selected} if opened.selected else {}),
    }  # fmt: skip
    return QuestionSet(drawn.questions, excluded, record, tuple(notes))


def _check_limit(limit: Limit, split: str | None) -> None:
    """Refuse an unknown split, and limits that leave nothing or name no split (UserError)."""
    by_split, names = isinstance(limit, Mapping), ", ".join(SPLITS)
    if by_split and split is not None:
        raise UserError(f"split={split} and a limit for each split conflict: leave one out", "conflict")
    if by_split and not limit:
        raise UserError(f"limit={{}} names no split: name {names}, or give one number for all")
    for name, most in (limit if isinstance(limit, Mapping) else {split: limit}).items():
        if most is not None and most < 1:
            key = f"limit.{name}" if by_split else "limit"
            raise UserError(f"{key}={most} leaves nothing: give 1 or more, or null for all")
        if name not in (*SPLITS, None):
            key, whole = (f"limit.{name}", "one number") if by_split else (f"split={name}", "null")
            message = f"{key} is unknown: choose {names}, or {whole} for all"
            raise UserError(message, "bad-value" if by_split else "unknown-choice")


def _shortage(
    source: QuestionSource, drawn: Drawn, excluded: Excluded, key: str, split: str | None, most: int | None
) -> list[str]:
    """Note that a part of a set has fewer questions than requested; raise if others were left out."""
    available, where = drawn.available(split), f" in the {split} split" if split else ""
    if not available:
        counts = ", ".join(f"{n} {name}" for name, n in sorted(drawn.splits.items()))
        hint = ": pass split=validation" if "validation" in drawn.splits and key == "limit" else ""
        raise EmptySplitError(f"{source.spec} has no question{where} (it has {counts}){hint}", "empty")
    if most is None or available >= most:
        return []
    if available + len(excluded) >= most or excluded.lost:
        message = f"{key}={most} cannot be met: {source.spec} has {available} usable questions{where}"
        left = f"{len(excluded)} were left out ({excluded.summary()})"
        raise UserError(f"{message}, since {left}: pass {key}={available} or less, or null for all")
    return [f"{source.spec} has {count(available, 'question')}{where}: all are used, {key}={most} is more"]


class _Reading:
    """The usable questions of a source, in its order; all other records are counted."""

    def __init__(self, source: QuestionSource, on_bad_line: BadLine) -> None:
        self.source = source
        self.excluded = Excluded(file=str(source.path or source.spec), policy=on_bad_line)
        self.layouts: Counter[str] = Counter()
        self.read = 0
        self._fitted = False  # whether a record in one of the source's layouts was read
        self._seen: dict[str, str] = {}

    def __iter__(self) -> Iterator[Question]:
        rows = self.source.rows()
        # A large file or a stream takes minutes and shows a bar, a small file does not.
        for row in Bar(rows, self.source.name, unit=" records", delay=5, leave=False, disable=None):
            if row.problem:
                self._check_dataset(row)
                self.excluded.refuse(row.where, row.problem)
                self.excluded.lost = row.where if row.last else self.excluded.lost
                continue
            self._fitted = self._fitted or isinstance(row.record, dict)
            try:
                parts: Sequence[Record | Question] = [row.record]
                if not isinstance(row.record, Question):
                    check_object(row.record)
                    parts = [row.record] if FLASHRAG.fits(row.record) else self.source.unfold(row.record)
            except (ValueError, KeyError, TypeError) as error:
                self.excluded.refuse(row.where, what_is_wrong(error))
                continue
            for number, part in enumerate(parts, 1):
                where = row.where if len(parts) == 1 else f"{row.where} question {number}"
                yield from self._checked(part, where)

    def _checked(self, record: Record | Question, where: str) -> Iterator[Question]:
        self.read += 1
        try:
            if isinstance(record, Question):
                question, layout_name = record, self.source.name
            else:
                question, layout_name = self.source.read(record)
            check_names(question)
            check_unicode(asdict(question))
            if question.id in self._seen:
                reason = f"the id {question.id!r} is already on {self._seen[question.id]}"
                raise ValueError(reason) if self.source.whole else UnusableError(f"repeated id: {reason}")
        except UnusableError as error:
            self.excluded.add(where, str(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.excluded.refuse(where, what_is_wrong(error))
        else:
            self._seen[question.id] = where
            self.layouts[layout_name] += 1
            yield question

    def _check_dataset(self, row: Row) -> None:
        """Refuse a file that begins with records of another dataset, and name it."""
        if self._fitted or not isinstance(row.record, dict):
            return
        for name in PARTS["questions"]:
            for known in source_class(name).layouts:
                if name != self.source.name and known.fits(row.record):
                    other = f"{known.name}, to be read by questions={name}"
                    raise UserError(f"{self.source.spec}: {row.where} looks like {other}", "mismatch")


def source_class(name: str) -> type[QuestionSource]:
    """Import the class of a question set."""
    kind: type[QuestionSource] = load_part("questions", name)
    return kind


def make_source(source: Any, **options: Any) -> QuestionSource:
    """Make the source with its options, which must be fields of its class (UserError).

    It is a name, a file, a source, or a list of questions (:class:`probers.data.questions.jsonl.Given`).
    """
    if isinstance(source, Path):
        source, options = "file", {**options, "path": str(source)}
    elif not isinstance(source, (str, QuestionSource)):
        source = Given.of(source)
    if isinstance(source, str) and source not in PARTS["questions"]:
        if options.get("path") is not None or not (Path(source).suffix or Path(source).exists()):
            hint = nearest(source, PARTS["questions"])
            choices = f"choose {', '.join(PARTS['questions'])} or give a JSONL file"
            raise UserError(f"questions={source} is unknown{hint}: {choices}", "unknown-choice")
        source, options = "file", {**options, "path": source}
    kind = source_class(source) if isinstance(source, str) else type(source)
    refuse_unknown(f"questions={kind.name}", options, [f.name for f in fields(kind)])
    return kind(**options) if isinstance(source, str) else replace(source, **options)
