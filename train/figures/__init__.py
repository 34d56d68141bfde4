"""Pictures of a prober, as PNG files without a display; here those of the figures in ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probers.bank.calibration import sigmoid

from ..controls import ENSEMBLE, SHUFFLED, WITH_ENTROPY
from ..evaluate import Evaluator
from ..report import layer_name
from .curves import (
    BLUE,
    ENTROPY,
    GREEN,
    GREY,
    OTHERS,
    PROBER,
    Level,
    Series,
    Style,
    canvas,
    coverage_risk,
    legend,
    levels,
    logit_density,
    reliability,
    roc_pr,
    save,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..assemble import Trained

__all__ = ["write_plots"]

#: Controls whose curves over the scores are shown beside the prober's.
_BESIDE = ("mean entropy", "bag of words, text")
#: Controls that are level lines; few on the learning curve, which is what is shown there.
_BY_LAYER = (
    "entropies combined", "mean entropy", "max entropy", "min probability", "sequence log-prob",
    "RIND maximum", "bag of words, text", "length", "question type", "embedding layer", SHUFFLED,
)  # fmt: skip
_ON_CURVE = ("entropies combined", "mean entropy", "bag of words, text", "question type", "embedding layer")
_PANELS = (("auroc", "AUROC, finding wrong texts (test)"), ("accuracy", "accuracy (test)"))


def write_plots(folder: Path, figures: Mapping[str, Any], trained: Trained, evaluator: Evaluator) -> None:
    """Write the pictures of one training run.

    ``auroc_by_layer.png``, ``roc_pr.png``, ``reliability.png``, ``logit_density.png``,
    ``coverage_risk.png``, and ``learning_curve.png`` where there is one.

    Args:
        folder: made when absent.
        figures: as in ``metrics.json``.
        trained: the prober and everything it is compared with.
        evaluator: of the examples; calibrates what brings no probability.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows, wrong = evaluator.test, evaluator.wrong
    names = dict(zip(trained.layers, (layer_name(figures, e) for e in figures["layers"]), strict=True))
    saved = trained.saved.scores[rows]
    scores = [Series(ENSEMBLE if len(names) > 1 else names[trained.best], saved, PROBER)]
    probabilities = [
        Series("before calibration", sigmoid(saved), OTHERS[0]),
        Series(f"after ({figures['calibration']['method']})", trained.bank.calibration(saved), PROBER),
    ]
    if trained.with_entropy is not None:
        detector = evaluator.calibrated(trained.with_entropy)
        assert detector.probability is not None
        name, values = _with_entropy(figures), detector.scores[rows]
        scores.append(Series(name, values, ENTROPY))
        probabilities.append(Series(name, detector.probability(values), ENTROPY))
    beside = [d for name in _BESIDE for d in trained.controls if d.name == name]
    scores += [Series(d.name, d.scores[rows], style) for d, style in zip(beside, OTHERS, strict=False)]

    _by_layer(folder / "auroc_by_layer.png", figures)
    roc_pr(folder / "roc_pr.png", wrong, scores)
    coverage_risk(folder / "coverage_risk.png", wrong, scores)
    reliability(folder / "reliability.png", wrong, probabilities)
    best = sorted(names, key=lambda column: -trained.validation[column]["auroc"])[:2]
    margins = {names[column]: trained.layers[column].scores[rows] for column in best}
    logit_density(folder / "logit_density.png", wrong, margins)
    if figures["learning_curve"]:
        _learning_curve(folder / "learning_curve.png", figures)


def _by_layer(path: Path, figures: Mapping[str, Any]) -> None:
    """AUROC and accuracy of every layer's head, by site; bars are 95% intervals, level lines the rest."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = canvas(9.0, 7.6, rows=2, sharex=True)
    sites = figures["sites"]
    together = figures["ensemble"] if len(figures["layers"]) > 1 else None
    panels = []
    for ax, (key, label) in zip(axes[:, 0], _PANELS, strict=True):
        for number, site in enumerate(sites):
            entries = [entry for entry in figures["layers"] if entry["site"] == site]
            aside = 0.16 * (number - (len(sites) - 1) / 2)  # so that two sites' bars do not hide each other
            places = [entry["layer"] + aside for entry in entries]
            name = f"{site}, head of each layer"
            _errorbars(ax, places, entries, key, name, (PROBER, *OTHERS)[number % (1 + len(OTHERS))])
        ax.set_ylabel(label)
        panels.append((ax, [
            *_level(together, key, ENSEMBLE, BLUE, strong=True),
            *_level(figures["with_entropy"], key, _with_entropy(figures), GREEN, strong=True),
            *_controls(figures, _BY_LAYER, key),
        ]))  # fmt: skip
    layers = sorted({entry["layer"] for entry in figures["layers"]})
    bottom = axes[1, 0]
    bottom.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
    bottom.set_xlabel("layer (after this block)")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
    legend(axes[0, 0], "above")
    levels(panels)
    save(figure, path)


def _learning_curve(path: Path, figures: Mapping[str, Any]) -> None:
    """AUROC and accuracy over training groups; bars are 95% intervals, level lines the baselines."""
    points = figures["learning_curve"]
    groups = np.array([point["groups"] for point in points], dtype=float)
    figure, axes = canvas(11.0, 4.4, columns=2)
    shown = [("layer", f"layer {figures['best_layer']}", PROBER, 1.0)]
    if len(figures["layers"]) > 1:
        best = f"best layer on validation ({figures['best_layer']})"
        shown = [("ensemble", ENSEMBLE, PROBER, 0.985), ("layer", best, OTHERS[0], 1.015)]
    panels = []
    for ax, (key, label) in zip(axes[0], _PANELS, strict=True):
        for which, name, style, aside in shown:
            _errorbars(ax, groups * aside, [point[which] for point in points], key, name, style)
        ax.set(xscale="log", xlabel="training groups (texts)", ylabel=label)
        ax.set_xticks(groups, [f"{point['groups']}\n({point['n']})" for point in points])
        ax.minorticks_off()
        panels.append((ax, _controls(figures, _ON_CURVE, key)))
    legend(axes[0, 0], "above")
    levels(panels)
    save(figure, path)


def _errorbars(
    ax: Axes, places: Sequence[float] | np.ndarray, entries: Sequence[Mapping[str, Any]], key: str,
    name: str, style: Style,
) -> None:  # fmt: skip
    """A figure of several entries with their 95% intervals; those where it is undefined are left out."""
    known = [i for i, entry in enumerate(entries) if entry[key] is not None]
    if not known:
        return
    values = np.array([entries[i][key] for i in known])
    bounds = np.array([entries[i][f"{key}_ci"] or [entries[i][key]] * 2 for i in known]).T
    ax.errorbar(
        np.asarray(places)[known], values, yerr=np.abs(bounds - values), color=style.colour,
        marker=style.marker, markersize=4.5, linewidth=1.3, elinewidth=0.9, capsize=2, label=name,
    )  # fmt: skip


def _level(
    entry: Mapping[str, Any] | None, key: str, name: str, colour: str = GREY, *, strong: bool = False
) -> list[Level]:
    """A figure of an entry as a level line; none where there is none."""
    return [] if entry is None or entry[key] is None else [Level(entry[key], name, colour, strong)]


def _controls(figures: Mapping[str, Any], names: Sequence[str], key: str) -> list[Level]:
    if key == "accuracy":  # a constant decision has an accuracy worth comparing with, and no AUROC
        names = ("majority", *(name for name in names if name != SHUFFLED))
    return [level for name in names for level in _level(figures["controls"].get(name), key, name)]


def _with_entropy(figures: Mapping[str, Any]) -> str:
    return WITH_ENTROPY if len(figures["layers"]) > 1 else "with entropy"
