"""Additional probers of one training, with fewer texts or fewer layers, and its learning curve.

Each equals the prober of a separate training: no head depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from probers.types import UserError

from ..assemble import CurvePoint, Trained, assemble
from ..data import Dataset
from ..examples import Examples
from ..fit import Fitted, Task, file_of, save
from ..settings import Assembling, Train

#: Default points of the learning curve: a number of texts, and shares of all texts.
_TEXTS, _SHARES = 1000, (0.25, 0.5)


def sizes_of(settings: Train, whole: Examples) -> dict[int, Examples]:
    """Map each size to examples with at most that many training texts, smallest first.

    UserError for a size beyond the training texts, below the first group, or whose texts have the same label.
    """
    sizes, texts = settings.sizes, len(whole.rows["train"])
    if sizes and max(sizes) > texts:
        raise UserError(f"sizes names {max(sizes)}, and {texts} training texts are there: give no more")
    wanted = set(sizes)
    if not wanted and settings.learning_curve:
        wanted = {n for n in (_TEXTS, *(round(share * texts) for share in _SHARES)) if 0 < n < texts}
    found = {size: whole.training_part(size, settings.seed) for size in sorted(wanted)}
    for size in sizes:
        if (of := len(found[size].rows["train"])) > size:
            raise UserError(f"sizes={size}: the group drawn first has {of} texts; give {of} at least")
        if _of_one_label(found[size]):
            why = "the training texts drawn all have the same label; give more"
            raise UserError(f"sizes={size}: {why}", code="labels")
    return found


def sets_of(
    layer_sets: Sequence[int | Sequence[int] | Literal["each"]], layers: Sequence[int]
) -> list[tuple[int, ...]]:
    """List the sets of trained layers that are asked for, without duplicates."""
    found: dict[tuple[int, ...], None] = {}
    for given in layer_sets:
        if given == "each":
            found |= dict.fromkeys((layer,) for layer in layers)
            continue
        wanted = {given} if isinstance(given, int) else set(given)
        if odd := sorted(wanted - set(layers)):
            why = f"the layers trained are {', '.join(map(str, layers))}"
            raise UserError(f"layer_sets names layer {odd[0]}, and {why}", code="layers")
        if not wanted:
            raise UserError("layer_sets holds [], a set without layers: name one at least", code="layers")
        found[tuple(sorted(wanted))] = None
    return list(found)


class SweptProber(NamedTuple):
    """An additional prober; ``folder`` is below that of the training, as ``sizes/1000`` or ``layers/2-4``."""

    folder: str
    about: str
    trained: Trained
    examples: Examples


#: Trains the heads of some tasks on a data set; a name may follow, of an additional training.
Fitter = Callable[..., Fitted]


def fit_part(
    fitter: Fitter, tasks: Sequence[Task], dataset: Dataset, fewer: Mapping[int, Examples], settings: Train,
    out: Path,
) -> None:  # fmt: skip
    """Train a part's heads, those of fewer texts as well, and write them to its folder."""
    save(fitter(tasks, dataset, settings), out / file_of(""))
    # For fewer texts those of every site, as any may turn out best in the whole.
    own = list(dict.fromkeys(replace(task, seed=settings.seed) for task in tasks if task.is_probe))
    texts = len(dataset.examples.rows["train"])
    for size, examples in fewer.items():
        if len(examples.rows["train"]) < texts and not _of_one_label(examples):
            part, what = replace(dataset, examples=examples), f"{size}-texts"
            save(fitter(own, part, replace(settings, logger="none"), what), out / file_of(what))


def of_sizes(
    fitter: Fitter, trained: Trained, dataset: Dataset, fewer: Mapping[int, Examples], settings: Train
) -> tuple[Trained, list[SweptProber]]:
    """Add its learning curve to the prober (Probing-RAG, table 3); make those of the sizes asked for.

    Only the training texts differ, not the number of passes, so that fewer texts take fewer steps.
    """
    whole, notes = dataset.examples, list(trained.notes)
    tasks = [Task.of(c, seed=settings.seed) for c in trained.layers if c.site == trained.best.site]
    curve: list[CurvePoint] = []
    kept: list[SweptProber] = []
    for size, examples in fewer.items():
        of, texts = len(examples.rows["train"]), len(whole.rows["train"])
        if _of_one_label(examples):
            notes.append(f"{of} training texts are not on the learning curve: all have the same label")
            continue
        found = trained
        if of < texts:
            part = replace(dataset, examples=examples)
            fitted = fitter(tasks, part, replace(settings, logger="none"), f"{size}-texts")
            found = assemble(fitted, part, settings, controls=bool(settings.sizes), refuse=False)
            curve.append(_point(found, examples, of / texts))
        kept.append(SweptProber(f"sizes/{size}", f"{of} texts", found, examples))
    if fewer:
        curve.append(_point(trained, whole, 1.0))
    return replace(trained, curve=curve, notes=notes), kept if settings.sizes else []


def of_layers(
    sets: Sequence[Sequence[int]], fitted: Fitted, trained: Trained, dataset: Dataset, settings: Assembling
) -> Iterator[SweptProber]:
    """Assemble a prober for each set of layers from trained heads; the controls are those of the training."""
    for layers in sets:
        heads = [i for i, task in enumerate(fitted.tasks) if task.is_probe and task.layer in layers]
        found = assemble(fitted.select(heads), dataset, settings, controls=False, refuse=False)
        notes = list(dict.fromkeys([*trained.notes, *found.notes]))
        found = replace(found, controls=trained.controls, person=trained.person, notes=notes)
        names = list(map(str, layers))
        about = f"layer{'s' * (len(names) > 1)} {', '.join(names)}"
        yield SweptProber(f"layers/{'-'.join(names)}", about, found, dataset.examples)


def _point(trained: Trained, examples: Examples, share: float) -> CurvePoint:
    return CurvePoint(
        share, len(examples.rows["train"]), len(examples.groups("train")),
        trained.layers[trained.best], trained.saved,
    )  # fmt: skip


def _of_one_label(examples: Examples) -> bool:
    return len(set(examples.wrong[examples.rows["train"]])) < 2
