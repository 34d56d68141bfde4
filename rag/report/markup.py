"""Text for the page: escaping, numbers, intervals.

Everything a model, a corpus or a user wrote passes through :func:`esc` before it
meets markup; every number passes through :func:`num`, so that a figure that does
not apply is a dash everywhere.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DASH = "–"
MINUS = "−"

#: Characters HTML does not allow (most C0 and C1 controls, lone surrogates, non-characters).
_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def esc(value: object) -> str:
    """Text as inert HTML, safe in element content and in double-quoted attributes."""
    return html.escape(_NOT_HTML.sub("\ufffd", str(value)), quote=True)


def number(value: Any) -> float | None:
    """The finite number in ``value``, or None for null, NaN, infinities and other types."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def num(value: Any, digits: int = 2, *, sign: bool = False) -> str:
    """A number with fixed digits and a true minus sign; a dash when there is none."""
    found = number(value)
    if found is None:
        return DASH
    text = f"{abs(found):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return (MINUS if found < 0 else "+" if sign else "") + text


def interval(value: Any) -> tuple[float, float] | None:
    """A pair (low, high) of finite numbers, or None."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        return None
    low, high = number(value[0]), number(value[1])
    return None if low is None or high is None else (low, high)


def span(value: Any, digits: int = 2, *, sign: bool = False) -> str:
    """An interval in words, "0.51 to 0.57", or an empty string when there is none."""
    found = interval(value)
    return "" if found is None else " to ".join(num(end, digits, sign=sign) for end in found)


def count(n: int, noun: str) -> str:
    """A count with its noun: "1 round", "1,200 questions"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listing(items: Iterable[str]) -> str:
    """Markup fragments as an enumeration in prose: "a, b and c"."""
    found = list(items)
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + f" and {found[-1]}" if found else ""


def metric(method: Mapping[str, Any], name: str) -> float | None:
    """One figure of a method of results.json; ``trigger.x`` reaches into its trigger part."""
    node: Any = method
    for part in name.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return number(node)


def metric_ci(method: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The 95% interval of a figure; trigger figures may be filed as ``trigger.x`` or ``x``."""
    intervals = method.get("ci95") or {}
    return interval(intervals.get(name, intervals.get(name.removeprefix("trigger."))))


def pair(results: Mapping[str, Any], a: str, b: str, name: str) -> tuple[float, tuple[float, float]] | None:
    """The paired difference a - b of a figure with its 95% interval, in whichever order it is filed."""
    pairs = results.get("pairs") or {}
    for key, direction in ((f"{a} vs {b}", 1), (f"{b} vs {a}", -1)):
        found = pairs.get(key) or {}
        entry = found.get(name) or found.get(name.removeprefix("trigger.")) or {}
        diff, ci = number(entry.get("diff")), interval(entry.get("ci95"))
        if diff is not None and ci is not None:
            return (diff, ci) if direction == 1 else (-diff, (-ci[1], -ci[0]))
    return None
