"""Records of question sets: read from files and from the Hub, their values checked."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import ijson

from ...evaluation.answers import normalize_answer
from ...types import Passage, RunError, UserError
from ..hub import first_line, open_stream
from ..lines import read_lines

if TYPE_CHECKING:
    from .base import QuestionSource

#: One record of a file, or one row of a dataset.
Record = Mapping[str, Any]


class UnusableError(Exception):
    """A well-formed question that cannot be asked; the text up to the first colon is the kind."""


def text(record: Record, key: str) -> str:
    """A string that is not blank, without surrounding spaces."""
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a non-empty string, found {_shown(value)}")
    return value.strip()


def identifier(record: Record, key: str) -> str:
    """An id, which some files write as a number."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise ValueError(f"{key} must be a string or a number, found {_shown(value)}")
    return str(value).strip()


def optional(record: Record, key: str) -> str:
    """A string, "" when it is absent or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a string, found {_shown(value)}")
    return (value or "").strip()


def strings(record: Record, key: str) -> tuple[str, ...]:
    """A list of strings, () when it is absent or null."""
    value = record.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{key} must be a list of strings, found {_shown(value)}")
    return tuple(value)


def records(record: Record, key: str) -> list[Record]:
    """A list of objects, [] when it is absent or null."""
    value = record.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError(f"{key} must be a list of objects, found {_shown(value)}")
    return value


def accepted(answers: Iterable[str]) -> tuple[str, ...]:
    """Every accepted answer once, in the order given.

    An answer of which the SQuAD normalisation leaves nothing ("The", "!") is dropped: it
    would accept an answer that was never given.

    Raises:
        UnusableError: none is left.
    """
    given = tuple(dict.fromkeys(stripped for a in answers if (stripped := a.strip())))
    if not given:
        raise UnusableError("no gold answer")
    kept = tuple(a for a in given if normalize_answer(a))
    if not kept:
        raise UnusableError(f"nothing left of the gold answer once normalised: {given[0]}")
    return kept


def passage(record: Record, id: str, key: str = "text", *, is_gold: bool | None) -> Passage | None:
    """The passage with its title and the text under ``key``; None when that is blank."""
    body = optional(record, key)
    return Passage(id, optional(record, "title"), body, is_gold=is_gold) if body else None


def hashed(prefix: str, question: str) -> str:
    """An id for a question of a dataset that gives none: the same in every copy of it."""
    digest = hashlib.blake2b(" ".join(question.split()).encode("utf-8", "surrogatepass"), digest_size=8)
    return f"{prefix}-{digest.hexdigest()}"


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


class Row(NamedTuple):
    """One record, or the reason why there is none.

    Attributes:
        where: where it stands, for messages: "line 3", "record 3".
        record: what was read, None when it was malformed.
        problem: why it was malformed, "".
        last: whether nothing can be read behind it.
    """

    where: str
    record: Any
    problem: str = ""
    last: bool = False


#: Keys of the object that TriviaQA's files are, whose records stand under the first.
_OBJECT = ("Data", "Domain", "Split", "VerifiedEval", "Version")


def file_rows(path: Path) -> Iterator[Row]:
    """The records of a file (``.gz`` too); memory does not grow with their number.

    Args:
        path: the file. One that begins with ``[`` is one array, TriviaQA's are an object around
            one, and any other holds JSON lines.

    Raises:
        UserError: the file is not UTF-8 text, or a compressed one is damaged.
    """
    item = _array(path)
    if item is None:
        yield from _lines(path)
        return
    number = 0
    with _opened(path) as file:
        found = ijson.items(file, item, use_float=True)
        while True:
            try:
                record = next(found, _END)
            except ijson.JSONError as error:
                yield Row(f"record {number + 1}", None, _reason(error), True)
                return
            if record is _END:
                return
            number += 1
            yield Row(f"record {number}", record)


_END = object()


def _lines(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        try:
            yield Row(f"line {number}", json.loads(line))
        except (ValueError, RecursionError) as error:
            hint = " (the file is neither one JSON array nor JSON lines)" if number == 1 else ""
            yield Row(f"line {number}", None, f"{error}{hint}")


def _array(path: Path) -> str | None:
    """Where ijson finds the records, None for JSON lines."""
    with _opened(path) as file:
        events = ijson.basic_parse(file)
        try:
            kind, _ = next(events)
            if kind == "start_array":
                return "item"
            if kind == "start_map" and next(events)[1] in _OBJECT:
                return f"{_OBJECT[0]}.item"
        except (ijson.JSONError, StopIteration):
            pass  # the reader proper says what is wrong, and where
    return None


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield cast("IO[bytes]", file)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} cannot be read: the compressed file is damaged ({error})") from error


def _reason(error: Exception) -> str:
    text = str(error.args[0].decode("utf-8", "replace") if isinstance(error.args[0], bytes) else error)
    first = text.strip().splitlines()[0]
    return "the file is cut short" if "premature EOF" in first else f"malformed JSON ({first})"


#: Says what is wrong with the columns of a dataset, None when nothing is.
Check = Callable[[Collection[str]], "str | None"]


def hub_rows(source: QuestionSource, check: Check) -> Iterator[Row]:
    """The rows of ``source.hub``; what they lack is said before the first one is read.

    Raises:
        UserError: no such dataset, configuration, split or columns.
        RunError: the Hub cannot be reached, also in the middle of the stream: a part of the
            questions in place of the ones asked for would be another experiment.
    """
    assert source.hub is not None
    data = open_stream(
        source.spec,
        source.hub,
        instead="give a local file as questions.path",
        name=source.config,
        split=source.hub_split,
        revision=source.revision,
    )
    if data.column_names is not None:
        _refuse(source, check(data.column_names))
    rows, number = iter(data), 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # whatever file system and format lie below
            raise RunError(
                f"{source.spec} broke off after {number} rows: {type(error).__name__}: {first_line(error)}; "
                "run the same command again, or give a local file as questions.path"
            ) from error
        if row is None:
            return
        if not number:
            _refuse(source, check(row))
        number += 1
        yield Row(f"row {number}", row)


def _refuse(source: QuestionSource, problem: str | None) -> None:
    if problem:
        raise UserError(f"{source.spec}: {problem}; give another questions.hub or a file as questions.path")
