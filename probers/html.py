"""Text for HTML pages: the document itself, escaping, numbers, intervals.

Everything a model, a corpus or a user wrote passes through :func:`esc` before it
meets markup; every number passes through :func:`num`, so that a figure that does
not apply is a dash everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Iterable
from typing import Any

DASH = "–"
MINUS = "−"

#: Characters HTML does not allow (most C0 and C1 controls, lone surrogates, non-characters).
_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def document(title: str, style: str, body: str) -> str:
    """A self-contained page that needs nothing else, no network and no script.

    Args:
        title: plain text.
        style: the style sheet.
        body: markup of the page's main part.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # Nothing may load or run but this very style sheet: injected markup stays inert even if escaping failed.
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{esc(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n</main>\n</body>\n</html>\n"
    )


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


def span(ends: Iterable[float], digits: int = 2, *, sign: bool = False) -> str:
    """An interval in words, "0.51 to 0.57"."""
    return " to ".join(num(end, digits, sign=sign) for end in ends)


def count(n: int, noun: str) -> str:
    """A count with its noun: "1 round", "1,200 questions"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def listing(items: Iterable[str]) -> str:
    """Markup fragments as an enumeration in prose: "a, b and c"."""
    found = list(items)
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + f" and {found[-1]}" if found else ""
