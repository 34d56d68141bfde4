"""Drawing: the look shared by all pictures, and curves of how well scores detect wrong texts.

In the functions that draw curves ``path`` is the PNG's and ``wrong`` (n,) is 1 where a text is wrong;
everything else is of the same n texts, and higher scores mean more likely wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probers.evaluation.metrics import auprc, auroc, ece, risk_coverage

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


_DOTTED: dict[str, Any] = {"color": GREY, "linewidth": 0.9, "linestyle": ":"}


def roc_pr(path: Path, wrong: np.ndarray, scores: Sequence[Series]) -> None:
    """Both curves with their areas; the dotted lines are what a score that knows nothing gets."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    figure, axes = canvas(9.6, 5.0, columns=2)
    left, right = axes[0]
    rate = float(wrong.mean())
    left.plot([0, 1], [0, 1], **_DOTTED)
    right.axhline(rate, **_DOTTED)
    for name, values, style in scores:
        false_alarms, hits, _ = roc_curve(wrong, values)
        left.plot(false_alarms, hits, label=f"{auroc(wrong, values):.2f}  {name}", **style.curve)
        precision, recall, _ = precision_recall_curve(wrong, values)
        # Without the point at recall 0, which is a convention and no threshold's.
        label = f"{auprc(wrong, values):.2f}  {name}"
        right.plot(recall[:-1], precision[:-1], label=label, drawstyle="steps-post", **style.curve)
    left.set(xlabel="right texts that fire (false positive rate)", ylabel="wrong texts that fire (recall)")
    right.set(xlabel="wrong texts that fire (recall)", ylabel="share wrong of those that fire (precision)")
    for ax, text in ((left, "ROC"), (right, "precision-recall")):
        ax.set(xlim=(0, 1), ylim=(0, 1.005))
        title(ax, text)
    beyond, edge = (0.01, "bottom") if rate < 0.1 else (-0.015, "top")
    right.annotate(f"base rate {rate:.2f}", xy=(0.02, rate + beyond), va=edge, color=GREY, fontsize=8)
    legend(left, "lower right", title="AUROC (test)")
    legend(right, "lower left" if rate > 0.3 else "upper right", title="AUPRC (test)")
    save(figure, path)


#: Texts kept at least: of fewer, the share of wrong ones jumps about and hides the rest.
_KEPT = 10


def coverage_risk(path: Path, wrong: np.ndarray, scores: Sequence[Series]) -> None:
    """Share of wrong texts among those kept, by the share kept, lowest score first.

    Between an oracle, which rejects all wrong texts first, and a random order. The number in
    the legend is the mean risk over all coverages, of which PRR is a rescaling.
    """
    figure, axes = canvas(7.6, 4.8)
    ax = axes[0, 0]
    rate = float(wrong.mean())
    ax.axhline(rate, **_DOTTED, label=f"{rate:.2f}  random order")
    for name, values, style in scores:
        coverage, risk = risk_coverage(wrong, values)
        shown = coverage * len(wrong) >= min(_KEPT, len(wrong))
        ax.plot(coverage[shown], risk[shown], label=f"{risk.mean():.2f}  {name}", **style.curve)
    coverage, risk = risk_coverage(wrong, wrong)
    ax.plot(coverage, risk, color=GREY, linewidth=0.9, label=f"{risk.mean():.2f}  oracle")
    ax.set_xlabel("coverage: share of texts kept, lowest score first")
    ax.set_ylabel("risk: share wrong of those kept")
    ax.set(xlim=(0, 1), ylim=(0, None))
    legend(ax, "beside", title="mean risk (test)")
    save(figure, path)


def reliability(path: Path, wrong: np.ndarray, probabilities: Sequence[Series]) -> None:
    """One line per set of probabilities P(wrong), with its ECE."""
    figure, axes = canvas(5.8, 5.6)
    ax = axes[0, 0]
    ax.plot([0, 1], [0, 1], **_DOTTED)
    for name, values, style in probabilities:
        said, true = tenths(wrong, values)
        look = style.curve | {"linewidth": 1.2, "marker": style.marker, "markersize": 4.5}
        ax.plot(said, true, clip_on=False, label=f"{ece(wrong, values):.2f}  {name}", **look)
    ax.set_xlabel("P(wrong) as predicted, mean of a tenth of the texts")
    ax.set_ylabel("share wrong of that tenth (test)")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    legend(ax, "upper left", title="ECE (test)")
    save(figure, path)


def tenths(wrong: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability and share wrong of each tenth of the texts, by probability.

    Tenths of the texts, not of the scale: every dot then rests on equally many.
    """
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, 10) if len(part)]
    return np.array([probability[p].mean() for p in parts]), np.array([wrong[p].mean() for p in parts])


_BINS = (10, 32)  # at least and at most


def logit_density(path: Path, wrong: np.ndarray, margins: Mapping[str, np.ndarray]) -> None:
    """One panel per head, by its name: histograms of both classes' margins (n,), each of area 1."""
    bins = int(np.clip(np.sqrt(len(wrong)), *_BINS))
    figure, axes = canvas(4.8 * len(margins), 4.0, columns=len(margins))
    for ax, (name, values) in zip(axes[0], margins.items(), strict=True):
        # A few far outliers would squeeze everything else into a bar; they are counted at the edge.
        low, high = np.quantile(values, [0.002, 0.998])
        edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
        for kind, label, colour in ((0, "right texts", BLUE), (1, "wrong texts", ORANGE)):
            part = np.clip(values[wrong == kind], edges[0], edges[-1])
            ax.hist(part, edges, density=True, histtype="stepfilled", color=colour, alpha=0.25)
            ax.hist(
                part, edges, density=True, histtype="step", color=colour, linewidth=1.5, label=label,
                linestyle="--" if kind else "-",
            )  # fmt: skip
        ax.axvline(0.0, **_DOTTED)
        ax.set_xlabel("margin: logit of wrong minus logit of correct")
        ax.set_xlim(edges[0], edges[-1])
        title(ax, f"{name} (AUROC {auroc(wrong, values):.2f})")
    axes[0, 0].set_ylabel("density (test)")
    axes[0, 0].margins(y=0.12)
    legend(axes[0, 0], "best")
    save(figure, path)
