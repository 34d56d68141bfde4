"""Density of the heads' margins for right and wrong texts (Probing-RAG, figure 5)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from probers.metrics import auroc

from .canvas import BLUE, GREY, ORANGE, canvas, legend, save, title

_BINS = (10, 32)  # at least and at most


def logit_density(path: Path, wrong: np.ndarray, margins: Mapping[str, np.ndarray]) -> None:
    """One panel per head: histograms of both classes, each of area 1.

    Args:
        path: of the PNG.
        wrong: (n,) 1 where the text is wrong.
        margins: name of the head -> (n,) logit of "wrong" minus logit of "correct".
    """
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
        ax.axvline(0.0, color=GREY, linewidth=0.9, linestyle=":")
        ax.set_xlabel("margin: logit of wrong minus logit of correct")
        ax.set_xlim(edges[0], edges[-1])
        title(ax, f"{name} (AUROC {auroc(wrong, values):.2f})")
    axes[0, 0].set_ylabel("density (test)")
    axes[0, 0].margins(y=0.12)
    legend(axes[0, 0], "best")
    save(figure, path)
