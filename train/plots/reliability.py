"""Is P(wrong) what it says: share of wrong texts by predicted probability."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from probers.metrics import ece

from .canvas import GREY, Series, canvas, legend, save


def reliability(path: Path, wrong: np.ndarray, probabilities: Sequence[Series]) -> None:
    """One line per set of probabilities, with its ECE.

    Args:
        path: of the PNG.
        wrong: (n,) 1 where the text is wrong.
        probabilities: P(wrong) of the same texts.
    """
    figure, axes = canvas(5.8, 5.6)
    ax = axes[0, 0]
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=0.9, linestyle=":")
    for name, values, style in probabilities:
        said, true = tenths(wrong, values)
        ax.plot(
            said, true, color=style.colour, linestyle=style.line, linewidth=1.2, marker=style.marker,
            markersize=4.5, clip_on=False, label=f"{ece(wrong, values):.2f}  {name}",
        )  # fmt: skip
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
