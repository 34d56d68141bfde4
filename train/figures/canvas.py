"""What every picture shares: colours, axes, level lines with side labels, and the file written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers.
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"
GREY = "#666666"


class Style(NamedTuple):
    """How a series is drawn; markers and lines differ too, for pictures printed in grey."""

    colour: str
    marker: str
    line: str = "-"

    @property
    def curve(self) -> dict[str, Any]:
        """The options of a curve without markers."""
        return {"color": self.colour, "linestyle": self.line, "linewidth": 1.4}


#: The same in every picture: the prober, the prober with entropy, and what they are compared with.
PROBER, ENTROPY = Style(BLUE, "o"), Style(GREEN, "^")
OTHERS = (Style(ORANGE, "s", "--"), Style(PURPLE, "D", "-."), Style(SKY, "v", ":"))

_FONT = 8.5


class Series(NamedTuple):
    """Scores or probabilities (n,) of one detector, and how they are drawn."""

    name: str
    values: np.ndarray
    style: Style


class Level(NamedTuple):
    """A horizontal line that is named beside the axes."""

    value: float
    name: str
    colour: str = GREY
    strong: bool = False


def canvas(width: float, height: float, *, columns: int = 1, rows: int = 1, **options: Any) -> Any:
    """A figure of so many inches and its axes as an array (rows, columns)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=_FONT)
        ax.xaxis.label.set_size(_FONT + 0.5)
        ax.yaxis.label.set_size(_FONT + 0.5)
    return figure, axes


def title(ax: Axes, text: str) -> None:
    """What a panel shows."""
    ax.set_title(text, fontsize=_FONT + 1)


def legend(ax: Axes, where: str, **options: Any) -> None:
    """A legend without a frame in one corner, or "above" or "beside" the axes."""
    if where == "above":
        options |= {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 4}
    elif where == "beside":
        options |= {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    else:
        options["loc"] = where
    ax.legend(**options, frameon=False, fontsize=_FONT, title_fontsize=_FONT)


def levels(panels: Sequence[tuple[Axes, Sequence[Level]]]) -> None:
    """Level lines with their names and values right of the axes, moved apart where they would overlap."""
    panels = [(ax, sorted(entries)) for ax, entries in panels if entries]
    for ax, entries in panels:
        low, high = ax.get_ylim()
        margin = 0.02 * (high - low)
        ax.set_ylim(min(low, entries[0].value - margin), max(high, entries[-1].value + margin))
        for entry in entries:
            ax.axhline(
                entry.value, color=entry.colour, zorder=0,
                linewidth=1.6 if entry.strong else 0.8, linestyle="-" if entry.strong else ":",
            )  # fmt: skip
    if panels:
        figure: Any = panels[0][0].figure
        figure.draw_without_rendering()  # settles the heights, which the names' distance needs
    for ax, entries in panels:
        _names(ax, entries)


def _names(ax: Axes, entries: Sequence[Level]) -> None:
    low, high = ax.get_ylim()
    figure: Any = ax.figure
    inches = ax.get_position().height * figure.get_size_inches()[1]
    gap = _FONT * 1.3 / 72 / inches  # of a line of text, as a share of the axes' height
    heights = [(entry.value - low) / (high - low) for entry in entries]
    places = spread(heights, gap, 0.0, 1.0)
    for entry, height, place in zip(entries, heights, places, strict=True):
        ax.annotate(
            f"{entry.name} {entry.value:.2f}", xy=(1.0, height), xytext=(1.045, place),
            xycoords="axes fraction", textcoords="axes fraction", color=entry.colour, fontsize=_FONT,
            va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": entry.colour, "linewidth": 0.5, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels near where they are wanted, in order, at least ``gap`` apart.

    Labels that would overlap form a stack around the mean of where they are wanted, moved
    inside ``low`` to ``high`` where there is room.

    Args:
        wanted: ascending.
        gap: least distance of two labels.
        low: lowest place.
        high: highest place.
    """
    stacks: list[list[float]] = []  # of places wanted
    starts: list[float] = []
    for place in wanted:
        stacks.append([place])
        starts.append(_start(stacks[-1], gap, low, high))
        while len(stacks) > 1 and starts[-1] < starts[-2] + gap * len(stacks[-2]):
            upper = stacks.pop()
            stacks[-1].extend(upper)
            starts.pop()
            starts[-1] = _start(stacks[-1], gap, low, high)
    return [start + gap * i for start, stack in zip(starts, stacks, strict=True) for i in range(len(stack))]


def _start(stack: Sequence[float], gap: float, low: float, high: float) -> float:
    """Where the lowest label of a stack goes."""
    height = gap * (len(stack) - 1)
    return max(low, min(float(np.mean(stack)) - height / 2, high - height))


def save(figure: Figure, path: Path) -> None:
    """Write a PNG that holds no date or version, so that the same run gives the same bytes."""
    figure.savefig(path, dpi=130, metadata={"Software": None})
