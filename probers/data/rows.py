"""Rows of texts that a user holds: a DataFrame, a list of dictionaries, a ``datasets.Dataset``, or columns.

The fields are those of files of labelled texts. A column under another name is mapped to its field, and
columns that look like fields or labels under another name are answered with their names, never ignored.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..options import nearest, shown
from ..types import UserError
from .records import as_rows
from .splits import SPLIT_NAMES

#: Fields of a labelled text, and names under which others have them.
FIELDS: dict[str, tuple[str, ...]] = {
    "id": ("uid", "idx", "index"),
    "prompt": ("question", "query", "input", "instruction", "context", "user"),
    "messages": ("conversation", "chat", "dialogue", "dialog"),
    "answer": ("response", "output", "completion", "generation", "generated", "prediction", "reply", "text"),
    "passages": ("contexts", "context", "documents", "document", "docs", "retrieved_contexts", "knowledge",
                 "evidence"),
    "wrong": (
        "is_wrong", "incorrect", "is_incorrect", "hallucinated", "hallucination", "is_hallucination",
        "is_hallucinated", "label", "labels", "target", "y",
    ),
    "spans": ("span", "annotations", "hallucinated_spans"),
    "sentences": ("sentence_labels",),
    "claims": ("facts",),
    "outside": (),
    "group": ("group_id", "question_id", "topic"),
    "split": ("fold", "subset"),
    "writer": ("model", "model_id", "generator"),
    "dataset": ("source", "data_set"),
}  # fmt: skip
#: Labels that say the opposite of ``wrong``.
_OPPOSITE = ("correct", "is_correct", "right", "truthful", "factual", "supported", "faithful")


def records_of(
    rows: Any, field: str | None = "answer", needs: Sequence[str] = ("prompt", "answer", "wrong")
) -> list[dict[str, Any]]:
    """Turn rows into plain records, in their order; cells without a value are None.

    Args:
        rows: a DataFrame of pandas, a ``datasets.Dataset``, or a ``DatasetDict`` of splits; a mapping of
            columns of equal length or of one row, or an iterable of mappings or of texts, which is read once.
        field: what a text alone is; None if it makes no row.
        needs: fields of a row, for messages.

    Raises:
        UserError: no rows, or something else.
    """
    if isinstance(rows, Mapping) and rows and all(hasattr(value, "column_names") for value in rows.values()):
        sides = {name: {"split": name} if name in SPLIT_NAMES else {} for name in rows}
        rows = [sides[name] | row for name, split in rows.items() for row in split]
    elif isinstance(rows, Mapping):
        lists = (isinstance(each, Sequence) and not isinstance(each, str) for each in rows.values())
        arrays = (getattr(each, "ndim", 0) for each in rows.values())
        rows = _of_columns(rows) if any(lists) or any(arrays) else [rows]
    else:
        rows = as_rows(rows)
    if hasattr(rows, "read"):
        raise UserError("rows are an open file: give its path, which tells its layout too")
    if isinstance(rows, (str, bytes)) or not isinstance(rows, Iterable):
        raise UserError(f"rows must be a table or a list of dictionaries, found {type(rows).__name__}")
    records = []
    for number, row in enumerate(rows, 1):
        row = {field: row} if isinstance(row, str) and field else row
        if not isinstance(row, Mapping):
            noun = "row" if field in (None, "answer") else field
            layout = ", ".join(f"{name!r}: .." for name in needs)
            raise UserError(f"{noun} {number} must be a dictionary {{{layout}}}, found {shown(row)}")
        records.append({str(name): plain(value) for name, value in row.items()})
    if not records:
        fields = f"{needs[-2]} and {needs[-1]}"
        raise UserError(f"there are no rows: give some with {fields} (a generator is read once)", "empty")
    return records


def _of_columns(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        sizes = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UserError(f"the columns differ in length ({sizes}): give each one value per row", "mismatch")
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def plain(value: Any) -> Any:
    """Turn numpy scalars and arrays into Python values, and cells without a value into None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def renamed(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Rename the columns of a record to the fields that they hold.

    Args:
        columns: name of the column of each field, as ``{"answer": "output"}``.

    Raises:
        UserError: a field that texts do not have, or a column that the record lacks.
    """
    for field, column in columns.items():
        if field not in FIELDS:
            message = f"columns: texts have no field {shown(field)}{nearest(field, FIELDS)}"
            raise UserError(message, "unknown-key")
        if column not in record:
            message = f"columns: {field}={shown(column)} is no column{nearest(column, record)}"
            raise UserError(f"{message}: there are {', '.join(record)}", "unknown-key")
    taken = set(columns.values())
    rest = {name: value for name, value in record.items() if name not in taken and name not in columns}
    return rest | {field: record[column] for field, column in columns.items()}


def alias_of(field: str, names: Collection[str]) -> str | None:
    """Find the column that probably holds a field under another name; None without one."""
    lower = {name.lower(): name for name in names if name not in FIELDS}
    close = [alias for alias in FIELDS[field] if alias in lower]
    close = close or difflib.get_close_matches(field, list(lower), n=1, cutoff=0.75)
    return lower[close[0]] if close else None


def lacking(field: str, names: Collection[str]) -> str:
    """Describe a missing field: the columns that are there, and the mapping that probably mends it."""
    message = f"no field {field!r} among the columns {', '.join(map(str, names)) or '(none)'}"
    if len(names) == 1 and ";" in next(iter(names)):
        return f"{message}: separate the columns by commas, not by semicolons"
    if (column := alias_of(field, names)) is not None:
        return f"{message}: if {column} holds it, give {_mapping({field: column})}"
    if field == "wrong" and (opposite := [name for name in names if name.lower() in _OPPOSITE]):
        return f"{message}: {opposite[0]} says the opposite, so give its negation as wrong"
    if field == "answer" and "messages" in names:
        return f"{message}: messages stand before it, so put the last one, of the assistant, into answer"
    mapping = f"give {_mapping({field: 'COLUMN'})}"
    return f"{message}: rename the column that holds it to {field!r}, or {mapping}"


def unread_fields(fields: Iterable[str], names: Collection[str]) -> str | None:
    """Describe the columns that probably hold fields which rows may lack; None if none does."""
    columns: dict[str, str] = {}
    for field in fields:
        left = [name for name in names if name not in columns.values()]
        if field not in names and (column := alias_of(field, left)) is not None:
            columns[field] = column
    if not columns:
        return None
    message, hold = f"answers are read without {' and '.join(columns)}", " and ".join(columns.values())
    return f"{message}: if {hold} hold{'s it' if len(columns) == 1 else ' them'}, give {_mapping(columns)}"


def _mapping(columns: Mapping[str, str]) -> str:
    """Write how columns are mapped to fields in Python, and in a command."""
    python = ", ".join(f"{field}={column!r}" for field, column in columns.items())
    command = ", ".join(f"{field}: {column}" for field, column in columns.items())
    return f'{python} (in a command "texts.columns={{{command}}}")'


def unread_labels(names: Collection[str]) -> list[str]:
    """List the columns that look like labels under names that are not read."""
    return [name for name in names if name.lower() in (*FIELDS["wrong"], *_OPPOSITE)]
