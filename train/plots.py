"""Three pictures of a prober: AUROC by layer, ROC curves, reliability."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .controls import Detector
from .data import Examples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, told apart by colour-blind readers.
_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#777777"


def write_plots(
    folder: Path, figures: Mapping[str, Any], detectors: list[Detector], examples: Examples
) -> None:
    """Write ``auroc_by_layer.png``, ``roc.png`` and ``reliability.png``.

    Args:
        folder: made when absent.
        figures: as in ``metrics.json``.
        detectors: calibrated ones for the curves; the first is the prober.
        examples: for the test labels.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _by_layer(folder / "auroc_by_layer.png", figures)
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    _roc(folder / "roc.png", wrong, {d.name: d.scores[rows] for d in detectors})
    calibrated = {d.name: d.probability(d.scores[rows]) for d in detectors if d.probability is not None}
    _reliability(folder / "reliability.png", wrong, dict(list(calibrated.items())[:2]))


def _by_layer(path: Path, figures: Mapping[str, Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    figure, axes = _canvas(8.0, 4.6)
    layers = [entry["layer"] for entry in figures["layers"]]
    values = [entry["auroc"] for entry in figures["layers"]]
    bounds = np.array([entry["auroc_ci"] or [entry["auroc"]] * 2 for entry in figures["layers"]])
    axes.errorbar(layers, values, yerr=np.abs(bounds.T - values), color=_BLUE, marker="o", capsize=3)
    labels: list[tuple[float, str, str]] = []
    levels = (("all layers", "ensemble", _BLUE), ("all layers + entropy", "with_entropy", _GREEN))
    for name, key, colour in levels:
        entry = figures[key]
        if entry and entry["auroc"] is not None:
            axes.axhline(entry["auroc"], color=colour, linewidth=1.6, zorder=0)
            labels.append((entry["auroc"], name, colour))
    for name, entry in figures["controls"].items():
        if entry["auroc"] is not None:
            axes.axhline(entry["auroc"], color=_GREY, linewidth=0.8, linestyle=":", zorder=0)
            labels.append((entry["auroc"], name, _GREY))
    axes.set(xlabel="layer (residual stream after this block)", ylabel="AUROC, finding wrong texts (test)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(layers) == 1:
        axes.set_xlim(layers[0] - 1, layers[0] + 1)
        axes.set_xticks(layers)
    _side_labels(axes, labels)
    _save(figure, path)


def _side_labels(axes: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Names of the level lines right of the axes, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    labels = sorted(labels)
    gap = (high - low) * 0.052
    places = [value for value, _, _ in labels]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    # Centre the stack on the lines it names rather than letting it only grow upwards.
    shift = float(np.mean(places) - np.mean([v for v, _, _ in labels])) if labels else 0.0
    right = axes.get_xlim()[1]
    for (value, name, colour), place in zip(labels, places, strict=True):
        axes.annotate(
            f"{name} {value:.2f}", xy=(right, value), xytext=(1.05, place - shift),
            textcoords=axes.get_yaxis_transform(), color=colour, fontsize=8, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)},
            annotation_clip=False,
        )  # fmt: skip


def _roc(path: Path, wrong: np.ndarray, scores: Mapping[str, np.ndarray]) -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    figure, axes = _canvas(5.2, 5.0)
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    for (name, values), colour in zip(scores.items(), (_BLUE, _GREEN, _ORANGE, _GREY), strict=False):
        false_alarms, hits, _ = roc_curve(wrong, values)
        axes.plot(false_alarms, hits, color=colour, label=f"{name} ({roc_auc_score(wrong, values):.2f})")
    axes.set(xlabel="right texts that fire", ylabel="wrong texts that fire", aspect="equal")
    axes.legend(frameon=False, loc="lower right", fontsize=8, title="test AUROC", title_fontsize=8)
    _save(figure, path)


def _reliability(path: Path, wrong: np.ndarray, probabilities: Mapping[str, np.ndarray]) -> None:
    figure, axes = _canvas(5.2, 5.0)
    axes.plot([0, 1], [0, 1], color=_GREY, linewidth=0.8, linestyle=":")
    for (name, values), colour in zip(probabilities.items(), (_BLUE, _GREEN), strict=False):
        # Tenths of the texts, not of the scale: every dot then rests on equally many.
        tenths = [part for part in np.array_split(np.argsort(values, kind="stable"), 10) if len(part)]
        said = [values[part].mean() for part in tenths]
        true = [wrong[part].mean() for part in tenths]
        axes.plot(said, true, color=colour, linewidth=1, marker="o", markersize=4, label=name)
    axes.set(xlabel="P(wrong) as predicted", ylabel="share wrong (test)", aspect="equal")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.legend(
        frameon=False, loc="upper left", fontsize=8, title="a dot is a tenth of the texts", title_fontsize=8
    )
    _save(figure, path)


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=130, metadata={"Software": None})
