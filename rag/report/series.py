"""How each method is drawn, the same in every chart, and word-sized graphics for table cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probers.html import DASH, num, number

from .svg import marker

#: Methods that bound the others; drawn in grey.
REFERENCES = ("never", "always", "random", "oracle")

_COLOURS = 6
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2", "12 3")
_MARKERS = ("circle", "square", "triangle", "diamond", "down", "cross")
_REFERENCE_MARKERS = {"never": "circle", "always": "square", "random": "diamond", "oracle": "triangle"}


@dataclass(frozen=True, slots=True)
class Series:
    """A method's look.

    Attributes:
        css: class that sets the custom property ``--line``.
        dash: SVG dash pattern, empty for a solid line.
        marker: name of the marker's shape.
        reference: drawn hollow and grey.
    """

    name: str
    css: str
    dash: str
    marker: str
    reference: bool


def stem(name: str) -> str:
    """The kind of method in a name: "rind" for "rind_released" or "rind (paper)"."""
    found = re.match(r"[a-z]+", name.strip().lower())
    return found.group() if found else name


def assign(names: Iterable[str]) -> dict[str, Series]:
    """A look for every method; probers and entropy come first so that theirs hardly ever change."""
    order = {"probing": 0, "entropy": 1, "rind": 2}
    distinct = list(dict.fromkeys(names))
    ranked = sorted(
        (name for name in distinct if stem(name) not in REFERENCES),
        key=lambda name: (order.get(stem(name), 3), distinct.index(name)),
    )
    looks = {}
    for name in distinct:
        if stem(name) in REFERENCES:
            looks[name] = Series(name, "m0", "3 3", _REFERENCE_MARKERS[stem(name)], True)
            continue
        index = ranked.index(name)
        turn = index + index // _COLOURS  # a colour that comes round again gets another dash and marker
        looks[name] = Series(
            name,
            f"m{index % _COLOURS + 1}",
            _DASHES[turn % len(_DASHES)],
            _MARKERS[turn % len(_MARKERS)],
            False,
        )
    return looks


def mark_glyph(look: Series) -> str:
    """A method's marker, as the charts draw it."""
    shape = marker(look.marker, 7, 7, f"mark {look.css}{' hollow' if look.reference else ''}")
    return f'<svg class="glyph key" viewBox="0 0 14 14" aria-hidden="true">{shape}</svg>'


def interval_glyph(
    value: float, ci: tuple[float, float], scale: tuple[float, float], *, zero: bool = False
) -> str:
    """A dot with its interval on a scale shared by the column; the numbers stand beside it."""
    low, high = scale
    width, height, css = (150, 12, "glyph wide") if zero else (90, 8, "glyph")
    middle = height / 2

    def place(end: float) -> float:
        return 4 + (width - 8) * (end - low) / ((high - low) or 1.0)

    axis = (
        f'<line class="axis" x1="{place(0):.1f}" x2="{place(0):.1f}" y1="0" y2="{height}"/>' if zero else ""
    )
    left, right = place(ci[0]), place(ci[1])
    return (
        f'<svg class="{css}" viewBox="0 0 {width} {height}" aria-hidden="true">'
        f'<line class="grid" x1="0" x2="{width}" y1="{middle}" y2="{middle}"/>{axis}'
        f'<line class="whisker ink" x1="{left:.1f}" x2="{right:.1f}" y1="{middle}" y2="{middle}"/>'
        f'<circle class="mark ink" cx="{place(value):.1f}" cy="{middle}" r="3"/></svg>'
    )


def level_glyph(value: Any) -> str:
    """A share between 0 and 1 as a number and a bar."""
    share = number(value)
    if share is None:
        return DASH
    length = 70 * min(1.0, max(0.0, share))
    return (
        f'{num(share)}<svg class="glyph" viewBox="0 0 70 6" aria-hidden="true">'
        f'<rect class="bar-back" width="70" height="6"/>'
        f'<rect class="bar" width="{length:.1f}" height="6"/></svg>'
    )


def shares_glyph(shares: Mapping[str, Any]) -> str:
    """Shares of questions with no, one and several retrievals: percentages over a bar of three tones."""
    values = [number(shares.get(kind)) for kind in ("none", "single", "multi")]
    if any(value is None for value in values):
        return DASH
    known = [min(1.0, max(0.0, value or 0.0)) for value in values]
    text = " / ".join(num(100 * value, 0) for value in known)
    x, parts = 0.0, []
    for tone, value in zip(("none", "single", "multi"), known, strict=True):
        parts.append(f'<rect class="share {tone}" x="{x:.1f}" y="0.5" width="{90 * value:.1f}" height="7"/>')
        x += 90 * value
    return f'{text}<svg class="glyph" viewBox="-0.5 0 91 8" aria-hidden="true">{"".join(parts)}</svg>'
