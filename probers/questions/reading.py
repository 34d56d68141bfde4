"""Records of a local file, one at a time: a JSON array, an object that holds one, or JSON lines."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import ijson

from ..data import read_lines
from ..types import UserError


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
