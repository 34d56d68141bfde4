"""Strict reading of a judge's replies: any deviation from the requested form becomes no verdict."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from .base import Verdict

#: Problems of a reply, or of its entry for a span.
TIMEOUT, REFUSED = "no answer in time", "refused"
NO_JSON, SHAPE = "reply without JSON", "reply of another shape"
NOT_ASKED, WORD = "span that was not asked for", "word that is no verdict"
TWICE, MISSING = "span judged twice", "span left out"

_FENCE = re.compile(r"```(?:json|JSON)?\s*\n(.*?)```", re.DOTALL)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Entry(_Strict):
    span: str
    verdict: str


class _Verdicts(_Strict):
    verdicts: list[_Entry]


class Reading(NamedTuple):
    """Content of a reply about the spans.

    Attributes:
        verdicts: those that count.
        problems: reason why each other span has none.
        counts: number of times each problem occurs: once for a whole reply, else once for each span.
    """

    verdicts: dict[str, Verdict]
    problems: dict[str, str]
    counts: Counter[str]


def unread(spans: Sequence[str], problem: str) -> Reading:
    """Make the reading of a reply without anything usable."""
    return Reading({}, dict.fromkeys(spans, problem), Counter([problem]))


def read_reply(text: str, spans: Sequence[str]) -> Reading:
    """Read the entries of a reply on the requested spans; it must name each span once."""
    try:
        entries = _Verdicts.model_validate(_object(text)).verdicts
    except (ValidationError, _RepeatedKeyError):
        return unread(spans, SHAPE)
    except (ValueError, RecursionError):
        return unread(spans, NO_JSON)
    times = Counter(entry.span for entry in entries)
    said = {entry.span: entry.verdict for entry in entries}
    counts = Counter({NOT_ASKED: len(said.keys() - set(spans))})
    verdicts: dict[str, Verdict] = {}
    problems: dict[str, str] = {}
    for span in spans:
        verdict = next((word for word in _VERDICTS if word == said.get(span)), None)
        if times[span] == 1 and verdict is not None:
            verdicts[span] = verdict
        else:
            problems[span] = MISSING if not times[span] else TWICE if times[span] > 1 else WORD
    return Reading(verdicts, problems, +(counts + Counter(problems.values())))


class _RepeatedKeyError(ValueError):
    """Error for an object that names a key twice, as only one of its values would be read."""


def _object(text: str) -> Any:
    """Parse the JSON of a reply: all of it, its only fenced block, or its outermost braces (ValueError)."""
    text = text.rpartition("</think>")[2].strip()
    fenced = _FENCE.findall(text)
    braces = text[text.find("{") : text.rfind("}") + 1]
    for part in (text, *(fenced if len(fenced) == 1 else ()), braces):
        try:
            return json.loads(part, object_pairs_hook=_once)
        except json.JSONDecodeError:
            continue
    raise ValueError("no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKeyError
    return found
