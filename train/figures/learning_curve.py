"""How the figures rise with the number of training groups (Probing-RAG, table 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..controls import ENSEMBLE
from .canvas import OTHERS, PROBER, Level, Style, canvas, legend, levels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (("auroc", "AUROC, finding wrong texts (test)"), ("accuracy", "accuracy (test)"))
#: The controls of the two panels; few, for the curve is what is shown.
_CONTROLS = ("entropies combined", "mean entropy", "bag of words, text", "question type", "embedding layer")


def learning_curve(path: Path, figures: Mapping[str, Any]) -> None:
    """AUROC and accuracy over training groups; bars are 95% intervals, level lines the baselines."""
    points = figures["learning_curve"]
    groups = np.array([point["groups"] for point in points], dtype=float)
    figure, axes = canvas(11.0, 4.4, columns=2)
    shown = [("layer", f"layer {figures['best_layer']}", PROBER, 1.0)]
    if len(figures["layers"]) > 1:
        best = f"best layer on validation ({figures['best_layer']})"
        shown = [("ensemble", ENSEMBLE, PROBER, 0.985), ("layer", best, OTHERS[0], 1.015)]
    for ax, (key, label) in zip(axes[0], _PANELS, strict=True):
        for which, name, style, aside in shown:
            _series(ax, groups * aside, [point[which] for point in points], key, name, style)
        ax.set(xscale="log", xlabel="training groups (texts)", ylabel=label)
        ax.set_xticks(groups, [f"{point['groups']}\n({point['n']})" for point in points])
        ax.minorticks_off()
    legend(axes[0, 0], "above")
    levels([(ax, _levels(figures, key)) for ax, (key, _) in zip(axes[0], _PANELS, strict=True)])
    save(figure, path)


def _levels(figures: Mapping[str, Any], key: str) -> list[Level]:
    names = ("majority", *_CONTROLS) if key == "accuracy" else _CONTROLS
    found = [(name, figures["controls"][name][key]) for name in names if name in figures["controls"]]
    return [Level(value, name) for name, value in found if value is not None]


def _series(
    ax: Axes, groups: np.ndarray, entries: list[Mapping[str, Any]], key: str, name: str, style: Style
) -> None:
    known = [i for i, entry in enumerate(entries) if entry[key] is not None]
    if not known:
        return
    values = np.array([entries[i][key] for i in known])
    bounds = np.array([entries[i][f"{key}_ci"] or [entries[i][key]] * 2 for i in known]).T
    ax.errorbar(
        groups[known], values, yerr=np.abs(bounds - values), color=style.colour, linewidth=1.3,
        elinewidth=0.9, marker=style.marker, markersize=4.5, capsize=2, label=name,
    )  # fmt: skip
