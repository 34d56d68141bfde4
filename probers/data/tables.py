"""Rows of tables: CSV and TSV, Parquet, datasets that ``save_to_disk`` wrote, and those of the Hub."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..types import RunError, UserError, first_line


class Row(NamedTuple):
    """One record with its place ("line 3"), or its ``problem``; ``last`` if nothing after it can be read."""

    where: str
    record: Any
    problem: str = ""
    last: bool = False


#: Characters of one field of a table; more means a quote that is never closed.
_FIELD = 1 << 26


def table_rows(
    lines: Iterable[str],
    delimiter: str,
    check: Callable[[list[str]], None] = lambda names: None,
    bare: Sequence[str] = (),
) -> Iterator[tuple[int, dict[str, str] | None, str]]:
    """Yield for each record of a table its first line, the record, and its problem.

    The first line names the fields, which are quoted as Python's csv module writes them, so that one may hold
    line breaks; columns without a name are left out. ``check`` refuses the names. A table without this line
    and without quotes has fields called ``bare``.
    """
    limit = csv.field_size_limit(_FIELD)  # the module's limit for all readers: restored below
    try:
        quoting: Literal[0, 3] = csv.QUOTE_NONE if bare else csv.QUOTE_MINIMAL
        rows = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        names = list(bare)
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
            if not names:
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

    try:
        with parquet.ParquetFile(path) as file:
            records = chain.from_iterable(batch.to_pylist() for batch in file.iter_batches(_BATCH))
            yield from (Row(f"row {number}", _as_json(record)) for number, record in enumerate(records, 1))
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


def open_stream(spec: str, dataset: str, *, instead: str, **options: Any) -> Any:
    """Call ``datasets.load_dataset(dataset, streaming=True)`` and report every failure in one sentence.

    Messages call it ``spec`` and recommend ``instead`` where there is no network (RunError).
    """
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    try:
        return datasets.load_dataset(dataset, streaming=True, **options)
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise UserError(f"{spec}: no readable dataset ({first_line(error)[:300]})", "no-file") from error
    except (ValueError, RuntimeError) as error:  # an unknown configuration or split, or a loading script
        raise UserError(f"{spec} cannot be opened: {first_line(error)[:300]}") from error
    except Exception as error:  # the libraries below raise many kinds of errors for a missing network
        raise _network(f"{spec} cannot be reached", error, f"check the network, or {instead}") from error


def _network(what: str, error: Exception, remedy: str) -> RunError:
    return RunError(f"{what}: {type(error).__name__}: {first_line(error)[:300]}; {remedy}", "network")


def stream_rows(
    spec: str, data: Any, check: Callable[[Collection[str]], None] = lambda columns: None, *, instead: str,
    at: str = "row",
) -> Iterator[Row]:  # fmt: skip
    """Yield the rows of one split that :func:`open_stream` opened; ``check`` refuses its columns.

    A stream that breaks off is a RunError, since a part of the questions would be another experiment.
    """
    if data.column_names is not None:
        check(data.column_names)
    number = 0
    try:
        for number, row in enumerate(data, 1):
            if number == 1:
                check(row)
            yield Row(f"{at} {number}", row)
    except UserError:
        raise
    except Exception as error:  # any error of the file system and format below
        remedy = f"run the same command again, or {instead}"
        raise _network(f"{spec} broke off after {number} rows", error, remedy) from error


#: Advice where the Hub cannot be reached.
HUB_FOLDER = "give a folder with the dataset's files as hf:FOLDER"


def hub_splits(key: str, spec: str) -> dict[str, Any]:
    """Open ``hf:ID[:config][:split]``, the value of option ``key``: the named split, or all there are.

    Errors are those of :func:`open_stream`, and UserError for another form or no such split.
    """
    parts = spec.removeprefix("hf:").split(":")
    if len(parts) > 3 or not parts[0]:
        raise UserError(f"{key}={spec} is not valid: give hf:<dataset id>[:<config>][:<split>]")
    name, config, split = (*parts, "", "")[:3]
    data = dict(open_stream(f"{key}={spec}", name, instead=HUB_FOLDER, name=config or None))
    if split and split not in data:
        message = f"{key}={spec} has no split {split}: choose one of {', '.join(data)}"
        raise UserError(message, "unknown-choice")
    return {split: data[split]} if split else data
