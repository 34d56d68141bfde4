"""What an interrupted training needs to go on to the very bits it would have had: one file, no pickle."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors import safe_open
from safetensors.torch import save as encode
from torch import Tensor

from probers.files import write_bytes, writing

from .module import ProberModule


class Checkpoint(Callback):
    """Keeps the state of a training in a file, written after a validation and at the end.

    Args:
        path: of the file; what it holds already is where the training goes on.
        every: seconds that have to pass between two writings.

    Attributes:
        stretches: validations behind the training so far.
        finished: whether nothing is left to train.
    """

    def __init__(self, path: Path, *, every: float) -> None:
        self._path, self._every, self._written = path, every, time.monotonic()
        self._tensors: dict[str, Tensor] = {}
        self._about: Mapping[str, Any] = {"stretches": 0, "steps": 0, "finished": False}
        if path.exists():
            with safe_open(path, "pt") as file:
                self._tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                self._about = json.loads(file.metadata()["about"])
        self.stretches: int = self._about["stretches"]
        self.finished: bool = self._about["finished"]

    def restore(self, module: ProberModule) -> None:
        """Give a new module the stored parameters and figures, and the step that its dropout follows."""
        if not self._tensors:
            return
        module.head.load_state_dict(_part(self._tensors, "head"))
        module.best = _part(self._tensors, "best")
        module.figures = {name: value.numpy() for name, value in _part(self._tensors, "figures").items()}
        module.steps_before, module.lr = self._about["steps"], self._about["lr"]
        module.head.step = self._about["head_step"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer = trainer.optimizers[0]
        for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
            if stored := _part(self._tensors, f"adam.{index}"):
                optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in stored.items()}
        self._tensors = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ProberModule)
        self.stretches += 1
        if time.monotonic() - self._written >= self._every:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, ProberModule)
        self.finished = True
        self._write(trainer, pl_module)

    def _write(self, trainer: Trainer, module: ProberModule) -> None:
        optimizer = trainer.optimizers[0]
        tensors = {f"head.{name}": value for name, value in module.head.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in module.best.items()}
        tensors |= {f"figures.{name}": torch.from_numpy(value) for name, value in module.figures.items()}
        for index, parameter in enumerate(optimizer.param_groups[0]["params"]):
            tensors |= {f"adam.{index}.{k}": v for k, v in optimizer.state[parameter].items()}
        about = {
            "stretches": self.stretches, "steps": module.steps_before + trainer.global_step,
            "head_step": module.head.step, "lr": optimizer.param_groups[0]["lr"], "finished": self.finished,
        }  # fmt: skip
        blob = encode(
            {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
            {"about": json.dumps(about)},
        )
        with writing(self._path):
            write_bytes(self._path, blob)
        self._written = time.monotonic()


def _part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors below a name, without it."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
