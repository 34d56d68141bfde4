"""Text for HTML pages and Markdown cards: Jinja2 templates, escaping, numbers, intervals.

Text of a model, a corpus or a user passes through :func:`esc` or :func:`markdown` before it meets markup,
and every number through :func:`num`, so that a missing figure is a dash everywhere.
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
from pathlib import Path, PurePath
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from .types import STEERING, count

DASH = "–"
MINUS = "−"

#: Characters HTML does not allow (most C0 and C1 controls, lone surrogates, non-characters).
_NOT_HTML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")

#: Markup of Markdown within a line: code, HTML, cells of tables, and links.
_MARKDOWN = re.compile(r"[\\`<>|]|\](?=[(\[:])")
_STEERING = re.compile(f"[{STEERING}]")
#: An id on the Hub; a plain name for a shell and a string in a program.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_NAME = re.compile(r"[\w.,=+@/-]+")


def render(template: str, **values: Any) -> str:
    """Fill in a template, by package and file, such as "probers.train/card.md.j2".

    All values that are no markup are text: of HTML (:func:`esc`) in a file ".html.j2", where an indented line
    continues the line before it, else of Markdown (:func:`markdown`), where the filter ``code`` is
    for text within code. A missing value is an error.
    """
    return _environment(template.endswith(".html.j2")).get_template(template).render(values)


@cache
def _environment(html: bool) -> Environment:
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, finalize=_inert if html else markdown,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.globals.update(DASH=DASH, num=num, span=span, count=count)
    environment.globals["style"] = lambda name: Markup(_source(name))
    environment.filters.update(sha256=_sha256, code=_code)
    return environment


def _source(name: str) -> str:
    package, _, file = name.rpartition("/")
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    if not name.endswith(".html.j2"):
        return text
    text = re.sub("(?<=[^>}\n])\n +(?=[^<{ ])", " ", text)  # between words
    return re.sub("\n +", "", text)


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inert(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(esc(value))


def markdown(value: object) -> Markup:
    """Make text one line of inert Markdown, also for a table's cell; markup stays unchanged."""
    if isinstance(value, Markup):
        return value
    return Markup(_MARKDOWN.sub(r"\\\g<0>", _line(value)))


def _code(value: object) -> Markup:
    """Escape text so that it cannot end a span or block of Markdown's code."""
    return Markup(_line(value).replace("`", "'"))


def _line(value: object) -> str:
    return _STEERING.sub(" ", _NOT_HTML.sub("\ufffd", str(value)))


def public_path(path: str | PurePath, instead: str) -> str:
    """Show a path in a published card without its folders here; ``instead`` if it is no plain name."""
    path = PurePath(path)
    shown = path.name if path.is_absolute() or path.parts[:1] in (("~",), ("..",)) else str(path)
    return shown if _NAME.fullmatch(shown) else instead


def public_model(name: str) -> str:
    """Show a model's name in a published card: an id on the Hub, or the name of its folder."""
    return hub_id(name) or PurePath(name).name or name


def hub_id(name: str) -> str | None:
    """Return a model's name if it is an id on the Hub and no folder here; None otherwise."""
    return name if _HUB_ID.fullmatch(name) and not Path(name).exists() else None


def esc(value: object) -> str:
    """Escape text for HTML: element content and double-quoted attributes."""
    return html.escape(_NOT_HTML.sub("\ufffd", str(value)), quote=True)


def number(value: Any) -> float | None:
    """Read a finite number; None for null, NaN, infinities and other types."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def num(value: Any, digits: int = 2, *, sign: bool = False) -> str:
    """Format a number with fixed digits and a true minus sign; a dash when there is none."""
    if (finite := number(value)) is None:
        return DASH
    text = f"{abs(finite):,.{digits}f}"
    if float(text.replace(",", "")) == 0:
        return text
    return (MINUS if finite < 0 else "+" if sign else "") + text


def span(ends: Iterable[float], digits: int = 2, *, sign: bool = False) -> str:
    """Format an interval, "0.51 to 0.57"."""
    return " to ".join(num(end, digits, sign=sign) for end in ends)
