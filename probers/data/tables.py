"""Rows of tables: CSV and TSV, Parquet, and datasets that ``save_to_disk`` wrote."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..types import UserError, first_line


class Row(NamedTuple):
    """One record with its place ("line 3"), or its ``problem``; ``last`` if nothing after it can be read."""

    where: str
    record: Any
    problem: str = ""
    last: bool = False


#: Characters of one field of a table; more means a quote that is never closed.
_FIELD = 1 << 26


def table_rows(
    lines: Iterable[str], delimiter: str, check: Callable[[list[str]], None] = lambda names: None
) -> Iterator[tuple[int, dict[str, str] | None, str]]:
    """Yield for each record of a table its first line, the record, and its problem.

    The first line names the fields, which are quoted as Python's csv module writes them, so that one may hold
    line breaks; columns without a name are left out. ``check`` refuses the names.
    """
    limit = csv.field_size_limit(_FIELD)  # the module's limit for all readers: restored below
    try:
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        names: list[str] | None = None
        while True:
            first = rows.line_num + 1
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                end = f", read to line {rows.line_num}" if rows.line_num > first else ""
                fix = "put a field with a quote in quotes, and write the quote twice"
                yield first, None, f"{error}{end} ({fix})"
                continue
            if names is None:
                names = [name.strip("\ufeff ") for name in row]
                check(names)
                if twice := [name for name in names if name and names.count(name) > 1]:
                    yield first, None, f"two columns are called {twice[0]}: rename one"
                    return
            elif len(row) == len(names):
                yield first, {name: cell for name, cell in zip(names, row, strict=True) if name}, ""
            elif row:
                kind = "tab" if delimiter == "\t" else "comma"
                yield first, None, f"{len(row)} {kind}-separated fields instead of {len(names)}"
    finally:
        csv.field_size_limit(limit)


def parquet_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file, some batches at a time (UserError: damaged)."""
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH):
                for number, record in enumerate(batch.to_pylist(), number + 1):  # noqa: B020 (counts on)
                    yield Row(f"row {number}", _as_json(record))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {first_line(error)}", "damaged") from error


#: Rows of a Parquet file in memory at a time.
_BATCH = 1000
#: Files that tell a folder of ``save_to_disk``: of a dataset, and of one with splits.
_SAVED = ("state.json", "dataset_dict.json")


def is_saved(path: Path) -> bool:
    """Tell whether a path is a folder that ``save_to_disk`` of datasets wrote."""
    return any((path / name).is_file() for name in _SAVED)


def saved_splits(path: Path) -> Iterator[tuple[str, Iterator[Row]]]:
    """Open the rows of each split of a folder of ``save_to_disk``; the name of a lone one is ""."""
    import datasets

    try:
        data: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises many kinds of errors for a damaged folder
        message = f"{path} cannot be read as a folder of save_to_disk: {first_line(error)[:300]}"
        raise UserError(message, "damaged") from error
    for name, split in data.items() if isinstance(data, Mapping) else [("", data)]:
        at = f"{name} row" if name else "row"
        yield name, (Row(f"{at} {number}", _as_json(record)) for number, record in enumerate(split, 1))


def _as_json(record: Mapping[str, Any]) -> dict[str, Any]:
    """Write dates of a row as text, as JSON has them."""
    return {name: v.isoformat() if hasattr(v, "isoformat") else v for name, v in record.items()}
