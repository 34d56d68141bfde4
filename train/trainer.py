"""Lightning's trainer, whose epoch here is the stretch between two validations, and its checkpoints."""

from __future__ import annotations

import json
import logging
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as encode
from torch import Tensor
from torch.utils.data import DataLoader

from probers.files import digest, regular, write_bytes, writing
from probers.progress import Bar
from probers.types import first_line

from .module import ProberModule, Schedule, below

log = logging.getLogger(__name__)


#: Loads batches for training (those of the next stretch), and for validation.
Loaders: TypeAlias = tuple[DataLoader, DataLoader]


class Checkpoint(Callback):
    """State of a training in a file, written after a validation (``every`` seconds at most) and at the end.

    The module resumes from the file; one that is damaged or of other heads is logged, and the training
    starts over. The attribute ``stretches`` counts validations completed, the argument all of them.
    """

    def __init__(self, path: Path, module: ProberModule, *, every: float, stretches: int) -> None:
        self._path, self._module, self._every, self._written = path, module, every, time.monotonic()
        self._tensors: dict[str, Tensor] = {}
        self.stretches, self.finished = 0, False
        try:
            tensors, about = read_tensors(path)
            _check(tensors, about, module, stretches)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.info("%s %s: the training starts over", path, first_line(error))
            if path.is_dir():  # no file can replace it
                with writing(path):
                    path.rename(path.with_name(f"{path.name}.old"))
            return
        module.resume(tensors, about)
        self._tensors, self.stretches = tensors, about["stretches"]
        # A kill may have come before the end was written down.
        self.finished = about["finished"] or self.stretches == stretches or bool(module.over.all())

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        state = trainer.optimizers[0].state
        for index, parameter in enumerate(self._module.learned):
            if stored := below(self._tensors, f"adam.{index}"):
                state[parameter] = {k: v.to(parameter.device) for k, v in stored.items()}
        self._tensors = {}

    def on_validation_end(self, trainer: Trainer, *_: Any) -> None:
        self.stretches += 1
        if time.monotonic() - self._written >= self._every:
            self._write(trainer)

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self.finished = True
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        module, optimizer = self._module, trainer.optimizers[0]
        tensors = module.tensors()
        for index, parameter in enumerate(module.learned):
            tensors |= {f"adam.{index}.{k}": v for k, v in optimizer.state[parameter].items()}
        write_tensors(self._path, tensors, {
            "stretches": self.stretches, "steps": module.steps_taken, "head_step": module.head.step,
            "lr": optimizer.param_groups[0]["lr"], "finished": self.finished,
        })  # fmt: skip
        self._written = time.monotonic()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a plain record, with a checksum of both; RunError if that fails."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    metadata = {"about": json.dumps(about)}
    write_bytes(path, encode(plain, metadata | {"sha256": digest(encode(plain, metadata), 64)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read what :func:`write_tensors` wrote; OSError if there is none, ValueError says how it is damaged."""
    regular(path)
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"is damaged ({first_line(error)})") from error
    if not {"about", "sha256"} <= metadata.keys():
        raise ValueError("carries no checksum")
    if digest(encode(tensors, {"about": metadata["about"]}), 64) != metadata["sha256"]:
        raise ValueError("was altered")
    return tensors, json.loads(metadata["about"])


def _check(tensors: Mapping[str, Tensor], about: Any, module: ProberModule, stretches: int) -> None:
    """Raise ValueError for a checkpoint of another training."""
    if {"stretches", "steps", "head_step", "lr", "finished"} - set(about):  # of another version
        raise ValueError("does not record the progress of the training")
    if not 0 <= about["stretches"] <= stretches:
        raise ValueError(f"is of validation {about['stretches']}, and there are {stretches}")
    expected = module.tensors()
    for index, parameter in enumerate(module.learned):
        moments = below(tensors, f"adam.{index}")
        expected |= {f"adam.{index}.{name}": parameter for name in moments if name != "step"}
    for name, like in expected.items():
        if name not in tensors or (tensors[name].shape, tensors[name].dtype) != (like.shape, like.dtype):
            raise ValueError(f"is of other heads ({name} does not fit)")


def train(
    module: ProberModule, data: Callable[[int], Loaders], schedule: Schedule, names: Sequence[str], *,
    out: Path | None, what: str,
) -> None:  # fmt: skip
    """Train a module, resuming an interrupted run in ``out``, which gets the logger's files and a checkpoint.

    ``data`` gives the batches after a number of finished stretches; ``names`` (heads,) are for the progress
    bar, "" for controls; ``what`` names one of several trainings.
    """
    head, how, callbacks, done = module.head, module.how, list[Callback](), 0
    if not head.learns:
        schedule = Schedule(0, 1, 1)
    if out is not None and head.learns:
        file = out / f"checkpoint{what and '-' + what}.safetensors"
        saved = Checkpoint(file, module, every=how.save_every, stretches=len(schedule.ends))
        if saved.finished:
            return
        done, callbacks = saved.stretches, [saved]
    large = module.reads_model or sum(p.numel() for p in head.parameters()) >= _LARGE
    layers = list(dict.fromkeys(filter(None, names)))
    bar = Bar(
        total=schedule.steps, initial=[0, *schedule.ends][done], unit="step", mininterval=0.3,
        desc=what or (layers[0] if len(layers) == 1 else f"{len(layers)} layers"), disable=not schedule.steps,
    )  # fmt: skip
    with bar, _quiet(large=large):
        trainer = Trainer(
            **how.hardware(), max_epochs=len(schedule.ends) - done, num_sanity_val_steps=0,
            logger=_logger(how.logger, out, what), callbacks=[*callbacks, _Progress(bar, module, names)],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        handler = signal.getsignal(signal.SIGINT)
        try:
            if head.learns:
                trainer.fit(module, *data(done))
            else:
                trainer.validate(module, data(0)[1], verbose=False)
        except SystemExit:
            # Ctrl-C stays a KeyboardInterrupt; the trainer makes it a silent exit with code 1.
            signal.signal(signal.SIGINT, handler)
            raise KeyboardInterrupt from None
    if how.logger == "wandb":
        import wandb

        wandb.finish()  # the next run of a sweep is a run of its own


class _Progress(Callback):
    """Progress bar with the mean loss and the best layer so far."""

    def __init__(self, bar: Any, module: ProberModule, names: Sequence[str]) -> None:
        self._bar, self._module, self._names, self._best = bar, module, names, ""
        self._probing = [i for i, name in enumerate(names) if name]

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step % 20 == 0:
            loss = float(self._module.recent[self._probing].mean())
            self._bar.set_postfix_str(f"loss {loss:.3f}{self._best}", refresh=False)
        self._bar.update()

    def on_validation_end(self, *_: Any) -> None:
        scores = self._module.auroc[self._probing]
        if not np.isnan(scores).all():
            best = int(np.nanargmax(scores))
            self._best = f", best {self._names[self._probing[best]]} (AUROC {scores[best]:.2f})"


def _logger(name: str, out: Path | None, what: str) -> Any:
    if name == "none" or out is None:
        return False
    from lightning.pytorch.loggers import CSVLogger, WandbLogger

    if name == "csv":
        return CSVLogger(save_dir=out, name="log", version=what)
    run = f"{out.name}{what and '-' + what}"  # a killed run goes on under its folder's name
    return WandbLogger(save_dir=out, project="probers", name=run, id=run, resume="allow")


#: Number of parameters of all heads from which their matrices count as large.
_LARGE = 10_000_000


@contextmanager
def _quiet(*, large: bool) -> Iterator[None]:
    """Silence the trainer's remarks on hardware, workers and logging; matrices not ``large`` take one thread.

    A step of twelve narrow layers takes 20 ms on one thread and 10 on two idle cores, but a second when
    another program keeps a core busy.
    """
    threads = torch.get_num_threads()
    loggers = map(logging.getLogger, ("lightning.pytorch", "lightning.fabric"))
    levels = {logger: logger.level for logger in loggers}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=r".*(does not have many workers|Tensor Cores).*")
        for logger in levels:
            logger.setLevel(logging.ERROR)
        torch.set_num_threads(threads if large else 1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            for logger, level in levels.items():
                logger.setLevel(level)
