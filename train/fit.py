"""Which heads are trained, and their training in one pass."""

from __future__ import annotations

import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from tqdm import tqdm

from probers.heads import ProbeHead
from probers.types import UserError

from .data import Examples, States, StoreData, moments
from .module import Loss, ProberModule

Target = Literal["correct", "shuffled", "person"]

_SMALL = 10_000_000  # parameters of all heads together


@dataclass(frozen=True, slots=True)
class Task:
    """One head: the layer it reads and what it learns to tell."""

    layer: int
    target: Target = "correct"


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to train; the fields are keys of ``configs/train.yaml``."""

    epochs: int = 2
    warmup_epochs: int = 1
    checks: int = 4
    batch_size: int = 12
    lr: float = 1e-3
    gamma: float = 0.995
    weight_decay: float = 0.01
    loss: Loss = "ce"
    seed: int = 0
    device: str = "auto"
    logger: str = "none"

    def __post_init__(self) -> None:
        for name in ("epochs", "checks", "batch_size", "lr", "gamma"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name}={getattr(self, name)} must be above 0")
        choices = {"loss": ("ce", "double_softmax"), "logger": ("none", "csv", "wandb")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{name}={getattr(self, name)} is unknown: choose one of {', '.join(known)}")
        _hardware(self.device)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Trained heads, one per task, each in its best state.

    Attributes:
        accuracy, loss, auroc: (tasks,) on validation.
        steps: optimiser steps taken.
        seconds: wall time.
    """

    tasks: tuple[Task, ...]
    head: ProbeHead
    accuracy: np.ndarray
    loss: np.ndarray
    auroc: np.ndarray
    steps: int
    seconds: float


def targets_of(tasks: Sequence[Task], examples: Examples, seed: int) -> Tensor:
    """(N, tasks) classes; 1 is correct, or a person for the positive control.

    Shuffled labels are permuted within each split, the test's too: a head that learned
    from labels without meaning must be at chance about other such labels. (About the true
    ones it need not be: a strong direction in the states is read by chance, either way.)
    """
    correct = examples.table["correct"].to_numpy()
    shuffled = correct.copy()
    for split, rows in examples.rows.items():
        rng = np.random.default_rng([seed, len(split)])
        shuffled[rows] = rng.permutation(correct[rows])
    columns = {"correct": correct, "shuffled": shuffled}
    if any(task.target == "person" for task in tasks):
        columns["person"] = (examples.table["answer_kind"] == "person").to_numpy().astype(np.int64)
    return torch.from_numpy(np.stack([columns[task.target] for task in tasks], axis=1).astype(np.int64))


def fit(
    make_head: Callable[[list[str], int], ProbeHead], tasks: Sequence[Task], states: States,
    layers: Sequence[int], examples: Examples, settings: FitSettings, *, out: Path | None = None,
) -> Fitted:  # fmt: skip
    """Train all tasks' heads in one pass; each comes out as if it had been trained alone.

    Args:
        make_head: from stream names and width to untrained heads.
        tasks: what to train.
        states: (N, len(layers), d); read batch by batch.
        layers: which layers the states are of.
        examples: rows and splits.
        settings: how.
        out: folder for a logger's files.
    """
    start = time.perf_counter()
    columns = [list(layers).index(task.layer) for task in tasks]
    streams = [f"{settings.seed}/layer{task.layer}-{task.target}" for task in tasks]
    head = make_head(streams, states.shape[-1])
    train_rows = torch.from_numpy(examples.rows["train"])
    if type(head).prepare is not ProbeHead.prepare:
        head.prepare(*(found[columns] for found in moments(states, train_rows)))
    module = ProberModule(
        head, columns, lr=settings.lr, gamma=settings.gamma, weight_decay=settings.weight_decay,
        loss=settings.loss, warmup_epochs=settings.warmup_epochs,
    )  # fmt: skip
    targets = targets_of(tasks, examples, settings.seed)
    data = StoreData(states, targets, examples.rows, batch_size=settings.batch_size, seed=settings.seed)
    per_epoch = -(-len(examples.rows["train"]) // settings.batch_size)
    with _quiet(), _few_threads(head), _Progress(tasks, per_epoch * settings.epochs) as progress:
        trainer = Trainer(
            **_hardware(settings.device), max_epochs=settings.epochs,
            val_check_interval=max(1, per_epoch // settings.checks), num_sanity_val_steps=0,
            logger=_logger(settings.logger, out), callbacks=[progress], enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        _run(trainer, module, data)
    if settings.logger == "wandb":
        import wandb

        wandb.finish()  # the next run of a sweep is a run of its own
    return Fitted(
        tuple(tasks), module.restore_best(), module.accuracy, module.loss_value, module.auroc,
        trainer.global_step, time.perf_counter() - start,
    )  # fmt: skip


def _run(trainer: Trainer, module: ProberModule, data: StoreData) -> None:
    """Train; Ctrl-C stays a KeyboardInterrupt (the trainer makes it a silent exit with code 1)."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, datamodule=data)
    except SystemExit:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


class _Progress(Callback):
    """A bar with the mean loss and the best layer so far."""

    def __init__(self, tasks: Sequence[Task], steps: int) -> None:
        self._tasks = tasks
        self._probing = [i for i, t in enumerate(tasks) if t.target == "correct" and t.layer > 0]
        self._steps = steps
        self._best = ""

    def __enter__(self) -> _Progress:
        self._bar = tqdm(total=self._steps, unit="step", desc=f"{len(self._probing)} layers", mininterval=0.3)
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.close()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, ProberModule)
        if trainer.global_step % 20 == 0:
            loss = float(pl_module.recent[self._probing].mean())
            self._bar.set_postfix_str(f"loss {loss:.3f}{self._best}", refresh=False)
        self._bar.update()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ProberModule)
        scores = pl_module.auroc[self._probing]
        if not np.isnan(scores).all():
            best = int(np.nanargmax(scores))
            layer = self._tasks[self._probing[best]].layer
            self._best = f", best layer {layer} (AUROC {scores[best]:.2f})"


def _hardware(device: str) -> dict[str, Any]:
    """The trainer's words for "auto", "cpu", "cuda" or "cuda:1"."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdigit())):
        raise UserError(f"device={device} is unknown: choose auto, cpu, cuda or cuda:<number>")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device={device}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    return {"accelerator": kind, "devices": [int(index)] if index else 1}


def _logger(name: str, out: Path | None) -> Any:
    if name == "none" or out is None:
        return False
    from lightning.pytorch.loggers import CSVLogger, WandbLogger

    if name == "csv":
        return CSVLogger(save_dir=out, name="log", version="")
    return WandbLogger(save_dir=out, project="probers", name=out.name)


@contextmanager
def _few_threads(head: ProbeHead) -> Iterator[None]:
    """One CPU thread while the matrices are small.

    A step of twelve narrow layers takes about 20 ms on one thread and 10 on two idle cores,
    but a second when another program keeps a core busy, as every one of its hundred small
    operations then waits for the slower thread.
    """
    before = torch.get_num_threads()
    if sum(p.numel() for p in head.parameters()) < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the trainer's remarks on hardware, workers and logging intervals."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=r".*does not have many workers.*")
        warnings.filterwarnings("ignore", message=r".*Tensor Cores.*")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
