"""Where labels go so that they do not lie on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .svg import FONT, Point, text_width

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
