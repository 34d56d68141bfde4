"""Additional probers of one training, with fewer texts or fewer layers, and its learning curve.

Each equals the prober of a separate training: heads for fewer texts are trained on those texts alone,
and heads of some layers are taken from the training, where no head depends on another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from probers.types import UserError

from .assemble import CurvePoint, Trained, assemble
from .data import Dataset, Examples
from .fit import Fitted, Task, file_of, save
from .settings import Assembling, Fitting, Train

#: Default points of the learning curve: a number of texts, and shares of all texts.
_TEXTS, _SHARES = 1000, (0.25, 0.5)


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """Additional probers to make; the fields are settings of ``probers-train``.

    Attributes:
        sizes: numbers of training texts, one prober each.
        layer_sets: sets of layers, one prober each; "each" is every layer alone.
        learning_curve: also train on parts if no sizes are given.
        seed: seed for drawing the parts.
    """

    sizes: Sequence[int] = ()
    layer_sets: Sequence[int | Sequence[int] | Literal["each"]] = ()
    learning_curve: bool = True
    seed: int = 0

    def parts(self, whole: Examples) -> dict[int, Examples]:
        """Map each number of texts to examples with at most that many training texts, smallest first.

        Raises:
            UserError: a size larger than the training texts, one smaller than a group, or one whose
                texts have the same label.
        """
        texts = len(whole.rows["train"])
        if self.sizes and max(self.sizes) > texts:
            raise UserError(
                f"sizes names {max(self.sizes)}, and there are {texts} training texts: give {texts} at most"
            )
        wanted = set(self.sizes)
        if not wanted and self.learning_curve:
            wanted = {n for n in (_TEXTS, *(round(share * texts) for share in _SHARES)) if 0 < n < texts}
        found = {size: whole.training_part(size, self.seed) for size in sorted(wanted)}
        for size in self.sizes:
            if (of := len(found[size].rows["train"])) > size:
                raise UserError(f"sizes={size}: the group drawn first has {of} texts; give {of} at least")
            if _of_one_label(found[size]):
                raise UserError(
                    f"sizes={size}: the training texts drawn all have the same label; give more",
                    code="labels",
                )
        return found

    def sets(self, layers: Sequence[int]) -> list[tuple[int, ...]]:
        """List the sets of layers, without duplicates.

        Raises:
            UserError: a set with an untrained layer, or an empty one.
        """
        found: list[tuple[int, ...]] = []
        for given in self.layer_sets:
            if given == "each":
                found += [(layer,) for layer in layers]
                continue
            wanted = [given] if isinstance(given, int) else list(map(int, given))
            if odd := sorted(set(wanted) - set(layers)):
                known = ", ".join(map(str, layers))
                raise UserError(
                    f"layer_sets names layer {odd[0]}, and the layers trained are {known}", code="layers"
                )
            if not wanted:
                raise UserError("layer_sets holds [], a set without layers: name one at least", code="layers")
            found.append(tuple(sorted(set(wanted))))
        return list(dict.fromkeys(found))


class SweptProber(NamedTuple):
    """An additional prober, with its baselines and its examples.

    Attributes:
        folder: path below the folder of the training, as ``sizes/1000`` or ``layers/2-4``.
        about: short description.
    """

    folder: str
    about: str
    trained: Trained
    examples: Examples


#: Trains the heads of some tasks on a data set; the last argument names an additional training.
Fitter = Callable[[Sequence[Task], Dataset, Fitting, str], Fitted]


def smaller(dataset: Dataset, request: SweepRequest) -> dict[str, Dataset]:
    """Map the name of each additional training to its smaller dataset."""
    texts = len(dataset.examples.rows["train"])
    return {
        _training(size): replace(dataset, examples=examples)
        for size, examples in request.parts(dataset.examples).items()
        if len(examples.rows["train"]) < texts and not _of_one_label(examples)
    }


def _training(size: int) -> str:
    return f"{size}-texts"


def fit_part(
    fitter: Fitter, tasks: Sequence[Task], dataset: Dataset, sweep: SweepRequest, settings: Fitting, out: Path
) -> None:
    """Train a part's heads, those of fewer texts as well, and write them.

    Args:
        fitter: trains.
        tasks: the part's.
        dataset: with the states that they read.
        sweep: which fewer texts.
        settings: how.
        out: folder of the part.
    """
    save(fitter(tasks, dataset, settings, ""), out / file_of(""))
    own = [replace(task, seed=settings.seed) for task in tasks if task.is_probe]
    for what, part in smaller(dataset, sweep).items():
        # Whichever site turns out best in the whole.
        fitted = fitter(list(dict.fromkeys(own)), part, replace(settings, logger="none"), what)
        save(fitted, out / file_of(what))


def of_sizes(
    fitter: Fitter, trained: Trained, dataset: Dataset, request: SweepRequest, settings: Train
) -> tuple[Trained, list[SweptProber]]:
    """The prober with its learning curve (Probing-RAG, table 3), and those of the sizes asked for.

    Only the training texts differ: layers, validation and test texts and the number of passes are the
    same, so that fewer texts take fewer steps. The prober of all texts is that of the training.
    """
    parts, whole, notes = request.parts(dataset.examples), dataset.examples, list(trained.notes)
    tasks = [Task(k, seed=settings.seed, site=trained.best.site) for k in trained.bank.layers]
    texts = len(whole.rows["train"])
    curve: list[CurvePoint] = []
    kept: list[SweptProber] = []
    for size, examples in parts.items():
        of = len(examples.rows["train"])
        if _of_one_label(examples):
            notes.append(f"{of} training texts are not on the learning curve: all have the same label")
            continue
        found = trained
        if of < texts:
            part = replace(dataset, examples=examples)
            fitted = fitter(tasks, part, replace(settings, logger="none"), _training(size))
            found = assemble(fitted, part, settings, controls=bool(request.sizes))
            curve.append(_point(found, examples, of / texts))
        kept.append(SweptProber(f"sizes/{size}", f"{of} texts", found, examples))
    if parts:
        curve.append(_point(trained, whole, 1.0))
    return replace(trained, curve=curve, notes=notes), kept if request.sizes else []


def of_layers(
    sets: Sequence[Sequence[int]], fitted: Fitted, trained: Trained, dataset: Dataset,
    assembly: Assembling,
) -> Iterator[SweptProber]:  # fmt: skip
    """Assemble a prober for each set of layers from trained heads; the controls are those of the training."""
    for layers in sets:
        heads = [i for i, task in enumerate(fitted.tasks) if task.is_probe and task.layer in layers]
        found = assemble(fitted.select(heads), dataset, assembly, controls=False)
        found = replace(found, controls=trained.controls, person=trained.person, notes=trained.notes)
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
