"""Checked values of a question's record, and the answers, passages and ids made from them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ...evaluation.answers import normalize_answer
from ...types import STEERING, Passage, Question
from ..records import UnusableError, check_strings

#: Gap between the objects of an array as numpy prints it, without a comma.
_GAP = re.compile(r"\}\s*\n\s*\{")
#: Largest number of characters of a list within a string.
_MOST = 1_000_000

#: One record of a file, or one row of a dataset.
Record = Mapping[str, Any]


def check_names(question: Question) -> None:
    """Refuse control characters in an id, a data set or a group (ValueError)."""
    for name in ("id", "dataset", "group"):
        if re.search(f"[{STEERING}]", value := getattr(question, name)):
            raise ValueError(f"{name} must be one line without control characters, found {value!r:.80}")


def text(record: Record, key: str) -> str:
    """Return a string that is not blank, without surrounding spaces."""
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a non-empty string, found {value!r:.80}")
    return value.strip()


def unchanged(record: Record, key: str) -> str:
    """Return a string that is not blank with its surrounding spaces, which offsets count."""
    text(record, key)
    return str(record[key])


def identifier(record: Record, key: str) -> str:
    """Return an id, which some files write as a number."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"{key} must be a string or a whole number, found {value!r:.80}")
    return str(value).strip()


def optional(record: Record, key: str) -> str:
    """Return a string, "" when it is absent or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a string, found {value!r:.80}")
    return (value or "").strip()


def unwritten(record: Record, key: str) -> Any:
    """Return a value, [] when it is absent or null; tables have a list as JSON, Python or numpy write it."""
    value = [] if record.get(key) is None else record[key]
    if isinstance(value, str) and value.strip().startswith("[") and len(value) <= _MOST:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            try:
                value = json.loads(value)
            except ValueError:
                value = ast.literal_eval(_GAP.sub("}, {", value.strip()))
    return value


def strings(record: Record, key: str) -> tuple[str, ...]:
    """Return a list of strings of :func:`unwritten`."""
    check_strings(key, value := unwritten(record, key))
    return tuple(value)


def records(record: Record, key: str) -> list[Record]:
    """Return a list of objects of :func:`unwritten`."""
    value = unwritten(record, key)
    if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
        raise ValueError(f"{key} must be a list of objects, found {value!r:.80}")
    return value


def flag(record: Record, key: str) -> bool | None:
    """Return true or false, None when it is absent or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} must be true or false, found {value!r:.80}")
    return value


def accepted(answers: Iterable[str]) -> tuple[str, ...]:
    """Return every accepted answer once, in the given order.

    Answers that the SQuAD normalisation empties ("The", "!") are dropped: they would accept an answer
    that was never given. UnusableError if none is left.
    """
    given = tuple(dict.fromkeys(stripped for a in answers if (stripped := a.strip())))
    if not given:
        raise UnusableError("no gold answer")
    usable = tuple(a for a in given if normalize_answer(a))
    if not usable:
        raise UnusableError(f"nothing left of the gold answer once normalised: {given[0]}")
    return usable


def passage(record: Record, id: str, key: str = "text", *, is_gold: bool | None) -> Passage | None:
    """Make the passage with its title and the text under ``key``; None when that is blank."""
    body = optional(record, key)
    return Passage(id, optional(record, "title"), body, is_gold=is_gold) if body else None
