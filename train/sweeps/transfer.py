"""Transfer: a prober of each store, tested on every store, as a table and a picture.

What a prober reaches on texts like its own says little about others: form, writer and unit differ. Rows are
what was trained on, columns what was tested on; test texts that a row's prober has trained on are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from probers.bank.bank import Prober
from probers.data.splits import Seen
from probers.evaluation import metrics
from probers.evaluation.bootstrap import Bootstrap, bounds, number
from probers.files import canonical_json, write_text
from probers.heads import is_joint
from probers.store.joined import Sources

from ..assemble import assemble, score_texts
from ..data import Dataset
from ..examples import Examples, SplitRequest, load_examples
from ..figures import canvas, save
from ..fit import fit, maker, probe_tasks
from ..settings import Train

log = logging.getLogger(__name__)

#: Name of the row of the prober that was trained on all stores.
ALL = "all of these"
_NAME, _CELL = 18, 20

#: Row -> column -> figures.
Matrix = dict[str, dict[str, dict[str, Any]]]


def each_alone(stores: Mapping[str, Sources], settings: Train) -> dict[str, Prober]:
    """Train a prober on each store, with the settings of the whole training and the first seed."""
    found = {}
    for name, (own_stores, beside) in stores.items():
        request = SplitRequest(settings.split, seed=settings.seed)
        dataset = Dataset.load(own_stores, settings.layer, request, beside)
        joint = is_joint(settings.head.kind)
        tasks = probe_tasks(dataset.columns, [settings.seed], joint=joint, beside=dataset.beside_places)
        log.info("training on %s alone", name)
        fitted = fit(maker(settings.head), tasks, dataset, settings)
        own = replace(settings, with_entropy=False)
        bank = assemble(fitted, dataset, own, controls=False, refuse=False).bank
        found[name] = replace(bank, seen=dataset.examples.seen())
    return found


def matrix(probers: Mapping[str, Prober], stores: Mapping[str, Sources], settings: Train) -> Matrix:
    """Test every prober on the test texts of every store.

    Returns:
        For each cell ``n``, ``wrong``, ``auroc`` with its 95% interval over groups, ``ece`` of P(wrong),
        ``fired`` at the prober's own threshold, and how many texts were ``seen`` and left out.
    """
    found: Matrix = {row: {} for row in probers}
    for column, (own_stores, beside) in stores.items():
        examples = load_examples([*own_stores, *beside], SplitRequest(settings.split, seed=settings.seed))
        for row, bank in probers.items():
            dataset = Dataset.load(own_stores, list(bank.layers), examples, beside)
            scores = score_texts(bank, dataset, bank.aggregate)
            found[row][column] = _cell(bank, examples, scores, settings)
    return found


def _cell(bank: Prober, examples: Examples, scores: np.ndarray, settings: Train) -> dict[str, Any]:
    test = examples.rows["test"]
    sides = examples.sides(bank.seen or Seen({}), "test")
    fresh = test[[side not in ("train", "validation") for side in sides]]
    wrong, own = examples.wrong[fresh], scores[fresh]
    figures: dict[str, Any] = {"n": len(fresh), "seen": len(test) - len(fresh)}
    if len(set(wrong.tolist())) < 2:
        return figures | {"wrong": None, "auroc": None, "auroc_ci": None, "ece": None, "fired": None}
    groups = examples.table["group"].to_numpy()[fresh]
    bootstrap = Bootstrap(groups, resamples=settings.resamples, seed=settings.seed)
    return (
        figures
        | bootstrap.interval(own, partial(metrics.auroc, wrong)).figures("auroc")
        | {
            "wrong": float(wrong.mean()), "ece": float(metrics.ece(wrong, bank.probability(own))),
            "fired": float((own > bank.threshold).mean()),
        }
    )  # fmt: skip


def write(found: Matrix, out: Path) -> None:
    """Write ``matrix.json`` and ``plots/matrix.png``."""
    write_text(out / "matrix.json", canonical_json(found))
    columns = list(next(iter(found.values())))
    figure, axes = canvas(1.6 + 0.95 * len(columns), 1.0 + 0.55 * len(found))
    ax = axes[0, 0]
    values = np.array([[cell["auroc"] or np.nan for cell in row.values()] for row in found.values()])
    ax.imshow(values, cmap="RdBu", vmin=0.2, vmax=0.8, aspect="auto")
    for place, value in np.ndenumerate(values):
        shown = "–" if np.isnan(value) else f"{value:.2f}"
        dark = not np.isnan(value) and abs(value - 0.5) > 0.22
        ax.text(place[1], place[0], shown, ha="center", va="center", color="white" if dark else "black")
    ax.set_xticks(range(len(columns)), columns, rotation=20, ha="right")
    ax.set_yticks(range(len(found)), list(found))
    ax.set_xlabel("tested on")
    ax.set_ylabel("trained on")
    ax.set_title("AUROC of wrong texts; 0.5 is chance", fontsize=9)
    save(figure, out / "plots" / "matrix.png")


def table(found: Matrix) -> str:
    """Tabulate AUROC with intervals, trained on down, tested on across."""
    columns = list(next(iter(found.values())))
    lines = ["AUROC, trained on (down) x tested on (across)"]
    for start in range(0, len(columns), 4):
        some = columns[start : start + 4]
        lines.append(f"{'':{_NAME}}" + "".join(f"{name[: _CELL - 1]:{_CELL}}" for name in some).rstrip())
        for row, cells in found.items():
            shown = (f"{number(cells[c]['auroc'])} {bounds(cells[c]['auroc_ci'])}" for c in some)
            lines.append(f"{row[: _NAME - 1]:{_NAME}}" + "".join(f"{c:{_CELL}}" for c in shown).rstrip())
    return "\n".join(lines)
