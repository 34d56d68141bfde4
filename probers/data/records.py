"""Records of text files and of the Hugging Face Hub, one at a time, and reports of unusable ones."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

from ..files import DEEP, given_file, impostor
from ..options import shown
from ..types import HALVES, UserError
from .tables import Row, is_saved, parquet_rows, saved_splits, table_rows

#: Policy for a malformed line: stop at it, or leave it out and count it.
BadLine = Literal["error", "skip"]


def check_bad_line(on_bad_line: str) -> None:
    """Refuse an unknown ``on_bad_line`` (UserError)."""
    if on_bad_line not in ("error", "skip"):
        raise UserError(f"on_bad_line={on_bad_line} is unknown: choose error or skip", "unknown-choice")


def bad_line(message: str) -> UserError:
    """Build the error that stops at a malformed line, which ``message`` names."""
    return UserError(f"{message}; correct the line or pass on_bad_line=skip", "bad-line")


def what_is_wrong(error: Exception) -> str:
    """Describe why a record cannot be read; name a missing key."""
    if isinstance(error, RecursionError):
        return DEEP
    if isinstance(error, json.JSONDecodeError) and error.lineno == 1:
        return f"{error.msg.removesuffix(' starting at')}, column {error.colno}"
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def check_object(record: Any) -> None:
    """Refuse a value that is not a JSON object (ValueError)."""
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {shown(record)}")


def check_strings(name: str, value: Any) -> None:
    """Refuse a value that is not a list of strings (ValueError)."""
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{name} must be a list of strings, found {value!r:.80}")


class UnusableError(Exception):
    """Error of a well-formed article or question without use; its kind stands before the first colon."""


@dataclass
class LeftOut:
    """Cases that were left out, called ``noun``: the count of each kind, and the first with their reasons.

    A malformed record of ``file`` is an error, or left out too, as ``policy`` says. ``listed`` holds the
    first 1000 as (name, reason), each in one line; a kind is a reason up to its colon. :meth:`summary` names
    so many ``kinds``; None is all.
    """

    noun: str
    file: str = ""
    policy: BadLine = "skip"
    kinds: int | None = None
    listed: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, reason: str) -> None:
        if len(self.listed) < 1000:
            self.listed.append((" ".join(name.split())[:200], " ".join(reason.split())[:300]))
        self.counts[reason.partition(":")[0]] += 1

    def refuse(self, where: str, reason: str) -> None:
        """Note a malformed record; UserError if the policy is "error"."""
        if self.policy == "error":
            raise bad_line(f"{self.file} {where}: {reason}")
        self.add(where, f"malformed: {reason}")

    def __len__(self) -> int:
        return sum(self.counts.values())

    def summary(self) -> str:
        """Count by kind, the most frequent first: "3 missing, 1 too short"."""
        return ", ".join(f"{n} {kind}" for kind, n in self.counts.most_common(self.kinds))

    def lines(self, most: int = 5) -> list[str]:
        """Return the lines of the report; none when nothing was left out."""
        if not self.counts:
            return []
        verb = " was" if len(self) == 1 else "s were"
        lines = [f"{len(self)} {self.noun}{verb} left out: {self.summary()}"]
        lines += [f"  {name}: {reason}" for name, reason in self.listed[:most]]
        more = len(self) - len(self.listed[:most])
        return [*lines, f"  and {more} more"] if more else lines


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[tuple[io.TextIOWrapper, Callable[[], int]]]:
    """Open a text file (``.gz`` too), and a counter of the bytes read of it; UserError if damaged."""
    try:
        with path.open("rb") as raw:
            binary: Any = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
            with io.TextIOWrapper(binary, encoding="utf-8-sig", newline=newline) as lines:
                yield lines, raw.tell
    except UnicodeDecodeError as error:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as raw:
            bad = (n for n, line in enumerate(raw, 1) if line.decode(errors="ignore").encode() != line)
            message = f"{path} is not UTF-8 text (line {next(bad, 1)}): save it as UTF-8"
        raise UserError(message, "bad-file") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}", "bad-file") from error


def line_rows(
    path: Path, parse: Callable[[str], Any] | None = None, progress: Callable[[int], None] = lambda done: None
) -> Iterator[Row]:
    """Yield the records of JSON lines, by default of :func:`parse_json`; blank lines are passed over.

    ``progress`` is called now and then with the bytes of the file read so far. Opens like :func:`open_text`.
    """
    parse = parse or parse_json
    with open_text(path) as (lines, position):
        for number, line in enumerate(lines, 1):
            if number % 1000 == 1:
                progress(position())
            if not (text := line.lstrip("\ufeff").strip()):  # a mark before each of several joined files
                continue
            record, problem = None, ""
            try:
                record = parse(text)
            except (ValueError, RecursionError) as error:
                problem = what_is_wrong(error) + (NEITHER if number == 1 else "")
            yield Row(f"line {number}", record, problem)


def as_rows(rows: Any) -> Any:
    """Return the rows of a table of pandas as dictionaries, with its named index; other rows as they are."""
    if not hasattr(rows, "iterrows"):
        return rows
    named = [name for name in rows.index.names if name is not None and name not in rows]
    return (rows.reset_index(named) if named else rows).to_dict("records")


#: Keys of the object in TriviaQA's files; its records are under the first.
_OBJECT = ("Data", "Domain", "Split", "VerifiedEval", "Version")
#: Columns of MS MARCO's files that are read; any column may come first.
_COLUMNS = ("query_id", "query", "answers", "passages")
_OTHERS = ("query_type", "wellFormedAnswers")
_HALF = "half of a pair of surrogates, which is no Unicode"
#: Remark about a first line that is not JSON.
NEITHER = " (the file is neither one JSON array nor JSON lines)"
#: Place of the records in a file that is an object of columns, each an object of cells by row.
_BY_COLUMN = "*"


def file_rows(path: Path, *, by_id: bool = False) -> Iterator[Row]:
    """Yield the records of a file (``.gz`` too); memory does not grow with their number.

    ``.tsv`` and ``.csv`` are tables (:func:`table_rows`), ``.parquet`` and folders of ``save_to_disk`` are
    read by their libraries. A file that begins with ``[`` is one array,
    TriviaQA's and SQuAD's are an object around one, MS MARCO's is an object of columns, and any other holds
    JSON lines; with ``by_id`` it is one object of records, each of which gets its ``id``. UserError if it
    is not UTF-8 text, or damaged while compressed.
    """
    import ijson

    if is_saved(path):
        for _, rows in saved_splits(path):
            yield from rows
        return
    if (ending := ending_of(path)) == ".parquet":
        yield from parquet_rows(path)
        return
    if ending in (".tsv", ".csv"):
        with open_text(path, "") as (lines, _):
            for first, record, problem in table_rows(lines, "\t" if ending == ".tsv" else ","):
                yield Row(f"line {first}", record, problem)
        return
    item = "" if by_id else _place(path)
    if item is None:
        yield from line_rows(path)
        return
    number = 0
    with ExitStack() as files:
        try:
            for number, record in enumerate(_parsed(files, path, item, by_id), 1):
                if by_id and not isinstance(record[1], Mapping):
                    yield Row(f"record {number}", None, f"{shown(record[0])} holds no object{NEITHER}", True)
                    return
                yield Row(f"record {number}", {"id": record[0], **record[1]} if by_id else record)
        except UnicodeDecodeError:
            yield Row(f"record {number + 1}", None, f"malformed JSON (a string holds {_HALF})", True)
        except ijson.JSONError as error:
            cause = error.args[0]  # bytes, if the C library raised it
            text = cause.decode("utf-8", "replace") if isinstance(cause, bytes) else str(error)
            reason = text.strip().splitlines()[0]
            problem = "the file is truncated" if "premature EOF" in reason else f"malformed JSON ({reason})"
            yield Row(f"record {number + 1}", None, problem, True)


def given_records(option: str, path: str | Path, give: str) -> Path:
    """Return the path of a file with records, or of a folder of ``save_to_disk`` (UserError: neither)."""
    if is_saved(Path(path)):
        return Path(path)
    if Path(path).is_dir():
        give = f"{give}, one of the folder's files, or a folder that save_to_disk wrote"
    path = given_file(option, path, give)
    if problem := impostor(path) or _packed(path):
        raise UserError(f"{option}={path} {problem}", "bad-file")
    return path


#: Beginnings of files that are no text, the ending under which they are read, and what to do instead.
_PACKED = (
    (b"PAR1", ".parquet", "is a Parquet file: let its name end in .parquet"),
    (b"\x1f\x8b", ".gz", "is compressed: let its name end in .gz"),
    (b"PK\x03\x04", None, "is a zip archive: unpack it, or save a spreadsheet as CSV"),
    (b"ARROW1", None, "is an Arrow file: write its table as Parquet, or give the folder of save_to_disk"),
    (b"\xff" * 4, None, "is an Arrow stream: write its table as Parquet, or give the folder of save_to_disk"),
    (b"\xff\xfe", None, "is text in UTF-16: save it as UTF-8"),
    (b"\xfe\xff", None, "is text in UTF-16: save it as UTF-8"),
    (b"SQLite format 3", None, "is a database: write its table as CSV"),
    *((start, None, "is compressed: unpack it, or pack it with gzip") for start in
      (b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")),
)  # fmt: skip


def _packed(path: Path) -> str:
    """Say that a file is no text, or of another layout than its name says; "" if nothing is seen."""
    with path.open("rb") as file:
        beginning = file.read(16)
    if beginning.startswith(b"\x1f\x8b"):
        with suppress(EOFError, OSError, zlib.error), gzip.open(path) as file:  # named where it is read
            if file.read(512)[257:262] == b"ustar":
                return "is an archive of files: unpack it"
    ending = path.suffix.lower()
    return next((why for start, end, why in _PACKED if beginning.startswith(start) and end != ending), "")


def ending_of(path: Path) -> str:
    """Return the ending that tells the layout of a file, in small letters and without that of gzip."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def parse_json(text: str) -> Any:
    """Parse JSON (ValueError: malformed, or with what neither a file nor tokens can hold)."""
    record = json.loads(text)
    if "\\u" in text:
        check_unicode(record)
    return record


def half_in(value: Any) -> str | None:
    """Find a string with half of a pair of surrogates in JSON values, and return its place: "a[0].b"."""
    waiting = [("", value)] if isinstance(value, (str, Mapping, list, tuple)) else []
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, str):
            if HALVES.search(each):
                return place
            continue
        named = isinstance(each, Mapping)
        if named and any(isinstance(key, str) and HALVES.search(key) for key in each):
            return place
        pairs: Iterable[tuple[Any, Any]] = each.items() if isinstance(each, Mapping) else enumerate(each)
        for key, part in pairs:
            if isinstance(part, (str, Mapping, list, tuple)):  # not the tokens of a long prompt
                waiting.append((f"{place}.{key}".removeprefix(".") if named else f"{place}[{key}]", part))
    return None


def check_unicode(value: Any) -> None:
    """Refuse strings in JSON values that neither a file nor tokens can hold (ValueError)."""
    if (place := half_in(value)) is not None:
        raise ValueError(f"{place or 'a string'} holds {_HALF}")


def _parsed(files: ExitStack, path: Path, item: str, by_id: bool) -> Iterator[Any]:
    """Parse the records at a place of a JSON file; with ``by_id`` as pairs of key and record."""
    import ijson

    if item != _BY_COLUMN:
        read = ijson.kvitems if by_id else ijson.items
        yield from read(files.enter_context(_opened(path)), item, use_float=True)
        return
    columns = {}  # read side by side, each from a separate handle of the file
    for name in _COLUMNS:
        cells = ijson.kvitems(files.enter_context(_opened(path)), name, use_float=True)
        if first := next(cells, None):
            columns[name] = chain([first], cells)
    for row in zip_longest(*columns.values()):
        if len({cell and cell[0] for cell in row}) > 1:
            raise ijson.JSONError("its columns hold different rows")
        yield {name: cell[1] for name, cell in zip(columns, row, strict=True)}


def _place(path: Path) -> str | None:
    """Find the place of the records for :func:`_parsed`, None for JSON lines."""
    import ijson

    with _opened(path) as file:
        # Like the reader proper: ijson itself crashes at whole numbers beyond Python's integers.
        events = ijson.basic_parse(file, use_float=True)
        try:
            kind, _ = next(events)
            if kind == "start_array":
                return "item"
            if kind != "start_map":
                return None
            key = next(events)[1]
            if key in _OBJECT:
                return f"{_OBJECT[0]}.item"
            if key == "version":  # SQuAD's version stands before its articles, or after them
                next(events)
                key = next(events)[1]
            if key == "data" and next(events)[0] == "start_array":
                return "data.item"
            if key in (*_COLUMNS, *_OTHERS) and next(events)[0] == "start_map":
                key = next(events)[1]
                return _BY_COLUMN if isinstance(key, str) and key.isdecimal() else None
        except (ijson.JSONError, UnicodeDecodeError, StopIteration):
            pass  # the reader proper reports what is wrong, and where
    return None


def is_lines(path: Path) -> bool:
    """Tell whether a file of passages holds JSON lines, and is neither a table, Parquet nor an array."""
    if ending_of(path) in (".tsv", ".csv", ".parquet") or is_saved(path):
        return False
    with open_text(path) as (lines, _):
        return not lines.read(1000).lstrip("\ufeff \r\n\t").startswith("[")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            if file.read(len(BOM_UTF8)) != BOM_UTF8:
                file.seek(0)
            yield cast("IO[bytes]", _Shallow(file))
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path}: the compressed file is damaged ({error})", "damaged") from error


#: Nested opening brackets; the parser's memory for them could exceed the machine's.
_BRACKETS = re.compile(rb"(?:[\[{]\s*){1000}")


class _Shallow(NamedTuple):
    file: Any

    def read(self, size: int = -1) -> bytes:
        import ijson

        block = bytes(self.file.read(size))
        if _BRACKETS.search(block):
            raise ijson.JSONError(DEEP)
        return block
