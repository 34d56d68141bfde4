"""The figures of a training run, as ``metrics.json`` holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from probers import metrics
from probers.calibration import sigmoid

from .controls import ENSEMBLE, SHUFFLED, WITH_ENTROPY, Detector
from .data import Examples
from .evaluate import Evaluator, Figures, as_figures, split_sizes

if TYPE_CHECKING:
    from .prober import Trained

_SCHEMA = 1


def summarise(
    trained: Trained, examples: Examples, evaluator: Evaluator, training: Mapping[str, Any]
) -> dict[str, Any]:
    """All test figures, ready for JSON.

    ``layers`` is a list of ``{"site", "layer", "validation": {..}, "auroc", "auroc_ci", ..,
    "seeds"}``; every entry of ``ensembles`` and ``controls``, ``ensemble`` (the saved one),
    ``with_entropy``, and every detector within ``conditions`` and ``datasets`` has the same
    figures. ``pairs`` are paired differences in AUROC; ``calibration`` is of the saved score.

    Args:
        trained: the prober and everything it is compared with.
        examples: rows and splits.
        evaluator: of these examples.
        training: figures of the training itself (steps, heads, ..), passed on.
    """
    bar = tqdm(total=_detectors(trained), desc="test figures", unit="detector", leave=False)

    def figures(detector: Detector) -> Figures:
        found = evaluator.figures(detector)
        bar.update()
        return found

    layers = {column: figures(detector) for column, detector in trained.layers.items()}
    ensembles = {kind: figures(detector) for kind, detector in trained.ensembles.items()}
    saved = replace(trained.ensembles[trained.bank.combine], name=ENSEMBLE)
    ours, overall = [saved], {ENSEMBLE: ensembles[trained.bank.combine]}
    if trained.with_entropy is not None:
        ours.append(replace(trained.with_entropy, name=WITH_ENTROPY))
        overall[WITH_ENTROPY] = figures(ours[1])
    controls = {d.name: figures(d) for d in trained.controls}
    _flag_chance(controls)
    true = [d for d in trained.controls if d.wrong is None]
    compared = [*ours, *true]
    overall |= {d.name: controls[d.name] for d in true}
    curve = [
        {
            "share": point.share, "n": point.n, "groups": point.groups,
            "layer": figures(point.layer), "ensemble": figures(point.ensemble),
        }
        for point in trained.curve
    ]  # fmt: skip
    bar.close()
    best_site, best_layer = trained.best
    return {
        "schema": _SCHEMA,
        "splits": split_sizes(examples),
        "best_layer": best_layer,
        "best_site": best_site,
        "sites": list(dict.fromkeys(site for site, _ in trained.layers)),
        "layers": [
            {"site": site, "layer": layer, "validation": dict(trained.validation[column])}
            | layers[column]
            | {"seeds": _spread(trained.seeds.get(column), examples)}
            for column in trained.layers
            for site, layer in [column]
        ],
        "ensembles": ensembles,
        "ensemble": overall[ENSEMBLE],
        "combine": trained.bank.combine,
        "with_entropy": overall.get(WITH_ENTROPY),
        "controls": controls,
        "positive_control": _positive_control(trained, examples, evaluator),
        "conditions": evaluator.by("condition", compared, overall),
        "datasets": evaluator.by("dataset", compared, overall),
        "calibration": _calibration(trained, examples, evaluator),
        "learning_curve": curve,
        "pairs": evaluator.pairs(ours[:1], true) | evaluator.pairs(ours[1:], [saved, *true]),
        "training": dict(training),
        "notes": list(trained.notes),
    }


def _detectors(trained: Trained) -> int:
    return (
        len(trained.layers) + len(trained.ensembles) + (trained.with_entropy is not None)
        + len(trained.controls) + 2 * len(trained.curve)
    )  # fmt: skip


def _flag_chance(controls: dict[str, Figures]) -> None:
    """Say of the shuffled labels whether their interval holds 0.5, as it must 19 times in 20."""
    entry = controls.get(SHUFFLED)
    if entry is not None:
        low, high = entry["auroc_ci"] or (0.0, 1.0)
        entry["at_chance"] = bool(low <= 0.5 <= high)


def _spread(scores: np.ndarray | None, examples: Examples) -> Figures | None:
    """Test AUROC of every seed's head, their mean and standard deviation (n - 1)."""
    if scores is None or len(scores) < 2:
        return None
    rows = examples.rows["test"]
    found = [float(metrics.auroc(examples.wrong[rows], one[rows])) for one in scores]
    return {"auroc": found, "mean": float(np.mean(found)), "std": float(np.std(found, ddof=1))}


def _calibration(trained: Trained, examples: Examples, evaluator: Evaluator) -> Figures:
    """ECE and Brier score of the saved score before and after calibration, and of the other kind."""
    scores = trained.ensembles[trained.bank.combine].scores[examples.rows["test"]]
    method = str(trained.bank.calibration.to_dict()["method"])
    others = {kind: fitted for kind, fitted in trained.calibrations.items() if kind != method}
    return {
        "method": method,
        "before": evaluator.probabilities(sigmoid(scores)),
        "after": evaluator.probabilities(trained.bank.calibration(scores)),
        "other": {kind: evaluator.probabilities(fitted(scores)) for kind, fitted in others.items()},
    }


def _positive_control(trained: Trained, examples: Examples, evaluator: Evaluator) -> Figures | None:
    """Test AUROC and accuracy (at margin 0) of "is the answer a person"."""
    if trained.person is None:
        return None
    rows = examples.rows["test"]
    other = (examples.table["answer_kind"].to_numpy()[rows] != "person").astype(int)
    margins = trained.person[rows]
    bootstrap = evaluator.bootstrap
    auroc = bootstrap.interval(margins, partial(metrics.auroc, other))
    accuracy = bootstrap.interval((margins > 0).astype(float), partial(metrics.accuracy, other))
    return (
        as_figures("auroc", auroc)
        | as_figures("accuracy", accuracy)
        | {"base_rate": float(np.mean(1 - other))}
    )
