"""Which heads are trained, the prober's and those it is controlled with, and their training in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from probers.heads import ProbeHead, head_name
from probers.seeding import draw_key
from probers.store.store import FeatureStore
from probers.types import RunError, Site, UserError

from .batches import Balance, Batches, Schedule, StoreData, balancing
from .controls import EMBEDDING
from .data import Examples
from .module import Loss, NotFiniteError, Optimisation, ProberModule
from .states import CHUNK, Column, Padded, States, TokenStates, layers_to_train, moments
from .trainer import TrainerSettings, train

Target = Literal["correct", "shuffled", "person"]


@dataclass(frozen=True, slots=True)
class Task:
    """One head: the layer it reads, what it learns to tell, the seed of its weights, dropout and order."""

    layer: int
    target: Target = "correct"
    seed: int = 0
    site: Site = "resid_post"

    @property
    def column(self) -> Column:
        return Column(self.site, self.layer)

    @property
    def is_probe(self) -> bool:
        """Whether it is one of the heads wanted, not a control."""
        return self.target == "correct" and self.layer > 0

    @property
    def stream(self) -> str:
        """Names the head's random stream, and the head in logs."""
        place = f"layer{self.layer}" if self.site == "resid_post" else f"{self.site}{self.layer}"
        return f"{self.seed}/{place}-{self.target}"


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to train; the fields are keys of ``configs/train.yaml``."""

    epochs: int = 2
    warmup_epochs: int = 1
    checks: int = 4
    patience: int | None = None
    batch_size: int = 12
    lr: float = 1e-3
    gamma: float = 0.995
    weight_decay: float = 0.01
    loss: Loss = "ce"
    label_smoothing: float = 0.0
    balance: Balance = "none"
    device: str = "auto"
    logger: str = "none"
    save_every: float = 60.0
    trainer: TrainerSettings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("epochs", "checks", "batch_size", "lr", "gamma"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)} must be above 0")
        for name in ("warmup_epochs", "weight_decay", "save_every"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} must not be below 0")
        if self.patience is not None and self.patience < 1:
            raise UserError(f"patience={self.patience} must be 1 validation or more; null never stops early")
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing={self.label_smoothing} must be from 0 to below 1")
        choices = {
            "loss": ("ce", "double_softmax"), "balance": ("none", "weights", "sampling"),
        }  # fmt: skip
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{name}={getattr(self, name)} is unknown: choose one of {', '.join(known)}")
        object.__setattr__(self, "trainer", TrainerSettings(self.device, self.logger, self.save_every))


@dataclass(frozen=True, slots=True)
class Fitted:
    """Trained heads, one per task, each in its best state.

    Attributes:
        accuracy, loss, auroc: (tasks,) on validation.
        steps: optimiser steps taken.
        seconds: wall time, of this run alone where it was resumed.
    """

    tasks: tuple[Task, ...]
    head: ProbeHead
    accuracy: np.ndarray
    loss: np.ndarray
    auroc: np.ndarray
    steps: int
    seconds: float


def targets_of(tasks: Sequence[Task], examples: Examples) -> Tensor:
    """(N, tasks) classes; 1 is correct, or a person for the positive control.

    Shuffled labels are permuted within each split, the test's too: a head that learned
    from labels without meaning must be at chance about other such labels. (About the true
    ones it need not be: a strong direction in the states is read by chance, either way.)
    """
    correct = examples.table["correct"].to_numpy()
    columns: dict[tuple[str, int], np.ndarray] = {}
    for task in tasks:
        key = (task.target, task.seed)
        if key in columns:
            continue
        if task.target == "shuffled":
            columns[key] = correct.copy()
            for split, rows in examples.rows.items():
                rng = np.random.default_rng(draw_key("shuffled", task.seed, split))
                columns[key][rows] = rng.permutation(correct[rows])
        elif task.target == "person":
            columns[key] = (examples.table["answer_kind"] == "person").to_numpy()
        else:
            columns[key] = correct
    found = np.stack([columns[t.target, t.seed] for t in tasks], axis=1)
    return torch.from_numpy(found.astype(np.int64))


def fit(
    make_head: Callable[[Sequence[str], int], ProbeHead], tasks: Sequence[Task], states: States,
    columns: Sequence[Column], examples: Examples, settings: FitSettings, *,
    out: Path | None = None, what: str = "",
) -> Fitted:  # fmt: skip
    """Train all tasks' heads in one pass; each comes out as if it had been trained alone.

    Args:
        make_head: from stream names and width to untrained heads.
        tasks: what to train.
        states: (rows of the store, len(columns), d); read batch by batch.
        columns: what the states are of.
        examples: texts and splits.
        settings: how.
        out: folder for a logger's files, and for a checkpoint from which to go on after a kill.
        what: names the training in the progress bar and the checkpoint, where there are several.

    Raises:
        UserError: heads that pool tokens over states that are pooled already.
        RunError: a state or a loss that is not finite.
    """
    start = time.perf_counter()
    head = make_head([task.stream for task in tasks], states.shape[-1])
    view = _view(head, states, examples, targets_of(tasks, examples))
    places = [list(columns).index(task.column) for task in tasks]
    training = torch.from_numpy(view.rows["train"])
    if head.needs_moments:
        assert not isinstance(view.states, TokenStates)
        head.prepare(moments(view.states, training, places, view.targets))
    seeds = sorted({task.seed for task in tasks})
    schedule = Schedule(-(-len(training) // settings.batch_size), settings.epochs, settings.checks)
    chances, weights = balancing(settings.balance, view.correct[view.rows["train"]])
    module = ProberModule(
        head, places, [seeds.index(task.seed) for task in tasks],
        Optimisation(
            settings.lr, settings.gamma, settings.weight_decay, settings.loss, settings.label_smoothing,
            tuple(weights if task.target == "correct" else (1.0, 1.0) for task in tasks),
            min(settings.warmup_epochs, settings.epochs - 1) * schedule.per_epoch * head.learns,
            settings.patience,
        ),
    )  # fmt: skip

    def data(done: int) -> StoreData:
        batches = Batches(training, settings.batch_size, seeds, schedule, weights=chances, start=done)
        return StoreData(view.states, view.targets, view.rows, batches)

    names = [str(task.column) if task.is_probe else "" for task in tasks]
    try:
        train(module, data, schedule, settings.trainer, names, out=out, what=what)
    except NotFiniteError as error:
        raise _explained(error, view, columns) from error
    return Fitted(
        tuple(tasks), module.restore_best(), module.accuracy, module.loss_value, module.auroc,
        module.steps_taken, time.perf_counter() - start,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _View:
    """What is trained on: rows of the store, or whole texts where the heads pool tokens themselves.

    Attributes:
        states: of N rows or texts.
        targets: (N, heads).
        correct: (N,) labels.
        rows: numbers of each split.
        ids: (N,) for messages.
    """

    states: States | TokenStates
    targets: Tensor
    correct: np.ndarray
    rows: Mapping[str, np.ndarray]
    ids: np.ndarray


def _view(head: ProbeHead, states: States, examples: Examples, targets: Tensor) -> _View:
    correct, ids = examples.table["correct"].to_numpy(), examples.table["id"].to_numpy()
    if head.tokens:
        if examples.members is None:
            raise UserError(
                f"head={head_name(head)} reads the states of every token, and the store has pooled ones: "
                "make one with pool=tokens"
            )
        return _View(TokenStates(states, examples.members), targets, correct, examples.rows, ids)
    if examples.members is None:
        return _View(states, targets, correct, examples.rows, ids)
    of = examples.text_of
    rows = {s: np.flatnonzero(np.isin(of, found)) for s, found in examples.rows.items()}
    return _View(states, targets[of], correct[of], rows, ids[of])


def _explained(error: NotFiniteError, view: _View, columns: Sequence[Column]) -> RunError:
    """Whether a loss is not a number because a state is none, or because the steps are too large."""
    for split, rows in view.rows.items():
        for part in torch.from_numpy(rows).split(CHUNK):
            found = view.states[part]
            tensor = found.states.flatten(1, 2) if isinstance(found, Padded) else found
            bad = torch.nonzero(~torch.isfinite(tensor.float()).all(dim=-1))
            if len(bad):
                row, column = bad[0].tolist()
                name = view.ids[int(part[row])]
                return RunError(
                    f"the state of {name!r} ({split}) at {columns[column % len(columns)]} is not finite: the "
                    "store is damaged there, make it again"
                )
    return RunError(f"{error}: lower lr")


def plan_tasks(
    stores: Sequence[FeatureStore], layer: object, examples: Examples, seeds: Sequence[int]
) -> tuple[list[Task], list[str]]:
    """The heads to train: the prober's of every site and seed, the embedding layer's, and two more.

    The two are at the middle layer of the first site: shuffled labels, which must come out at
    chance, and the positive control "is the answer a person", which must not.

    Args:
        stores: one per site.
        layer: as asked for, see :func:`layers_to_train`.
        examples: of the stores.
        seeds: of weights, dropout and order; the controls have the first one.

    Returns:
        The tasks, and notes on what is left out.

    Raises:
        UserError: a layer that is not there.
    """
    tasks: list[Task] = []
    for store in stores:
        wanted = layers_to_train(layer, store.spec)
        tasks += [Task(k, seed=seed, site=store.spec.site) for seed in seeds for k in wanted]
    notes: list[str] = []
    first = seeds[0]
    site = tasks[0].site
    layers = [task.layer for task in tasks if (task.site, task.seed) == (site, first)]
    middle = layers[len(layers) // 2]
    with_embedding = next((s.spec for s in stores if 0 in s.spec.layers), None)
    if with_embedding is None:
        notes.append(f"control {EMBEDDING!r} left out: the store has no layer 0")
    else:
        tasks.append(Task(0, seed=first, site=with_embedding.site))
    tasks.append(Task(middle, "shuffled", first, site))
    problem = _no_person(examples)
    if problem:
        notes.append(f"positive control left out: {problem}")
    else:
        tasks.append(Task(middle, "person", first, site))
    return tasks, notes


def _no_person(examples: Examples) -> str | None:
    if "answer_kind" not in examples.table:
        return "the store has no column answer_kind"
    for split in examples.rows:
        if len(set(examples.column("answer_kind", split) == "person")) == 1:
            return f"all or none of the {split} answers are persons"
    return None
