"""Checked values of a question's record, and the answers, passages and ids made from them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ...evaluation.answers import normalize_answer
from ...types import STEERING, Passage, Question
from ..records import UnusableError, check_strings

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


def identifier(record: Record, key: str) -> str:
    """Return an id, which some files write as a number."""
    value = record[key]
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"{key} must be a string or a number, found {value!r:.80}")
    return str(value).strip()


def optional(record: Record, key: str) -> str:
    """Return a string, "" when it is absent or null."""
    value = record.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key} must be a string, found {value!r:.80}")
    return (value or "").strip()


def strings(record: Record, key: str) -> tuple[str, ...]:
    """Return a list of strings, () when it is absent or null."""
    value = [] if record.get(key) is None else record[key]
    check_strings(key, value)
    return tuple(value)


def listed(record: Record, key: str) -> tuple[str, ...]:
    """Return a list of strings, even if written as JSON within a string."""
    value = record.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError as error:
            raise ValueError(f"{key} must be a JSON list of strings, found {value!r:.80}") from error
    return strings({key: value}, key)


def records(record: Record, key: str) -> list[Record]:
    """Return a list of objects, [] when it is absent or null."""
    value = [] if record.get(key) is None else record[key]
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


def hashed(prefix: str, question: str) -> str:
    """Make an id for a question of a dataset without ids, the same in every copy of it."""
    blob = " ".join(question.split()).encode("utf-8", "surrogatepass")
    return f"{prefix}-{hashlib.blake2b(blob, digest_size=8).hexdigest()}"
