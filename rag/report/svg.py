"""Small plotting surface as inline SVG: axes, lines, markers, labels that do not overlap.

Colours, strokes and fonts come from classes of the page's style sheet, so that a chart follows the reader's
light or dark setting; the page's content policy forbids style attributes. Matplotlib, which draws the
pictures of a training run, took 138 kB instead of 58 for the demo's charts, and 1.4 s instead of 0.05 s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from probers.pages import DASH, esc, num

from .lookup import Json, Look

WIDTH = 420
FONT = 12.0
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def clipped(text: str, length: int = 24) -> str:
    """Shorten a label for a chart; the tables carry the full name."""
    return text if len(text) <= length else text[: length - 1] + "…"


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis from ``low`` to ``high`` with its ticks (value, text), linear or of equal ratios."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    ratios: bool = False

    @classmethod
    def fit(cls, label: str, values: Sequence[float], *, least: Sequence[float] = (), steps: int = 5) -> Axis:
        """Make an axis with round ticks around the values and ``least``; equal values have a tenth above."""
        ends = [*values, *least] or [0.0, 1.0]
        low, high = min(ends), max(ends)
        high = high if high - low > 1e-9 else low + 0.1
        raw = (high - low) / steps
        scale = 10.0 ** math.floor(math.log10(raw))
        step = scale * next(nice for nice in (1, 2, 2.5, 5, 10) if nice * scale >= raw * 0.999)
        digits = next(n for n in itertools.count() if math.isclose(round(step, n), step))
        marks = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
        ticks = tuple((k * step, num(k * step, digits)) for k in marks)
        return cls(label, ticks[0][0], ticks[-1][0], ticks)

    @classmethod
    def wide(cls, label: str, values: Sequence[float]) -> Axis:
        """Make an axis of equal ratios if the largest value is over ten times the least, else as usual."""
        low, high = min(values), max(values)
        if not 0 < 10 * low < high:
            return cls.fit(label, values)
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [nice * 10.0**decade for decade in decades for nice in (1, 2, 5)]
        first = max(mark for mark in marks if mark <= low)
        last = min(mark for mark in marks if mark >= high)
        marks = [mark for mark in marks if first <= mark <= last]
        if len(marks) > 10:
            marks = [mark for mark in marks if mark in (first, last) or math.log10(mark).is_integer()]
        ticks = tuple((mark, num(mark, 0 if mark >= 1 else 3)) for mark in marks)
        return cls(label, first, last, ticks, ratios=True)

    def share(self, value: float) -> float:
        """Place a value on the axis, 0 at its lower end and 1 at its upper end."""
        if self.ratios:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(slots=True)
class Plot:
    """Chart. Coordinates given to its methods are data values unless stated otherwise.

    Ids of its parts begin with its name; title and description are for screen readers. ``size`` is (width,
    height) and ``margins`` are left of, right of and below the axes, in user units.
    """

    name: str
    title: str
    description: str
    x: Axis
    y: Axis
    size: tuple[int, int] = (WIDTH, 300)
    margins: tuple[int, int, int] = (42, 14, 42)
    _parts: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        left, top, right, bottom = self.box
        for value, text in self.y.ticks:
            _, y = self.at((self.x.low, value))
            self.add(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(left - 6, y, text, css="tick", anchor="end")
        for value, text in self.x.ticks:
            x, _ = self.at((value, self.y.low))
            self.add(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            self.text(x, bottom + 14, text, css="tick", anchor="middle")
        self.add(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        self.text(0, top - 16, self.y.label, css="axis-label")
        self.text((left + right) / 2, bottom + 32, self.x.label, css="axis-label", anchor="middle")

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the axes in user units."""
        (width, height), (left, right, below) = self.size, self.margins
        return left, 26, width - right, height - below

    def at(self, point: Point) -> Point:
        """Convert a data point to user units, with y downwards."""
        left, top, right, bottom = self.box
        across, up = self.x.share(point[0]), self.y.share(point[1])
        return left + across * (right - left), bottom - up * (bottom - top)

    def add(self, markup: str) -> None:
        """Add raw SVG in user units."""
        self._parts.append(markup)

    def text(self, x: float, y: float, text: str, *, css: str, anchor: str = "start") -> None:
        """Add text in user units, centred vertically on ``y``."""
        anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.add(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" dy=".35em"{anchored}>{esc(text)}</text>')

    def line(self, points: Sequence[Point], css: str, *, dash: str = "") -> None:
        """Add a polyline through data points; points closer than 0.7 units to the last are left out."""
        corners: list[Point] = []
        for index, here in enumerate(map(self.at, points), 1):
            if not corners or index == len(points) or math.dist(here, corners[-1]) >= 0.7:
                corners.append(here)
        self.path(corners, css, dash=dash)

    def path(self, points: Sequence[Point], css: str, *, dash: str = "") -> None:
        """Add a polyline in user units."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(f'<polyline class="{css}" points="{_corners(points)}"{dashed}/>')

    def marker(self, shape: str, point: Point, css: str, *, size: float = 4.5) -> None:
        """Add a marker on a data point."""
        self.add(marker(shape, self.at(point), css, size=size))

    def key(self, x: float, y: float, look: Look, text: str) -> None:
        """Add an entry of a legend: line, marker and text, from ``x`` in user units."""
        self.path([(x, y), (x + 28, y)], f"line {look.css}", dash=look.dash)
        self.add(marker(look.marker, (x + 14, y), look.mark, size=4))
        self.text(x + 34, y, text, css="label")

    def figure(self, caption: str, how: str = "") -> Markup:
        """Finish the chart; ``how`` to read it stands behind a click. A wide chart takes the page's width."""
        (width, height), ids = self.size, f"{self.name}-title {self.name}-desc"
        broad = ' class="broad"' if width > WIDTH else ""
        reading = f"<details><summary>How to read the chart</summary>{esc(how)}</details>" if how else ""
        return Markup(
            f'<figure{broad}><svg class="chart" viewBox="0 0 {width} {height}" role="img"'
            f' aria-labelledby="{ids}">'
            f'<title id="{self.name}-title">{esc(self.title)}</title>'
            f'<desc id="{self.name}-desc">{esc(self.description)}</desc>{"".join(self._parts)}</svg>'
            f"<figcaption>{esc(caption)}{reading}</figcaption></figure>"
        )


def _corners(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


_POLYGONS: dict[str, tuple[Point, ...]] = {
    "triangle": ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
    "down": ((0, 1.2), (1.1, -0.8), (-1.1, -0.8)),
    "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
}


def marker(shape: str, at: Point, css: str, *, size: float = 4.5) -> str:
    """Draw a marker in user units."""
    (x, y), r = at, size
    if shape == "circle":
        return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    if shape == "square":
        start, side = f'x="{x - 0.9 * r:.1f}" y="{y - 0.9 * r:.1f}"', 1.8 * r
        return f'<rect class="{css}" {start} width="{side:.1f}" height="{side:.1f}"/>'
    if shape == "cross":
        arm = f"M{x - r:.1f},{y - r:.1f}l{2 * r},{2 * r}m0,{-2 * r}l{-2 * r},{2 * r}"
        return f'<path class="{css}" d="{arm}"/>'
    corners = _corners([(x + dx * r, y + dy * r) for dx, dy in _POLYGONS[shape]])
    return f'<polygon class="{css}" points="{corners}"/>'


def _glyph(view: str, shapes: str, css: str = "") -> Markup:
    return Markup(f'<svg class="glyph{css}" viewBox="{view}" aria-hidden="true">{shapes}</svg>')


def mark_glyph(look: Look) -> Markup:
    """Draw a method's marker as in the charts."""
    return _glyph("0 0 14 14", marker(look.marker, (7, 7), look.mark), " key")


def interval_glyph(
    value: float, ci: Sequence[float], scale: Sequence[float], *, zero: bool = False
) -> Markup:
    """Draw a dot with its interval on a scale shared by the column; ``zero`` widens it and marks zero."""
    low, high = scale
    width, height = (150, 12) if zero else (90, 8)
    middle = height / 2
    shares = ((end - low) / ((high - low) or 1.0) for end in (0, *ci, value))
    nought, left, right, dot = (f"{4 + (width - 8) * share:.1f}" for share in shares)
    axis = f'<line class="axis" x1="{nought}" x2="{nought}" y1="0" y2="{height}"/>' if zero else ""
    grid = f'<line class="grid" x1="0" x2="{width}" y1="{middle}" y2="{middle}"/>'
    whisker = f'<line class="whisker ink" x1="{left}" x2="{right}" y1="{middle}" y2="{middle}"/>'
    mark = f'<circle class="mark ink" cx="{dot}" cy="{middle}" r="3"/>'
    return _glyph(f"0 0 {width} {height}", grid + axis + whisker + mark, " wide" if zero else "")


def level_glyph(share: float | None) -> str:
    """Show a share between 0 and 1 as a number and a bar."""
    if share is None:
        return DASH
    bar = f'<rect class="bar" width="{70 * share:.1f}" height="6"/>'
    return num(share) + _glyph("0 0 70 6", f'<rect class="bar-back" width="70" height="6"/>{bar}')


def shares_glyph(shares: Json) -> str:
    """Show shares of questions with no, one and several retrievals: percentages over a bar of three tones."""
    tones, bars, start = ("none", "single", "multi"), "", 0.0
    if not shares.keys() >= {*tones}:
        return DASH
    for tone in tones:
        width = 90 * shares[tone]
        bars += f'<rect class="share {tone}" x="{start:.1f}" y="0.5" width="{width:.1f}" height="7"/>'
        start += width
    return " / ".join(num(100 * shares[tone], 0) for tone in tones) + _glyph("-0.5 0 91 8", bars)


def overlap(box: Box, others: Box | np.ndarray) -> np.ndarray:
    """Compute the shared area of a box and each of the others (..., 4)."""
    a, b = np.asarray(box), np.asarray(others)
    sides = np.minimum(a[2:], b[..., 2:]) - np.maximum(a[:2], b[..., :2])
    return np.maximum(sides, 0.0).prod(axis=-1)


class Placed(NamedTuple):
    """Place of a label: its box, where and how its text is anchored, and whether it needs a leader line."""

    box: Box
    at: Point
    anchor: str
    leader: bool


_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
#: By the side on which a label stands: how its text is anchored, and the share of its width left of there.
_ANCHORS = {1: ("start", 0.0), -1: ("end", 1.0), 0: ("middle", 0.5)}


def place(anchors: Sequence[tuple[Point, str]], bounds: Box, obstacles: Sequence[Box] = ()) -> list[Placed]:
    """Place the label of each (point, text), all in user units.

    Labels are placed greedily in the order given: each takes the nearest place around its point that covers
    least of the labels already placed, the obstacles and the outside.
    """
    half = (FONT + 2) / 2
    taken = [*obstacles, *((x - 5, y - 5, x + 5, y + 5) for (x, y), _ in anchors)]
    placed: list[Placed] = []
    for (x, y), text in anchors:
        width, others = 0.61 * FONT * len(text), np.array(taken)  # from above, for wide system fonts
        options: list[tuple[float, Placed]] = []
        for distance in (9.0, 16.0, 26.0, 38.0, 52.0):
            for dx, dy in _SIDES:
                at = (x + dx * distance, y + dy * (distance + (4 if dx == 0 else 0)))
                anchor, share = _ANCHORS[dx]
                left = at[0] - share * width
                box = (left, at[1] - half, left + width, at[1] + half)
                outside = width * 2 * half - overlap(box, bounds)
                cost = overlap(box, others).sum() + 4 * outside + distance / 4
                options.append((float(cost), Placed(box, at, anchor, distance > 16)))
        placed.append(min(options, key=lambda option: option[0])[1])
        taken.append(placed[-1].box)
    return placed
