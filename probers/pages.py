"""Text for HTML pages and Markdown cards: Jinja2 templates, escaping, numbers, intervals.

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
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

DASH = "–"
MINUS = "−"

#: Characters HTML does not allow (most C0 and C1 controls, lone surrogates, non-characters).
_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def render(template: str, **values: Any) -> str:
    """Fill in a template.

    In an HTML template all that is not markup already is text (:func:`esc`), and an indented line goes on
    where the line before it ended; in others everything stands as it is.

    Args:
        template: its package and file, such as "probers.train/card.md.j2"; HTML ends in ".html.j2".
        values: the names it uses; one that is missing is an error.
    """
    return _environment(template.endswith(".html.j2")).get_template(template).render(values)


@cache
def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=html,
        finalize=_inert if html else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(DASH=DASH, num=num, span=span, count=count, style=_style)
    environment.filters["sha256"] = _sha256
    return environment


def _source(name: str) -> str:
    package, _, file = name.rpartition("/")
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    if not name.endswith(".html.j2"):
        return text
    text = re.sub("(?<=[^>}\n])\n +(?=[^<{ ])", " ", text)  # between words
    return re.sub("\n +", "", text)


def _style(name: str) -> Markup:
    """A style sheet, by package and file."""
    return Markup(_source(name))


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inert(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(esc(value))


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
