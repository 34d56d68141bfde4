"""Heads of a prober and its controls: their choice, and their training in one pass or in parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from probers.checksums import draw_key
from probers.cli.components import Component
from probers.cli.compose import parsed
from probers.cli.merge import PartRuns
from probers.data.splits import Partition
from probers.heads import HEADS, Moments, ProbeHead, factory, is_joint
from probers.prober.figures import EMBEDDING
from probers.store.joined import Stored
from probers.types import Beside, RunError, UserError, first_line

from .data import CHUNK, Column, Dataset, Inputs, Padded, States, StoreStates, at_once
from .examples import Examples
from .module import (
    Batches,
    NotFiniteError,
    ProberModule,
    Schedule,
    StoreData,
    balancing,
    below,
    loader,
    named,
)
from .settings import Fitting
from .trainer import Loaders, read_tensors, train, write_tensors

Target = Literal["correct", "shuffled", "person"]
#: From stream names and width, and for joint heads the number of layers, to untrained heads.
MakeHead = Callable[..., ProbeHead]


@dataclass(frozen=True, slots=True)
class Task:
    """One head: what it reads, its target, and the seed of weights, dropout and order."""

    column: Column
    target: Target = "correct"
    seed: int = 0

    @property
    def is_probe(self) -> bool:
        """True for a head of the prober, false for a control."""
        return self.target == "correct" and self.column.layer > 0 and self.column.site != "resid_bare"

    @property
    def stream(self) -> str:
        """Name of the head in logs, and of its random stream."""
        site, read = self.column.site, [*map(str, self.column.layers), *dict(self.column.beside)]
        return f"{self.seed}/{'layer' if site == 'resid_post' else site}{'+'.join(read)}-{self.target}"


@dataclass(frozen=True, slots=True)
class Fitted:
    """Trained heads, one per task, each in its best state, with figures (tasks,) on validation.

    ``steps`` of the optimiser; ``seconds`` are, after a resume, of this run alone.
    """

    tasks: tuple[Task, ...]
    head: ProbeHead
    accuracy: np.ndarray
    loss: np.ndarray
    auroc: np.ndarray
    steps: int
    seconds: float

    @property
    def figures(self) -> dict[str, np.ndarray]:
        """Validation figures of each head, by name."""
        return {"accuracy": self.accuracy, "loss": self.loss, "auroc": self.auroc}

    def select(self, heads: list[int]) -> Fitted:
        """Select heads by position."""
        return replace(
            self, tasks=tuple(self.tasks[i] for i in heads), head=self.head.select(heads),
            accuracy=self.accuracy[heads], loss=self.loss[heads], auroc=self.auroc[heads],
        )  # fmt: skip


def targets_of(tasks: Sequence[Task], examples: Examples) -> Tensor:
    """Compute classes (N, tasks); 1 is correct, or a person for the positive control.

    Shuffled labels are permuted within the test split too: a head trained on meaningless labels must be at
    chance on other such labels. (On the true ones it can pick up a strong direction of the states by
    accident.)
    """
    classes = np.repeat(examples.table["correct"].to_numpy(np.int64)[:, None], len(tasks), axis=1)
    for task, labels in zip(tasks, classes.T, strict=True):
        if task.target == "person":
            labels[:] = examples.table["answer_kind"] == "person"
        elif task.target == "shuffled":
            for split, rows in examples.rows.items():
                rng = np.random.default_rng(draw_key("shuffled", task.seed, split))
                labels[rows] = rng.permutation(labels[rows])
    return torch.from_numpy(classes)


def train_heads(
    make_head: MakeHead, tasks: Sequence[Task], dataset: Dataset, how: Fitting, *,
    out: Path | None = None, what: str = "",
) -> Fitted:  # fmt: skip
    """Train all tasks' heads in one pass; each comes out as if it had been trained alone.

    ``out`` is for the logger's files and a checkpoint to resume from, ``what`` names one of several
    trainings. RunError for a state or a loss that is not finite.
    """
    start = time.perf_counter()
    head = build(make_head, tasks, dataset.states.shape[-1])
    examples, (states, of) = dataset.examples, dataset.inputs(head, how.loss)
    rows = {split: np.flatnonzero(np.isin(of, texts)) for split, texts in examples.rows.items()}
    targets = targets_of(tasks, examples)
    places = dataset.places([task.column for task in tasks], joint=head.joint)
    training = torch.from_numpy(rows["train"])
    if head.needs_moments:  # of single rows, also where texts of tokens are trained on
        single = torch.from_numpy(np.flatnonzero(np.isin(examples.text_of, examples.rows["train"])))
        head.prepare(moments(dataset.states, single, places, targets[examples.text_of]))
    weights_of_texts = examples.loss_weights(how.span_weight, marked=how.loss == "span_max")
    shares = None if weights_of_texts is None else torch.from_numpy(weights_of_texts[of])
    seeds = sorted({task.seed for task in tasks})
    schedule = Schedule(-(-len(training) // how.batch_size), how.epochs, how.checks)
    chances, weights = balancing(how.balance, examples.table["correct"].to_numpy()[of[rows["train"]]])
    module = ProberModule(
        head, places, [seeds.index(task.seed) for task in tasks], how,
        class_weights=[weights if task.target == "correct" else (1.0, 1.0) for task in tasks],
        warmup=min(how.warmup_epochs, how.epochs - 1) * schedule.per_epoch * head.learns,
        steps=schedule.steps,
    )  # fmt: skip

    def data(done: int) -> Loaders:
        stored = StoreData(states, targets[of], shares)
        batches = Batches(training, how.batch_size, seeds, schedule, weights=chances, start=done)
        validation = torch.from_numpy(rows["validation"])[None].split(at_once(states), dim=1)
        return loader(stored, batches), loader(stored, validation)

    names = [str(task.column) if task.is_probe else "" for task in tasks]
    try:
        train(module, data, schedule, names, out=out, what=what)
    except NotFiniteError as error:
        raise _explain(error, dataset, Inputs(states, of), rows) from error
    return Fitted(
        tuple(tasks), module.restore_best(), module.accuracy, module.loss_value, module.auroc,
        module.steps_taken, time.perf_counter() - start,
    )  # fmt: skip


def head_of(head: str | Component | Callable[..., Any]) -> Component:
    """Read a head: its name with options as typed, ``radio hidden=64``, a class, or a partial (UserError)."""
    if isinstance(head, Component):
        return head
    if not isinstance(head, str):
        kind, options = getattr(head, "func", head), dict(getattr(head, "keywords", {}))
        if not isinstance(kind, type):
            fix = "give a name with options, as 'radio hidden=64', a class, or a functools.partial of one"
            raise UserError(f"head is of the kind {type(kind).__name__}: {fix}", "argument")
        if name := next((name for name, known in HEADS.items() if known is kind), None):
            return Component.of("head", name, **options)
        return Component.read("head", {"_target_": f"{kind.__module__}.{kind.__qualname__}", **options})
    name, *words = head.split() or [""]
    options = {}
    for word in words:
        if (option := parsed(word)) is None or option.is_sweep_override():
            raise UserError(f"head: cannot read {word!r} of {head!r}: write options as hidden=64", "argument")
        options[option.get_key_element()] = option.value()
    return Component.read("head", options) if "_target_" in options else Component.of("head", name, **options)


def maker(head: Component) -> MakeHead:
    """Make the constructor of the heads that the settings name (UserError: a class or options of no head)."""
    return factory(partial(head.kind, **head.options))


def joins_layers(make_head: MakeHead) -> bool:
    """Tell whether each of the heads reads several layers at once."""
    return is_joint(getattr(make_head, "func", make_head))


def build(make_head: MakeHead, tasks: Sequence[Task], width: int) -> ProbeHead:
    """Make untrained heads of some tasks, whose layers are of a width."""
    places = [len(tasks[0].column.places)] if joins_layers(make_head) else []
    return make_head([task.stream for task in tasks], width, *places)


def moments(states: States, rows: Tensor, columns: Tensor, targets: Tensor) -> Moments:
    """Compute mean, population standard deviation and class means of rows, chunk by chunk in float64.

    ``columns`` (H,) or (H, L) are those of each head, ``targets`` (N, H) their classes, 0 or 1.
    """
    shape, zeros = (*columns.shape, states.shape[-1]), partial(torch.zeros, dtype=torch.float64)
    mean, squares, seen = zeros(shape), zeros(shape), 0
    of_class, counts = zeros(len(columns), 2, *shape[1:]), zeros(len(columns), 2)
    # Each class's mean is kept as its distance from a fixed vector, so that large values do not cancel.
    origin = states[rows[:1]][0, columns].double()
    for part in rows.split(CHUNK):
        x = states[part][:, columns].double()
        count = len(part)
        # Chan, Golub and LeVeque 1979: joins two sets' moments without cancellation.
        step = x.mean(dim=0) - mean
        squares += x.var(dim=0, correction=0) * count + step**2 * (seen * count / (seen + count))
        mean += step * (count / (seen + count))
        seen += count
        membership = torch.nn.functional.one_hot(targets[part], 2).double()
        of_class += torch.einsum("nhk,nh...d->hk...d", membership, x - origin)
        counts += membership.sum(dim=0)
    class_mean = of_class / counts.clamp(min=1).view(-1, 2, *[1] * (len(shape) - 1)) + origin[:, None]
    return Moments(mean, (squares / seen).sqrt(), class_mean)


def _explain(
    error: NotFiniteError, dataset: Dataset, inputs: Inputs, rows: Mapping[str, np.ndarray]
) -> RunError:
    for split, numbers in rows.items():
        for part in torch.from_numpy(numbers).split(CHUNK):
            states = inputs.states[part]
            tensor = states.states if isinstance(states, Padded) else states[:, None]
            if len(bad := torch.nonzero(~torch.isfinite(tensor.float()).all(dim=-1))):
                row, _, column = bad[0].tolist()
                name = dataset.examples.table["id"].iloc[inputs.text_of[int(part[row])]]
                what = f"the state of {name!r} ({split}) at {dataset.sources[column]} is not finite"
                return RunError(f"{what}: the store is damaged there, make it again", code="damaged")
    return RunError(f"{error}: lower lr")


def probe_tasks(
    columns: Sequence[Column], seeds: Iterable[int], *, joint: bool,
    beside: Sequence[tuple[Beside, int]] = (),
) -> list[Task]:  # fmt: skip
    """List the prober's heads by site and seed: one a layer, or one of all layers and what is ``beside``."""
    tasks, seeds = [], list(seeds)
    for site in dict.fromkeys(c.site for c in columns if c.layer > 0 and c.site != "resid_bare"):
        heads = [column for column in columns if column.site == site and column.layer > 0]
        heads = [Column.of(site, [column.layer for column in heads], beside)] if joint else heads
        tasks += [Task(column, seed=seed) for seed in seeds for column in heads]
    return tasks


def plan_tasks(dataset: Dataset, how: Fitting, *, joint: bool = False) -> tuple[list[Task], list[str]]:
    """Plan the heads of the prober, for every site and seed, and the controls; notes name those left out.

    The controls have the first seed: the embedding layer and, at the middle layer of the first site,
    shuffled labels, which must end at chance, and "is the answer a person", which must not. ``joint`` heads
    read all layers of a site, and that of the embedding layer reads it in place of all that they read.
    """
    first, beside = how.seed, dataset.beside_places
    tasks = probe_tasks(dataset.columns, range(first, first + how.seeds), joint=joint, beside=beside)
    columns = [t.column for t in tasks if (t.column.site, t.seed) == (tasks[0].column.site, first)]
    middle = columns[len(columns) // 2]
    sites = [column.site for column in dataset.columns if column.layer == 0]
    notes = [] if sites else [f"control {EMBEDDING!r} left out: the store has no layer 0"]
    tasks += [Task(Column.of(site, [0] * len(middle.places)), seed=first) for site in sites]
    bare = [column.layer for column in dataset.columns if column.site == "resid_bare"]
    if set(middle.layers) <= set(bare):  # the same texts read without their passages
        repeated = [middle.layer] * (len(middle.places) - len(middle.layers))
        tasks.append(Task(Column.of("resid_bare", [*middle.layers, *repeated]), seed=first))
    tasks.append(Task(middle, "shuffled", first))
    examples, left_out = dataset.examples, "positive control left out"
    if "answer_kind" not in examples.table:
        return tasks, [*notes, f"{left_out}: the store has no column answer_kind"]
    for split in examples.rows:
        if len(set(examples.column("answer_kind", split) == "person")) == 1:
            return tasks, [*notes, f"{left_out}: all or none of the {split} answers are persons"]
    return [*tasks, Task(middle, "person", first)], notes


def part_tasks(tasks: Sequence[Task], part: Partition) -> list[Task]:
    """Select the heads and controls of a part's layers (UserError: more parts than layers, joint heads)."""
    if tasks[0].column.below:
        raise UserError(f"part={part}: this head reads all layers at once: leave it out", code="conflict")
    layers = sorted({task.column.layer for task in tasks} - {0})
    if part.count > (n := len(layers)):
        raise UserError(f"part={part}: {n} layers are trained, give {n} parts at most", code="parts")
    block = {*part.block(layers), *([0] if part.number == 1 else [])}
    return [task for task in tasks if task.column.layer in block]


def of_tasks(dataset: Dataset, stores: Sequence[Stored], tasks: Sequence[Task]) -> Dataset:
    """Restrict the dataset to the states that some heads read."""
    read = {Column(task.column.site, layer) for task in tasks for layer in task.column.layers}
    columns = [column for column in dataset.columns if column in read]
    return replace(dataset, columns=columns, states=StoreStates(stores, columns))


def file_of(what: str) -> str:
    """File name of trained heads; ``what`` is the name of the training, if there are several."""
    return f"trained{what and '-' + what}.safetensors"


def save(fitted: Fitted, file: Path) -> None:
    """Write trained heads in full precision, with their validation figures."""
    figures = {name: torch.from_numpy(values) for name, values in fitted.figures.items()}
    tensors = named(head=fitted.head.state_dict()) | figures
    tasks = [{"target": t.target, "seed": t.seed, **t.column._asdict()} for t in fitted.tasks]
    write_tensors(file, tensors, {"tasks": tasks, "steps": fitted.steps})


def joined(parts: PartRuns, make_head: MakeHead, tasks: Sequence[Task], width: int, what: str = "") -> Fitted:
    """Join the heads of all parts, in the order of the tasks; the parts may have more."""
    tensors, abouts = zip(*(_read(run.path / file_of(what)) for run in parts.runs), strict=True)
    heads = [head for about in abouts for head in about["tasks"]]
    trained = [Task(Column(head["site"], head["layer"]), head["target"], head["seed"]) for head in heads]
    if lacking := [task for task in tasks if task not in trained]:
        raise UserError(f"no part has the head {lacking[0].stream}: make the parts again", code="parts")
    order = torch.tensor([trained.index(task) for task in tasks])
    whole = {name: torch.cat([part[name] for part in tensors])[order] for name in tensors[0]}
    head = build(make_head, tasks, width)
    head.load_state_dict(below(whole, "head"))
    accuracy, loss, auroc = (whole[name].numpy() for name in ("accuracy", "loss", "auroc"))
    steps = max(about["steps"] for about in abouts)
    return Fitted(tuple(tasks), head.eval(), accuracy, loss, auroc, steps, seconds=0.0)


def _read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    again = "run the part's command again with overwrite=true"
    try:
        return read_tensors(file)
    except FileNotFoundError:
        raise UserError(f"{file} is missing: {again}", code="parts") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{file} is damaged (it {first_line(error)}): {again}", code="damaged") from error
