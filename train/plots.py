"""Pictures of a prober, as PNG files without a display; ``wrong`` (n,) and scores are of the same n texts."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from probers.evaluation.metrics import auprc, auroc, ece, risk_coverage
from probers.prober.calibration import sigmoid
from probers.prober.figures import EMBEDDING, ENSEMBLE, SHUFFLED, Decision, Figures, Words
from probers.prober.report import layer_name, of_words

from .assemble import Trained
from .evaluate import Evaluator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by colour-blind readers.
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"
GREY = "#666666"

#: Options of matplotlib for a line.
Style: TypeAlias = dict[str, Any]

#: Looks of the prober, the prober with entropy, and other detectors, the same in every picture; markers and
#: lines differ too, for pictures printed in grey.
PROBER = {"color": BLUE, "marker": "o", "linestyle": "-"}
ENTROPY = {"color": GREEN, "marker": "^", "linestyle": "-"}
OTHERS = (
    {"color": ORANGE, "marker": "s", "linestyle": "--"}, {"color": PURPLE, "marker": "D", "linestyle": "-."},
    {"color": SKY, "marker": "v", "linestyle": ":"},
)  # fmt: skip
_CURVE: Style = {"marker": "", "linewidth": 1.4}

_FONT = 8.5

#: Name of a detector, its scores or probabilities (n,), and its look.
Series: TypeAlias = tuple[str, np.ndarray, Style]


def canvas(width: float, height: float, *, columns: int = 1, rows: int = 1, **options: Any) -> Any:
    """Make a figure of so many inches and its axes as an array (rows, columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=_FONT)
        ax.xaxis.label.set_size(_FONT + 0.5)
        ax.yaxis.label.set_size(_FONT + 0.5)
    return figure, axes


def legend(ax: Axes, where: str, **options: Any) -> None:
    """Draw a legend without a frame in one corner, or "beside" the axes."""
    place: Any = (
        {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)} if where == "beside" else {"loc": where}
    )
    ax.legend(**place, **options, frameon=False, fontsize=_FONT, title_fontsize=_FONT)


def write_png(figure: Figure, path: Path) -> None:
    """Write a PNG that holds no date or version, so that the same run gives the same bytes."""
    figure.savefig(path, dpi=130, metadata={"Software": None})


_DOTTED: Style = {"color": GREY, "linewidth": 0.9, "linestyle": ":"}


def roc_pr(path: Path, wrong: np.ndarray, scores: Sequence[Series], words: Words) -> None:
    """Draw both curves with their areas; dotted lines are a score by chance."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    figure, ((left, right),) = canvas(9.6, 5.0, columns=2)
    rate = float(wrong.mean())
    left.plot([0, 1], [0, 1], **_DOTTED)
    right.axhline(rate, **_DOTTED)
    for name, values, style in scores:
        false_alarms, hits, _ = roc_curve(wrong, values)
        left.plot(false_alarms, hits, label=f"{auroc(wrong, values):.2f}  {name}", **style | _CURVE)
        precision, recall, _ = precision_recall_curve(wrong, values)
        # Without the point at recall 0, which is a convention and no threshold's.
        label = f"{auprc(wrong, values):.2f}  {name}"
        right.plot(recall[:-1], precision[:-1], label=label, drawstyle="steps-post", **style | _CURVE)
    recall = f"{words.texts} texts that fire (recall)"
    left.set(xlabel=f"{words.others} texts that fire (false positive rate)", ylabel=recall)
    right.set(xlabel=recall, ylabel=f"share {words.texts} of those that fire (precision)")
    for ax, text in ((left, "ROC"), (right, "precision-recall")):
        ax.set(xlim=(0, 1), ylim=(0, 1.005))
        ax.set_title(text, fontsize=_FONT + 1)
    beyond, edge = (0.01, "bottom") if rate < 0.1 else (-0.015, "top")
    right.annotate(f"base rate {rate:.2f}", xy=(0.02, rate + beyond), va=edge, color=GREY, fontsize=8)
    legend(left, "lower right", title="AUROC (test)")
    legend(right, "lower left" if rate > 0.3 else "upper right", title="AUPRC (test)")
    write_png(figure, path)


#: Fewest texts kept: of fewer, the share of wrong ones jumps about and hides the rest.
_KEPT = 10


def coverage_risk(path: Path, wrong: np.ndarray, scores: Sequence[Series], words: Words) -> None:
    """Draw the share of wrong texts among those kept, by the share kept, lowest score first.

    It lies between an oracle, which rejects all wrong texts first, and a random order. The legend has
    the mean risk over all coverages, of which PRR is a rescaling.
    """
    figure, ((ax,),) = canvas(7.6, 4.8)
    rate = float(wrong.mean())
    ax.axhline(rate, **_DOTTED, label=f"{rate:.2f}  random order")
    for name, values, style in scores:
        coverage, risk = risk_coverage(wrong, values)
        shown = coverage * len(wrong) >= min(_KEPT, len(wrong))
        ax.plot(coverage[shown], risk[shown], label=f"{risk.mean():.2f}  {name}", **style | _CURVE)
    coverage, risk = risk_coverage(wrong, wrong)
    ax.plot(coverage, risk, color=GREY, linewidth=0.9, label=f"{risk.mean():.2f}  oracle")
    ax.set(xlim=(0, 1), ylim=(0, None), xlabel="coverage: share of texts kept, lowest score first")
    ax.set_ylabel(f"risk: share {words.texts} of those kept")
    legend(ax, "beside", title="mean risk (test)")
    write_png(figure, path)


def reliability(path: Path, wrong: np.ndarray, probabilities: Sequence[Series], words: Words) -> None:
    """Draw a line per set of probabilities P(wrong), with its ECE."""
    figure, ((ax,),) = canvas(5.8, 5.6)
    ax.plot([0, 1], [0, 1], **_DOTTED)
    for name, values, style in probabilities:
        label, look = f"{ece(wrong, values):.2f}  {name}", style | {"linewidth": 1.2, "markersize": 4.5}
        ax.plot(*tenths(wrong, values), clip_on=False, label=label, **look)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", ylabel=f"share {words.texts} of that tenth (test)")
    ax.set_xlabel(f"{words.probability} as predicted, mean of a tenth of the texts")
    legend(ax, "upper left", title="ECE (test)")
    write_png(figure, path)


def tenths(wrong: np.ndarray, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean probability and share wrong of each tenth of the texts (not of the scale), by probability."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, 10) if len(part)]
    return np.array([probability[p].mean() for p in parts]), np.array([wrong[p].mean() for p in parts])


def logit_density(path: Path, wrong: np.ndarray, margins: Mapping[str, np.ndarray], words: Words) -> None:
    """Draw histograms of both classes' margins (n,), each of area 1, in a panel per head, by its name."""
    bins = int(np.clip(np.sqrt(len(wrong)), 10, 32))
    figure, axes = canvas(4.8 * len(margins), 4.0, columns=len(margins))
    for ax, (name, values) in zip(axes[0], margins.items(), strict=True):
        # A few far outliers would squeeze everything else into a bar; they are counted at the edge.
        low, high = np.quantile(values, [0.002, 0.998])
        edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
        for kind, label, colour in ((0, f"{words.others} texts", BLUE), (1, f"{words.texts} texts", ORANGE)):
            part = np.clip(values[wrong == kind], edges[0], edges[-1])
            look = {"density": True, "color": colour}
            ax.hist(part, edges, **look, histtype="stepfilled", alpha=0.25)
            line = "--" if kind else "-"
            ax.hist(part, edges, **look, histtype="step", linewidth=1.5, linestyle=line, label=label)
        ax.axvline(0.0, **_DOTTED)
        ax.set_xlabel(f"margin: logit of {words.texts} minus logit of {words.others}")
        ax.set_xlim(edges[0], edges[-1])
        ax.set_title(f"{name} (AUROC {auroc(wrong, values):.2f})", fontsize=_FONT + 1)
    axes[0, 0].set_ylabel("density (test)")
    axes[0, 0].margins(y=0.12)
    legend(axes[0, 0], "best")
    write_png(figure, path)


#: Controls with curves beside the prober's.
_BESIDE = ("mean entropy", "bag of words, text")
#: Controls that are level lines, and the dashes of each.
_LEVELS: dict[str, Any] = {
    "entropies combined": "-", "mean entropy": "--", "bag of words, text": "-.", EMBEDDING: ":",
    SHUFFLED: (0, (1, 5)), "majority": (0, (5, 5)),
}  # fmt: skip
_PANELS = (("auroc", "AUROC, finding {} texts (test)"), ("accuracy", "accuracy (test)"))


class Pictures(UserDict[str, bytes]):
    """PNG files by name, made by :func:`write_plots` when first looked at, in a second or two."""

    def __init__(self, *run: Any) -> None:
        self._run = run

    @cached_property
    def data(self) -> dict[str, bytes]:  # type: ignore[override]
        with TemporaryDirectory() as folder:
            write_plots(Path(folder), *self._run)
            self._run = ()  # which holds every text's scores
            return {file.name: file.read_bytes() for file in sorted(Path(folder).iterdir())}


def write_plots(folder: Path, figures: Figures, trained: Trained, evaluator: Evaluator) -> None:
    """Write the pictures of one training run."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, wrong, words = evaluator.test, evaluator.wrong, figures.words
    names = dict(zip(trained.layers, (layer_name(figures, e) for e in figures.layers), strict=True))
    saved = trained.saved.scores[rows]
    scores: list[Series] = [(ENSEMBLE if len(names) > 1 else names[trained.best], saved, PROBER)]
    probabilities: list[Series] = [
        ("before calibration", sigmoid(saved), OTHERS[0]),
        (f"after ({figures.calibration.method})", trained.bank.calibration(saved), PROBER),
    ]
    if trained.with_entropy is not None:
        detector, name = evaluator.calibrated(trained.with_entropy), figures.joined
        assert detector.probability is not None
        values = detector.scores[rows]
        scores.append((name, values, ENTROPY))
        probabilities.append((name, detector.probability(values), ENTROPY))
    beside = [d for name in _BESIDE for d in trained.controls if d.name == name]
    scores += [(of_words(d.name), d.scores[rows], style) for d, style in zip(beside, OTHERS, strict=False)]

    _by_layer(folder / "auroc_by_layer.png", figures)
    roc_pr(folder / "roc_pr.png", wrong, scores, words)
    coverage_risk(folder / "coverage_risk.png", wrong, scores, words)
    reliability(folder / "reliability.png", wrong, probabilities, words)
    best = sorted(names, key=lambda column: -trained.validation[column]["auroc"])[:2]
    margins = {names[column]: trained.layers[column].scores[rows] for column in best}
    logit_density(folder / "logit_density.png", wrong, margins, words)
    if figures.learning_curve:
        _learning_curve(folder / "learning_curve.png", figures)


def _by_layer(path: Path, figures: Figures) -> None:
    from matplotlib.ticker import MaxNLocator

    figure, axes = canvas(9.0, 7.6, rows=2, sharex=True)
    together = figures.ensemble if len(figures.layers) > 1 else None
    for ax, (key, label) in zip(axes[:, 0], _PANELS, strict=True):
        for number, site in enumerate(figures.sites):
            entries = [entry for entry in figures.layers if entry.site == site]
            aside = 0.16 * (number - (len(figures.sites) - 1) / 2)  # two sites' bars do not hide each other
            style = (PROBER, *OTHERS)[number % (1 + len(OTHERS))]
            places, name = [entry.layer + aside for entry in entries], "head of each layer"
            if ends := entries[0].together:
                places, name = [(ends[0] + ends[-1]) / 2 + aside], "one head of these layers"
                values = [e.get(key) for e in entries if e.get(key) is not None]
                ax.hlines(values, ends[0], ends[-1], style["color"])
            _errorbars(ax, places, entries, key, f"{site}, {name}", style)
        ax.set_ylabel(label.format(figures.words.texts))
        main = ((ENSEMBLE, together, BLUE), (figures.joined, figures.with_entropy, GREEN))
        lines = [(name, entry, {"color": colour, "linewidth": 1.6}) for name, entry, colour in main]
        _levels(ax, key, [*lines, *_controls(figures)])
    layers = sorted({k for entry in figures.layers for k in entry.together or [entry.layer]})
    bottom = axes[1, 0]
    bottom.set(xlim=(layers[0] - 0.6, layers[-1] + 0.6), xlabel="layer (after this block)")
    bottom.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True, min_n_ticks=1))
    write_png(figure, path)


def _learning_curve(path: Path, figures: Figures) -> None:
    points = figures.learning_curve
    groups = np.array([point.groups for point in points], dtype=float)
    figure, axes = canvas(11.0, 4.4, columns=2)
    shown = [("layer", layer_name(figures, figures.layers[0]), PROBER, 1.0)]
    if len(figures.layers) > 1:
        best = f"best layer on validation ({figures.best_layer})"
        shown = [("ensemble", ENSEMBLE, PROBER, 0.985), ("layer", best, OTHERS[0], 1.015)]
    for ax, (key, label) in zip(axes[0], _PANELS, strict=True):
        for which, name, style, aside in shown:
            _errorbars(ax, groups * aside, [point.get(which) for point in points], key, name, style)
        ax.set(xscale="log", xlabel="training groups (texts)", ylabel=label.format(figures.words.texts))
        ax.set_xticks(groups, [f"{point.groups}\n({point.n})" for point in points])
        ax.minorticks_off()
        _levels(ax, key, _controls(figures))
    write_png(figure, path)


def _errorbars(
    ax: Axes, places: Sequence[float] | np.ndarray, entries: Sequence[Decision], key: str, name: str,
    style: Style,
) -> None:  # fmt: skip
    """Draw the defined figures of several entries with their 95% intervals."""
    if not (known := [i for i, entry in enumerate(entries) if entry.get(key) is not None]):
        return
    values = np.array([entries[i].get(key) for i in known])
    bounds = np.array([entries[i].get(f"{key}_ci") or [entries[i].get(key)] * 2 for i in known]).T
    ax.errorbar(
        np.asarray(places)[known], values, yerr=np.abs(bounds - values), label=name,
        **style | {"linestyle": "-", "markersize": 4.5, "linewidth": 1.3, "elinewidth": 0.9, "capsize": 2},
    )  # fmt: skip


def _levels(ax: Axes, key: str, levels: Iterable[tuple[str, Decision | None, Style]]) -> None:
    """Draw the defined figures of entries as horizontal lines, and the legend of all lines beside them."""
    for name, entry, style in levels:
        # A constant decision has an accuracy worth comparing with; shuffled labels have one of their own.
        if (
            (name != SHUFFLED or key == "auroc")
            and entry is not None
            and (value := entry.get(key)) is not None
        ):
            ax.axhline(value, label=f"{value:.2f}  {name}", **style, zorder=0)
    legend(ax, "beside")


def _controls(figures: Figures) -> list[tuple[str, Decision | None, Style]]:
    look: Style = {"color": GREY, "linewidth": 0.8}
    return [(of_words(n), figures.controls.get(n), look | {"linestyle": line}) for n, line in _LEVELS.items()]
