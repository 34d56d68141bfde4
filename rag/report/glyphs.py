"""Word-sized graphics for table cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probers.markup import DASH, num, number

from .series import Series
from .svg import marker


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
