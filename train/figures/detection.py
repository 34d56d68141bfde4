"""How well scores detect wrong texts: ROC, precision and recall, coverage and risk, reliability, density.

``path`` is the PNG's; ``wrong`` (n,) is 1 where a text is wrong; everything else is of the same n
texts, and of a score, higher is more likely wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probers.evaluation.metrics import auprc, auroc, ece, risk_coverage

from .canvas import BLUE, GREY, ORANGE, Series, canvas, legend, save, title

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
