"""The Lightning module: many independent heads in one optimiser, the best state of each kept."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F

from probers.heads import CORRECT, WRONG, ProbeHead
from probers.metrics import auroc
from probers.types import RunError

Loss = Literal["ce", "double_softmax"]


def head_losses(logits: Tensor, targets: Tensor, loss: Loss = "ce") -> Tensor:
    """Mean cross-entropy (heads,) of logits (n, heads, 2) against classes (n, heads).

    "double_softmax" applies a softmax before the cross-entropy's own, as the released
    Probing-RAG code does, which bounds the loss between 0.31 and 1.31.
    """
    if loss == "double_softmax":
        logits = logits.softmax(dim=-1)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(targets.shape).mean(dim=0)


class ProberModule(LightningModule):
    """Trains heads jointly, yet each exactly as if alone.

    The loss is the sum of the heads' losses and AdamW works element by element, so no
    head's gradient or step depends on another's. After ``warmup_epochs`` every
    validation compares each head with its own best (accuracy, ties by loss) and copies
    the parameters of those that improved.

    Args:
        head: the heads, H of them.
        columns: (H,) position of each head's layer among the batch's layers.
        lr: AdamW's learning rate at the start.
        gamma: factor on it after every step.
        weight_decay: AdamW's.
        loss: see :func:`head_losses`.
        warmup_epochs: epochs whose validations keep nothing (one epoch always counts).

    Attributes:
        accuracy, loss_value, auroc: (H,) validation figures of the kept states.
        recent: (H,) losses of the last step.
    """

    def __init__(
        self, head: ProbeHead, columns: list[int], *, lr: float, gamma: float, weight_decay: float,
        loss: Loss, warmup_epochs: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.head = head
        self._columns = torch.tensor(columns)
        self._lr, self._gamma, self._decay, self._loss = lr, gamma, weight_decay, loss
        self._warmup = warmup_epochs
        count = len(columns)
        self.accuracy = np.full(count, -1.0)
        self.loss_value = np.full(count, np.inf)
        self.auroc = np.full(count, np.nan)
        self.recent = torch.zeros(count)
        self._best = {name: value.clone() for name, value in head.state_dict().items()}
        self._seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, states: Tensor) -> Tensor:
        """Logits (n, H, 2) of states (n, layers, d)."""
        return self.head(states[:, self._columns.to(states.device)].float())

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        states, targets = batch
        losses = head_losses(self(states), targets, self._loss)
        self.recent = losses.detach()
        return losses.sum()

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        states, targets = batch
        self._seen.append((self(states), targets))

    def on_validation_epoch_end(self) -> None:
        logits, targets = (torch.cat(part).cpu() for part in zip(*self._seen, strict=True))
        self._seen.clear()
        losses = head_losses(logits, targets).double().numpy()
        if not np.isfinite(losses).all():
            raise RunError("the loss is not finite: lower lr")
        accuracy = (logits.argmax(dim=-1) == targets).double().mean(dim=0).numpy()
        assert self.trainer.max_epochs is not None
        if self.trainer.current_epoch < min(self._warmup, self.trainer.max_epochs - 1):
            return
        better = (accuracy > self.accuracy) | ((accuracy == self.accuracy) & (losses < self.loss_value))
        margins = (logits[..., WRONG] - logits[..., CORRECT]).double().numpy()
        for i in np.flatnonzero(better):
            self.auroc[i] = auroc((targets[:, i] == WRONG).numpy(), margins[:, i])
        self.accuracy[better], self.loss_value[better] = accuracy[better], losses[better]
        chosen = torch.from_numpy(np.flatnonzero(better))
        for name, value in self.head.state_dict().items():
            self._best[name][chosen] = value[chosen.to(value.device)].to(self._best[name].device)
        if self.logger is not None:
            self._log(accuracy, losses)

    def restore_best(self) -> ProbeHead:
        """The heads with each one's best parameters, on the CPU and in evaluation mode."""
        head = self.head.cpu()
        head.load_state_dict({name: value.cpu() for name, value in self._best.items()})
        return head.eval()

    def configure_optimizers(self) -> Any:
        parameters = list(self.head.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=self._lr, weight_decay=self._decay, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self._gamma)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _log(self, accuracy: np.ndarray, losses: np.ndarray) -> None:
        figures: dict[str, float] = {}
        for i, stream in enumerate(self.head.streams):
            name = stream.split("/", 1)[1]
            figures[f"train_loss/{name}"] = float(self.recent[i])
            figures[f"validation_loss/{name}"] = float(losses[i])
            figures[f"validation_accuracy/{name}"] = float(accuracy[i])
        self.log_dict(figures)
