"""AUROC and accuracy of every layer's head, by site, with the baselines as level lines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..controls import ENSEMBLE, WITH_ENTROPY
from .canvas import BASELINES, BLUE, GREEN, GREY, OTHERS, PROBER, Level, canvas, legend, levels, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANELS = (("auroc", "AUROC, finding wrong texts (test)"), ("accuracy", "accuracy (test)"))


def by_layer(path: Path, figures: Mapping[str, Any]) -> None:
    """One panel for AUROC, one for accuracy; bars are 95% intervals."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = canvas(9.0, 7.6, rows=2, sharex=True)
    for ax, (key, title) in zip(axes[:, 0], _PANELS, strict=True):
        for number, site in enumerate(figures["sites"]):
            _series(
                ax, [e for e in figures["layers"] if e["site"] == site], key, number, len(figures["sites"])
            )
        ax.set_ylabel(title)
    layers = sorted({entry["layer"] for entry in figures["layers"]})
    bottom = axes[1, 0]
    bottom.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
    bottom.set_xlabel("layer (after this block)")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
    legend(axes[0, 0], "above")
    levels([(ax, _levels(figures, key)) for ax, (key, _) in zip(axes[:, 0], _PANELS, strict=True)])
    save(figure, path)


def _series(ax: Axes, entries: list[Mapping[str, Any]], key: str, number: int, sites: int) -> None:
    known = [entry for entry in entries if entry[key] is not None]
    if not known:
        return
    styles = (PROBER, *OTHERS)
    colour, marker, _ = styles[number % len(styles)]
    aside = 0.16 * (number - (sites - 1) / 2)  # so that the bars of two sites do not hide each other
    values = np.array([entry[key] for entry in known])
    bounds = np.array([entry[f"{key}_ci"] or [entry[key]] * 2 for entry in known]).T
    ax.errorbar(
        [entry["layer"] + aside for entry in known], values, yerr=np.abs(bounds - values), color=colour,
        marker=marker, markersize=4.5, linewidth=1.3, elinewidth=0.9, capsize=2,
        label=f"{known[0]['site']}, head of each layer",
    )  # fmt: skip


def _levels(figures: Mapping[str, Any], key: str) -> list[Level]:
    found = []
    if len(figures["layers"]) > 1:
        found.append(_level(figures["ensemble"], key, ENSEMBLE, BLUE, strong=True))
    if figures["with_entropy"]:
        name = WITH_ENTROPY if len(figures["layers"]) > 1 else "with entropy"
        found.append(_level(figures["with_entropy"], key, name, GREEN, strong=True))
    # A constant decision has an accuracy worth comparing with, and no AUROC.
    names = BASELINES if key == "auroc" else ("majority", *(n for n in BASELINES if n != "shuffled labels"))
    found += [_level(figures["controls"][n], key, n, GREY) for n in names if n in figures["controls"]]
    return [level for level in found if level is not None]


def _level(
    entry: Mapping[str, Any], key: str, name: str, colour: str, *, strong: bool = False
) -> Level | None:
    return None if entry[key] is None else Level(entry[key], name, colour, strong)
