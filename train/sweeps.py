"""Additional probers of one training: of fewer texts, of fewer layers, and of each store, tested on all.

Those of fewer texts and layers equal the probers of separate trainings: no head depends on another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from probers.data.splits import Seen
from probers.evaluation import metrics
from probers.evaluation.bootstrap import Bootstrap, bounded, few_groups
from probers.files import canonical_json, write_text
from probers.prober.prober import Prober
from probers.store.joined import Sources
from probers.types import UserError

from .assemble import CurvePoint, Trained, assemble, score_texts
from .data import Dataset
from .examples import Examples, SplitRequest, load_examples
from .heads import Fitted, MakeHead, Task, file_of, joins_layers, probe_tasks, save, train_heads
from .plots import canvas, write_png
from .settings import Assembling, Train

log = logging.getLogger(__name__)

#: Default points of the learning curve: a number of texts, and shares of all texts.
_TEXTS, _SHARES = 1000, (0.25, 0.5)


def sizes_of(sizes: Sequence[int], whole: Examples, *, curve: bool, seed: int) -> dict[int, Examples]:
    """Map each size to examples with at most that many training texts, smallest first.

    Without sizes they are those of a learning ``curve``, if wanted. UserError for a size beyond the training
    texts, below the first group, or whose texts have the same label.
    """
    texts = len(whole.rows["train"])
    if sizes and max(sizes) > texts:
        raise UserError(f"sizes names {max(sizes)}, and {texts} training texts are there: give no more")
    points = (_TEXTS, *(round(share * texts) for share in _SHARES)) if curve else ()
    wanted = set(sizes) or {n for n in points if 0 < n < texts}
    parts = {size: whole.training_part(size, seed) for size in sorted(wanted)}
    for size in sizes:
        if (of := len(parts[size].rows["train"])) > size:
            raise UserError(f"sizes={size}: the group drawn first has {of} texts; give {of} at least")
        if _of_one_label(parts[size]):
            raise UserError(f"sizes={size}: the texts drawn have the same label; give more", code="labels")
    return parts


def sets_of(
    layer_sets: Sequence[int | Sequence[int] | Literal["each"]], layers: Sequence[int]
) -> list[tuple[int, ...]]:
    """List the sets of trained layers that are asked for, without duplicates."""
    sets: list[tuple[int, ...]] = []
    for given in layer_sets:
        if given == "each":
            sets += [(layer,) for layer in layers]
            continue
        wanted = {given} if isinstance(given, int) else set(given)
        if not wanted <= set(layers) or not wanted:
            fix = f"name at least one layer, and only trained ones, {', '.join(map(str, layers))}"
            raise UserError(f"layer_sets={given}: {fix}", code="layers")
        sets.append(tuple(sorted(wanted)))
    return list(dict.fromkeys(sets))


class SweptProber(NamedTuple):
    """An additional prober; ``folder`` is below that of the training, as ``sizes/1000`` or ``layers/2-4``."""

    folder: str
    about: str
    trained: Trained
    examples: Examples


#: Trains the heads of some tasks on a data set; a name may follow, of an additional training.
Fitter = Callable[..., Fitted]


def fit_part(
    fitter: Fitter, tasks: Sequence[Task], dataset: Dataset, fewer: Mapping[int, Examples], out: Path
) -> None:
    """Train a part's heads, those of fewer texts as well, and write them to its folder."""
    save(fitter(tasks, dataset), out / file_of(""))
    # For fewer texts those of every site, as any may turn out best in the whole.
    first = min(task.seed for task in tasks)
    probes = list(dict.fromkeys(replace(task, seed=first) for task in tasks if task.is_probe))
    texts = len(dataset.examples.rows["train"])
    for size, examples in fewer.items():
        if len(examples.rows["train"]) < texts and not _of_one_label(examples):
            what = f"{size}-texts"
            save(fitter(probes, replace(dataset, examples=examples), what), out / file_of(what))


def of_sizes(
    fitter: Fitter, trained: Trained, dataset: Dataset, fewer: Mapping[int, Examples], how: Train
) -> tuple[Trained, list[SweptProber]]:
    """Add its learning curve to the prober (Probing-RAG, table 3), and make the probers of ``sizes``.

    Only the training texts differ, not the number of passes, so that fewer texts take fewer steps.
    """
    whole, notes, texts = dataset.examples, list(trained.notes), len(dataset.examples.rows["train"])
    tasks = [Task(c, seed=how.seed) for c in trained.layers if c.site == trained.best.site]
    curve, probers = list[tuple[Trained, Examples]](), list[SweptProber]()
    for size, examples in fewer.items():
        n = len(examples.rows["train"])
        if _of_one_label(examples):
            notes.append(f"{n} training texts are not on the learning curve: all have the same label")
            continue
        smaller = trained
        if n < texts:
            part = replace(dataset, examples=examples)
            fitted = fitter(tasks, part, f"{size}-texts")
            smaller = assemble(fitted, part, how, controls=bool(how.sizes), refuse=False)
            curve.append((smaller, examples))
        if how.sizes:
            probers.append(SweptProber(f"sizes/{size}", f"{n} texts", smaller, examples))
    if fewer:
        curve.append((trained, whole))
    points = [
        CurvePoint(len(of.rows["train"]) / texts, len(of.rows["train"]), len(of.groups("train")),
                   prober.layers[prober.best], prober.saved)
        for prober, of in curve
    ]  # fmt: skip
    return replace(trained, curve=points, notes=notes), probers


def of_layers(
    sets: Sequence[Sequence[int]], fitted: Fitted, trained: Trained, dataset: Dataset, choice: Assembling
) -> Iterator[SweptProber]:
    """Assemble a prober for each set of layers from trained heads; the controls are those of the training."""
    for layers in sets:
        heads = [i for i, task in enumerate(fitted.tasks) if task.is_probe and task.column.layer in layers]
        subset = assemble(fitted.select(heads), dataset, choice, controls=False, refuse=False)
        notes = list(dict.fromkeys([*trained.notes, *subset.notes]))
        subset = replace(subset, controls=trained.controls, person=trained.person, notes=notes)
        about = f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, layers))}"
        yield SweptProber(f"layers/{'-'.join(map(str, layers))}", about, subset, dataset.examples)


def _of_one_label(examples: Examples) -> bool:
    return len(set(examples.wrong[examples.rows["train"]])) < 2


#: Name of the row of the prober that was trained on all stores.
ALL = "all of these"

#: Row -> column -> figures.
Matrix = dict[str, dict[str, dict[str, Any]]]


def each_alone(
    stores: Mapping[str, Sources], split: SplitRequest, make: MakeHead, how: Train
) -> dict[str, Prober]:
    """Train a prober on each store by itself, with the first seed."""
    probers, plain, joint = {}, replace(how, with_entropy=False), joins_layers(make)
    for name, (of_sites, beside) in stores.items():
        dataset = Dataset.load(of_sites, how.layer, split, beside)
        tasks = probe_tasks(dataset.columns, [how.seed], joint=joint, beside=dataset.beside_places)
        log.info("training on %s alone", name)
        fitted = train_heads(make, tasks, dataset, how)
        bank = assemble(fitted, dataset, plain, controls=False, refuse=False).bank
        probers[name] = replace(bank, seen=dataset.examples.seen())
    return probers


def matrix(
    probers: Mapping[str, Prober], stores: Mapping[str, Sources], split: SplitRequest, resamples: int
) -> Matrix:
    """Test every prober on the test texts of every store.

    Form, writer and unit of texts differ: a figure on texts like its own says little about others. Rows are
    probers, columns stores; test texts that a row's prober has trained on are left out.

    Returns:
        For each cell ``n``, ``groups``, ``wrong``, ``auroc`` with its 95% interval over groups, ``ece`` of
        P(wrong), ``fired`` at the prober's own threshold, and how many texts were ``seen`` and left out.
    """
    cells: Matrix = {row: {} for row in probers}
    for column, (of_sites, beside) in stores.items():
        examples = load_examples([*of_sites, *beside], split)
        for row, bank in probers.items():
            dataset = Dataset.load(of_sites, list(bank.layers), examples, beside)
            cells[row][column] = _cell(bank, dataset, resamples, split.seed)
    return cells


def _cell(bank: Prober, dataset: Dataset, resamples: int, seed: int) -> dict[str, Any]:
    examples, test = dataset.examples, dataset.examples.rows["test"]
    sides = examples.sides(bank.seen or Seen({}), "test")
    fresh = test[[side not in ("train", "validation") for side in sides]]
    wrong, scores = examples.wrong[fresh], score_texts(bank, dataset, bank.aggregate)[fresh]
    groups = examples.table["group"].to_numpy()[fresh]
    figures: dict[str, Any] = {"n": len(fresh), "groups": len({*groups}), "seen": len(test) - len(fresh)}
    if len(set(wrong.tolist())) < 2:
        return figures | dict.fromkeys(("wrong", "auroc", "auroc_ci", "ece", "fired"))
    bootstrap = Bootstrap(groups, resamples=resamples, seed=seed)
    figures |= bootstrap.interval(scores, partial(metrics.auroc, wrong)).figures("auroc")
    figures["ece"] = float(metrics.ece(wrong, bank.probability(scores)))
    return figures | {"wrong": float(wrong.mean()), "fired": float((scores > bank.threshold).mean())}


def write_matrix(cells: Matrix, out: Path) -> None:
    """Write ``matrix.json`` and ``plots/matrix.png``."""
    write_text(out / "matrix.json", canonical_json(cells))
    values = pd.DataFrame(cells).T.map(lambda cell: cell["auroc"]).astype(float)
    figure, ((ax,),) = canvas(1.6 + 0.95 * len(values.columns), 1.0 + 0.55 * len(values))
    ax.imshow(values, cmap="RdBu", vmin=0.2, vmax=0.8, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        colour, shown = "white" if abs(value - 0.5) > 0.22 else "black", f"{value:.2f}".replace("nan", "–")
        ax.text(column, row, shown, ha="center", va="center", color=colour)
    ax.set_xticks(range(len(values.columns)), values.columns, rotation=20, ha="right")
    ax.set_yticks(range(len(values)), values.index)
    ax.set(xlabel="tested on", ylabel="trained on")
    ax.set_title("AUROC of wrong texts; 0.5 is chance", fontsize=9)
    write_png(figure, out / "plots" / "matrix.png")


def matrix_table(cells: Matrix) -> str:
    """Tabulate AUROC with intervals, trained on down, tested on across."""
    shown = pd.DataFrame(cells).T.map(lambda cell: bounded(cell, "auroc", absent="-"))
    lines = ["AUROC, trained on (down) x tested on (across)", shown.to_string(line_width=100)]
    every = (cell for row in cells.values() for cell in row.values())
    if few := few_groups(min((cell["groups"] for cell in every if cell["auroc"] is not None), default=0)):
        lines.append(f"note: a cell of {few}")
    return "\n".join(lines)
