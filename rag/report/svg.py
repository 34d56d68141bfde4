"""A small plotting surface as inline SVG: axes, lines, bands, markers, labels that do not overlap.

Colours, strokes and fonts come from classes of the page's style sheet, so that a
chart follows the reader's light or dark setting; nothing here needs a style attribute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from probers.html import esc, num

WIDTH = 420
FONT = 12.0
Point = tuple[float, float]


def text_width(text: str) -> float:
    """A safe guess of a label's width in user units (wide system fonts included)."""
    return 0.61 * FONT * len(text)


def clipped(text: str, length: int = 24) -> str:
    """A label short enough for a chart; the tables carry the full name."""
    return text if len(text) <= length else text[: length - 1] + "…"


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from ``low`` to ``high`` with its ticks (value, text)."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    @classmethod
    def fit(
        cls, label: str, values: Sequence[float], *, least: tuple[float, float] | None = None, steps: int = 5
    ) -> Axis:
        """An axis with round ticks around the values and, when given, at least around ``least``.

        Equal values have a tenth above them.
        """
        ends = [*values, *(least or ())] or [0.0, 1.0]
        low, high = min(ends), max(ends)
        high = high if high > low else low + 0.1
        raw = max(high - low, 1e-9) / steps
        scale = 10.0 ** math.floor(math.log10(raw))
        step = scale * next(nice for nice in (1, 2, 2.5, 5, 10) if nice * scale >= raw * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        if first == last:
            last = first + 1
        digits = 0 if step >= 1 and step == int(step) else max(1, -math.floor(math.log10(step)))
        if round(step, digits) != round(step, 9):
            digits += 1
        ticks = tuple((k * step, num(k * step, digits)) for k in range(first, last + 1))
        return cls(label, first * step, last * step, ticks)


class Plot:
    """One chart. Coordinates given to its methods are data values unless they say otherwise."""

    def __init__(
        self,
        name: str,
        title: str,
        description: str,
        x: Axis,
        y: Axis,
        *,
        width: int = WIDTH,
        height: int = 300,
        left: int = 42,
        right: int = 14,
        below: int = 0,
    ) -> None:
        """Lay out the axes; ``right`` and ``below`` reserve room for labels and legends."""
        self.name, self.title, self.description = name, title, description
        self.x, self.y = x, y
        self.width, self.height = width, height + below
        self.box = (left, 26, width - right, height - 42)
        self._parts: list[str] = []
        self._axes()

    def sx(self, value: float) -> float:
        """Horizontal position of a value in user units."""
        left, _, right, _ = self.box
        return left + (value - self.x.low) / (self.x.high - self.x.low) * (right - left)

    def sy(self, value: float) -> float:
        """Vertical position of a value in user units (downwards)."""
        _, top, _, bottom = self.box
        return bottom - (value - self.y.low) / (self.y.high - self.y.low) * (bottom - top)

    def add(self, markup: str) -> None:
        """Add raw SVG in user units."""
        self._parts.append(markup)

    def _axes(self) -> None:
        left, top, right, bottom = self.box
        for value, text in self.y.ticks:
            y = self.sy(value)
            self.add(f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.text(left - 6, y, text, css="tick", anchor="end")
        for value, text in self.x.ticks:
            x = self.sx(value)
            self.add(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
            self.text(x, bottom + 14, text, css="tick", anchor="middle")
        self.add(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        self.text(0, top - 16, self.y.label, css="axis-label")
        self.text((left + right) / 2, bottom + 32, self.x.label, css="axis-label", anchor="middle")

    def text(self, x: float, y: float, text: str, *, css: str = "", anchor: str = "start") -> None:
        """Text in user units, centred vertically on ``y``."""
        anchored = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.add(f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" dy=".35em"{anchored}>{esc(text)}</text>')

    def line(self, points: Sequence[Point], css: str, *, dash: str = "") -> None:
        """A polyline through data points; points closer than 0.7 units to the last are left out."""
        kept: list[Point] = []
        for index, (x, y) in enumerate(points):
            here = (self.sx(x), self.sy(y))
            if not kept or index == len(points) - 1 or math.dist(here, kept[-1]) >= 0.7:
                kept.append(here)
        self.path(kept, css, dash=dash)

    def path(self, points: Sequence[Point], css: str, *, dash: str = "") -> None:
        """A polyline in user units."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.add(f'<polyline class="{css}" points="{path}"{dashed}/>')

    def band(self, lows: Sequence[Point], highs: Sequence[Point], css: str) -> None:
        """The area between two curves."""
        corners = [*lows, *reversed(highs)]
        path = " ".join(f"{self.sx(x):.1f},{self.sy(y):.1f}" for x, y in corners)
        self.add(f'<polygon class="{css}" points="{path}"/>')

    def svg(self) -> str:
        """The finished chart with its title and description for screen readers."""
        ids = f"{self.name}-title {self.name}-desc"
        css = "chart" if self.width <= WIDTH else "chart broad"
        return (
            f'<svg class="{css}" viewBox="0 0 {self.width} {self.height}" role="img" aria-labelledby="{ids}">'
            f'<title id="{self.name}-title">{esc(self.title)}</title>'
            f'<desc id="{self.name}-desc">{esc(self.description)}</desc>{"".join(self._parts)}</svg>'
        )


def marker(shape: str, x: float, y: float, css: str, *, size: float = 4.5) -> str:
    """A marker in user units; an unknown shape is an error."""
    r = size
    polygons: dict[str, list[Point]] = {
        "triangle": [(0, -1.2 * r), (1.1 * r, 0.8 * r), (-1.1 * r, 0.8 * r)],
        "down": [(0, 1.2 * r), (1.1 * r, -0.8 * r), (-1.1 * r, -0.8 * r)],
        "diamond": [(0, -1.3 * r), (1.3 * r, 0), (0, 1.3 * r), (-1.3 * r, 0)],
    }
    if shape == "circle":
        return f'<circle class="{css}" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>'
    if shape == "square":
        side = 1.8 * r
        return (
            f'<rect class="{css}" x="{x - side / 2:.1f}" y="{y - side / 2:.1f}"'
            f' width="{side:.1f}" height="{side:.1f}"/>'
        )
    if shape == "cross":
        arm = f"M{x - r:.1f},{y - r:.1f}l{2 * r},{2 * r}m0,{-2 * r}l{-2 * r},{2 * r}"
        return f'<path class="{css}" d="{arm}"/>'
    corners = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in polygons[shape])
    return f'<polygon class="{css}" points="{corners}"/>'


Box = tuple[float, float, float, float]
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (1, 1), (-1, -1), (-1, 1))
_ANCHORS = {1: "start", -1: "end", 0: "middle"}


@dataclass(frozen=True, slots=True)
class Placed:
    """A label's box (left, top, right, bottom), its text anchor, and whether it needs a leader line."""

    box: Box
    anchor: str
    leader: bool

    @property
    def at(self) -> Point:
        """Where the text is anchored."""
        left, top, right, bottom = self.box
        x = {"start": left, "end": right, "middle": (left + right) / 2}[self.anchor]
        return x, (top + bottom) / 2


def spread(wanted: Sequence[float], low: float, high: float, gap: float = FONT + 3) -> list[float]:
    """Vertical positions at least ``gap`` apart, in order, near the wanted ones, within [low, high].

    Labels that touch form a block centred on the mean of what its members wanted;
    blocks merge until none touch. When they cannot all fit, the gap shrinks.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(1, len(wanted) - 1))
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    blocks: list[list[int]] = []
    tops: list[float] = []

    def top_of(block: list[int]) -> float:
        centre = sum(wanted[index] for index in block) / len(block)
        height = gap * (len(block) - 1)
        return min(max(centre - height / 2, low), high - height)

    for index in order:
        blocks.append([index])
        tops.append(top_of(blocks[-1]))
        while len(blocks) > 1 and tops[-1] - tops[-2] < gap * len(blocks[-2]) - 1e-9:
            merged = blocks[-2] + blocks[-1]
            blocks[-2:], tops[-2:] = [merged], [top_of(merged)]
    placed = [0.0] * len(wanted)
    for block, top in zip(blocks, tops, strict=True):
        for rank, index in enumerate(block):
            placed[index] = top + gap * rank
    return placed


def overlap(a: Box, b: Box) -> float:
    """Shared area of two boxes (left, top, right, bottom)."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def place(anchors: Sequence[tuple[Point, str]], bounds: Box, obstacles: Sequence[Box] = ()) -> list[Placed]:
    """A place for the label of each (point, text).

    Greedy: each label takes, of the places around its point, the nearest that covers least
    of the labels already set, the obstacles and the outside. Order decides who chooses first.
    """
    half = (FONT + 2) / 2
    taken = [*obstacles, *((x - 5, y - 5, x + 5, y + 5) for (x, y), _ in anchors)]
    placed: list[Placed] = []
    for (x, y), text in anchors:
        width = text_width(text)
        options: list[tuple[float, Placed]] = []
        for distance in (9.0, 16.0, 26.0, 38.0, 52.0):
            for dx, dy in _SIDES:
                left = x + dx * distance - {1: 0.0, -1: width, 0: width / 2}[dx]
                middle = y + dy * (distance + (4 if dx == 0 else 0))
                box = (left, middle - half, left + width, middle + half)
                cost = sum(overlap(box, other) for other in taken)
                cost += 4 * (width * 2 * half - overlap(box, bounds)) + distance / 4
                options.append((cost, Placed(box, _ANCHORS[dx], distance > 16)))
        best = min(options, key=lambda option: option[0])[1]
        taken.append(best.box)
        placed.append(best)
    return placed
