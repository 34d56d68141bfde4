"""What Elasticsearch and OpenSearch answer, read without believing that anything is as it should be."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from typing import Any


def part(answer: Any, *names: str) -> Any:
    """What stands under names one in the other; None if one of them is not there."""
    for name in names:
        answer = answer.get(name) if isinstance(answer, dict) else None
    return answer


def is_opensearch(greeting: Any) -> bool:
    """Whether a server says that it is OpenSearch, or Elasticsearch 7, to which its client speaks too."""
    number, kind = part(greeting, "version", "number"), part(greeting, "version", "distribution")
    said = f"{_text(kind)} {_text(part(greeting, 'tagline'))}".lower()
    return "opensearch" in said or (isinstance(number, str) and number.startswith("7."))


def count(answer: Any) -> int | None:
    """The number of documents; None if the answer has none."""
    value = part(answer, "count")
    return value if _is_whole(value) and value >= 0 else None


def position(name: Any, total: int) -> int | None:
    """The position below ``total`` that a document is named for; None if it is not."""
    if not isinstance(name, str) or not re.fullmatch("0|[1-9][0-9]{0,17}", name):
        return None
    return int(name) if int(name) < total else None


def hits(answer: Any, size: int, total: int) -> list[tuple[float, int]] | None:
    """(score, position below ``total``) of at most ``size`` documents, best first and then by position.

    None if the answer is in part, or is none to what was asked.
    """
    found = part(answer, "hits", "hits")
    failed = part(answer, "_shards", "failed")
    whole = part(answer, "timed_out") is False and _is_whole(failed) and failed == 0
    if not whole or not isinstance(found, list) or len(found) > size:
        return None
    made: list[tuple[float, int]] = []
    for hit in found:
        values, at = part(hit, "sort"), position(part(hit, "_id"), total)
        if at is None or not isinstance(values, list) or len(values) != 2:
            return None
        score, n = values
        if not _is_whole(n) or n != at or not _is_finite(score):
            return None
        made.append((float(score), n))
    ordered = sorted(made, key=lambda pair: (-pair[0], pair[1])) == made
    return made if ordered and len({n for _, n in made}) == len(made) else None


def reason(answer: Any, secrets: Sequence[str]) -> str:
    """What an answer, or an item of one, says of its error: the first cause, short, without secrets."""
    error = answer.get("error") if isinstance(answer, dict) else answer
    if isinstance(error, dict):
        causes = error.get("root_cause")
        first = (
            error | causes[0]
            if isinstance(causes, list) and causes and isinstance(causes[0], dict)
            else error
        )
        inner = part(first, "caused_by", "reason")
        said = (first.get("type"), first.get("reason"), "" if inner is None else inner)
        error = "{}: {} {}".format(*map(_text, said))
    text = re.sub(r"Basic \S+", "Basic ***", _text(error))  # a header holds the password encoded
    for secret in secrets:
        text = text.replace(secret, "***")
    short = " ".join(text.split())[:400]
    return "".join(c if c.isprintable() else "?" for c in short)


def _text(value: Any) -> str:
    # A list in lists in lists is cut, as str() would go down to its end.
    return value if isinstance(value, str) else reprlib.repr(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an int beyond any float
        return False
