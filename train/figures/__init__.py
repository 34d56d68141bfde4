"""Pictures of a prober, as PNG files without a display."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probers.bank.calibration import sigmoid

from ..controls import ENSEMBLE, WITH_ENTROPY
from ..data import Examples
from ..evaluate import Evaluator
from ..tables import layer_name
from .by_layer import by_layer
from .canvas import ENTROPY, OTHERS, PROBER, Series
from .detection import coverage_risk, logit_density, reliability, roc_pr
from .learning_curve import learning_curve

if TYPE_CHECKING:
    from ..assemble import Trained

__all__ = ["write_plots"]

#: The controls whose curves are shown beside the prober's.
_CONTROLS = ("mean entropy", "bag of words, text")


def write_plots(
    folder: Path, figures: Mapping[str, Any], trained: Trained, examples: Examples, evaluator: Evaluator
) -> None:
    """Write the pictures of one training run.

    ``auroc_by_layer.png``, ``roc_pr.png``, ``reliability.png``, ``logit_density.png``,
    ``coverage_risk.png``, and ``learning_curve.png`` where there is one.

    Args:
        folder: made when absent.
        figures: as in ``metrics.json``.
        trained: the prober and everything it is compared with.
        examples: for the test labels.
        evaluator: calibrates what brings no probability.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = examples.rows["test"]
    wrong = examples.wrong[rows]
    names = dict(zip(trained.layers, (layer_name(figures, e) for e in figures["layers"]), strict=True))
    saved = trained.ensembles[trained.bank.combine].scores[rows]
    title = ENSEMBLE if len(names) > 1 else names[trained.best]
    scores = [Series(title, saved, PROBER)]
    probabilities = [
        Series("before calibration", sigmoid(saved), OTHERS[0]),
        Series(f"after ({figures['calibration']['method']})", trained.bank.calibration(saved), PROBER),
    ]
    if trained.with_entropy is not None:
        detector = evaluator.calibrated(trained.with_entropy)
        assert detector.probability is not None
        name = WITH_ENTROPY if len(names) > 1 else "with entropy"
        scores.append(Series(name, detector.scores[rows], ENTROPY))
        probabilities.append(Series(name, detector.probability(detector.scores[rows]), ENTROPY))
    controls = {d.name: d.scores[rows] for d in trained.controls}
    shown = [name for name in _CONTROLS if name in controls]
    scores += [Series(name, controls[name], style) for name, style in zip(shown, OTHERS, strict=False)]

    by_layer(folder / "auroc_by_layer.png", figures)
    roc_pr(folder / "roc_pr.png", wrong, scores)
    coverage_risk(folder / "coverage_risk.png", wrong, scores)
    reliability(folder / "reliability.png", wrong, probabilities)
    best = sorted(names, key=lambda column: -trained.validation[column]["auroc"])[:2]
    logit_density(
        folder / "logit_density.png", wrong, {names[c]: trained.layers[c].scores[rows] for c in best}
    )
    if figures["learning_curve"]:
        learning_curve(folder / "learning_curve.png", figures)
