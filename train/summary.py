"""The figures of a training run as ``metrics.json`` and as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from probers import metrics

from .data import Examples
from .evaluate import Evaluator, as_figures, split_sizes
from .fit import Fitted
from .prober import ENSEMBLE, WITH_ENTROPY, Trained

_SCHEMA = 1


def summarise(trained: Trained, fitted: Fitted, examples: Examples, evaluator: Evaluator) -> dict[str, Any]:
    """All test figures, ready for JSON.

    ``layers`` is a list of ``{"layer", "validation": {..}, "auroc", "auroc_ci", ...}``;
    ``ensemble``, ``with_entropy`` and every entry of ``controls`` have the same figures;
    ``conditions`` and ``pairs`` hold AUROCs within conditions and paired differences.
    """
    everything = [*trained.layers.values(), *trained.ensemble, *trained.controls]
    bar = tqdm(everything, desc="test figures", unit="detector", leave=False)
    figures = {detector.name: evaluator.figures(detector) for detector in bar}
    validation = {
        task.layer: {
            "accuracy": float(fitted.accuracy[i]),
            "loss": float(fitted.loss[i]),
            "auroc": float(fitted.auroc[i]),
        }
        for i, task in enumerate(fitted.tasks)
        if task.target == "correct"
    }
    ours, controls = trained.ensemble, [d for d in trained.controls if d.wrong is None]
    return {
        "schema": _SCHEMA,
        "splits": split_sizes(examples),
        "best_layer": trained.best_layer,
        "layers": [
            {"layer": k, "validation": validation[k], **figures[d.name]} for k, d in trained.layers.items()
        ],
        "ensemble": figures[ours[0].name],
        "with_entropy": figures[ours[1].name] if len(ours) > 1 else None,
        "controls": {d.name: figures[d.name] for d in trained.controls},
        "positive_control": _positive_control(trained, examples, evaluator),
        "conditions": evaluator.by_condition([*ours, *controls]),
        "pairs": evaluator.pairs(ours[:1], controls) | evaluator.pairs(ours[1:], [ours[0], *controls]),
        "training": {"steps": fitted.steps, "heads": len(fitted.tasks)},
        "notes": trained.notes,
    }


def table(figures: Mapping[str, Any]) -> str:
    """Layers, ensemble and controls with AUROC and accuracy, one line each."""
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for entry in figures["layers"]:
        star = " *" if entry["layer"] == figures["best_layer"] and len(figures["layers"]) > 1 else ""
        rows.append((f"layer {entry['layer']}{star}", entry))
    if len(rows) > 1:  # the sum over one layer is that layer
        rows.append((ENSEMBLE, figures["ensemble"]))
    if figures["with_entropy"]:
        rows.append((WITH_ENTROPY, figures["with_entropy"]))
    test = figures["splits"]["test"]
    lines = [
        f"test: {test['n']} examples, {test['groups']} groups, {test['wrong']:.0%} wrong; "
        "finding wrong ones, 95% intervals",
        f"{'':24}{'AUROC':>6}  {'':13}{'AUPRC':>6}{'acc.':>7}{'ECE':>7}",
        *(_line(name, entry) for name, entry in rows),
        "controls",
        *(_line(name, entry) for name, entry in figures["controls"].items()),
    ]
    positive = figures["positive_control"]
    if positive:
        lines.append(
            f"positive control, is the answer a person: AUROC {positive['auroc']:.2f}, "
            f"accuracy {positive['accuracy']:.2f}"
        )
    if len(figures["layers"]) > 1:
        lines.append(f"* best layer on validation: {figures['best_layer']}")
    return "\n".join([*lines, *(f"note: {note}" for note in figures["notes"])])


def _line(name: str, entry: Mapping[str, Any]) -> str:
    return (
        f"  {name:22}{_figure(entry['auroc']):>6}  {_bounds(entry['auroc_ci']):13}"
        f"{_figure(entry['auprc']):>6}{_figure(entry['accuracy']):>7}{_figure(entry['ece']):>7}"
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bounds(ci: list[float] | None) -> str:
    return "" if ci is None else f"[{ci[0]:.2f}, {ci[1]:.2f}]"


def _positive_control(trained: Trained, examples: Examples, evaluator: Evaluator) -> dict[str, Any] | None:
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
