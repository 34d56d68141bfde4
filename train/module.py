"""The Lightning module: many independent heads in one optimiser, the best state of each kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F

from probers.evaluation.metrics import auroc
from probers.heads import CORRECT, WRONG, ProbeHead

from .states import Padded

Loss = Literal["ce", "double_softmax"]

#: Attributes of the module that say how good the kept states are.
_FIGURES = ("accuracy", "loss_value", "auroc", "waited")


def head_losses(
    logits: Tensor,
    targets: Tensor,
    loss: Loss = "ce",
    *,
    weights: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """Mean cross-entropy (heads,) of logits (n, heads, 2) against classes (n, heads).

    "double_softmax" applies a softmax before the cross-entropy's own, as the released
    Probing-RAG code does, which bounds the loss between 0.31 and 1.31.

    Args:
        weights: (heads, 2) of the classes, for each head; the mean is then a weighted one.
        smoothing: share of every target that is spread over both classes.
    """
    if loss == "double_softmax":
        logits = logits.softmax(dim=-1)
    each = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
    ).view(targets.shape)
    if weights is None:
        return each.mean(dim=0)
    of = weights.gather(1, targets.T).T
    return (each * of).sum(dim=0) / of.sum(dim=0)


class NotFiniteError(Exception):
    """A loss became infinite or no number."""


@dataclass(frozen=True, slots=True)
class Optimisation:
    """How the heads learn; the values are those of :class:`train.fit.FitSettings`.

    Attributes:
        lr: AdamW's learning rate at the start.
        gamma: factor on it after every step.
        weight_decay: AdamW's.
        loss, smoothing: see :func:`head_losses`.
        class_weights: (H, 2) of wrong and correct, for each head.
        warmup_steps: validations before this step keep nothing.
        patience: validations without improvement after which a head's training is over; None never.
    """

    lr: float
    gamma: float
    weight_decay: float
    loss: Loss = "ce"
    smoothing: float = 0.0
    class_weights: tuple[tuple[float, float], ...] = ()
    warmup_steps: int = 0
    patience: int | None = None


class ProberModule(LightningModule):
    """Trains heads jointly, yet each exactly as if alone.

    The loss is the sum of the heads' losses and AdamW works element by element, so no
    head's gradient or step depends on another's. After the warm-up every validation
    compares each head with its own best (accuracy, ties by loss) and copies the parameters
    of those that improved. A head that ran out of patience copies no more.

    Args:
        head: the heads, H of them.
        columns: (H,) position of each head's layer among the batch's columns.
        orders: (H,) which of a batch's S row sets each head learns from.
        how: the optimisation.

    Attributes:
        accuracy, loss_value, auroc: (H,) validation figures of the kept states.
        waited: (H,) validations since the last improvement.
        recent: (H,) losses of the last step.
        steps_before: steps that were taken before an interruption.
        lr: learning rate of the next step when training begins.
    """

    def __init__(
        self, head: ProbeHead, columns: Sequence[int], orders: Sequence[int], how: Optimisation
    ) -> None:
        super().__init__()
        self.head, self.how = head, how
        self._columns, self._orders = torch.tensor(columns), torch.tensor(orders)
        self._heads = torch.arange(len(columns))
        plain = all(each == (1.0, 1.0) for each in how.class_weights)
        self._weights = None if plain else torch.tensor(how.class_weights)
        count = len(columns)
        self.accuracy = np.full(count, -1.0)
        self.loss_value = np.full(count, np.inf)
        self.auroc = np.full(count, np.nan)
        self.waited = np.zeros(count, dtype=np.int64)
        self.recent = torch.zeros(count)
        self.steps_before, self.lr = 0, how.lr
        self.best = {name: value.clone() for name, value in head.state_dict().items()}
        self._seen: list[tuple[Tensor, Tensor]] = []

    @property
    def figures(self) -> dict[str, np.ndarray]:
        """What is known of each head's kept state, (H,) each; settable."""
        return {name: getattr(self, name) for name in _FIGURES}

    @figures.setter
    def figures(self, values: Mapping[str, np.ndarray]) -> None:
        for name in _FIGURES:
            setattr(self, name, values[name].copy())

    @property
    def steps_taken(self) -> int:
        """Optimiser steps, those before an interruption included."""
        return self.steps_before + (self.trainer.global_step if self._trainer is not None else 0)

    @property
    def over(self) -> np.ndarray:
        """(H,) whether a head has run out of patience."""
        none = np.zeros(len(self.waited), dtype=bool)
        return none if self.how.patience is None else self.waited >= self.how.patience

    def forward(self, states: Tensor | Padded, sets: int = 1) -> Tensor:
        """Logits (n, H, 2) of states (sets * n, columns, d), or of tokens (sets * n, T, columns, d)."""
        orders = self._orders if sets > 1 else torch.zeros_like(self._orders)
        if isinstance(states, Padded):
            # A mask is for all heads, so each reads every set's texts, of which its own are taken.
            logits = self.head(states.states[:, :, self._columns].float(), states.mask)
            return logits.unflatten(0, (sets, -1))[orders, :, self._heads].transpose(0, 1)
        chosen = states.unflatten(0, (sets, -1))[orders, :, self._columns]  # (H, n, d)
        return self.head(chosen.float().transpose(0, 1))

    def training_step(self, batch: tuple[Any, Tensor], index: int) -> Tensor:
        states, targets = batch  # targets (S, b, H)
        logits = self(states, sets=len(targets))
        weights = None if self._weights is None else self._weights.to(logits)
        targets = targets[self._orders, :, self._heads].T if len(targets) > 1 else targets[0]
        losses = head_losses(logits, targets, self.how.loss, weights=weights, smoothing=self.how.smoothing)
        self.recent = losses.detach()
        return losses.sum()

    def validation_step(self, batch: tuple[Any, Tensor], index: int) -> None:
        states, targets = batch
        self._seen.append((self(states), targets[0]))

    def on_validation_epoch_end(self) -> None:
        logits, targets = (torch.cat(part).cpu() for part in zip(*self._seen, strict=True))
        self._seen.clear()
        losses = head_losses(logits, targets).double().numpy()
        if not np.isfinite(losses).all():
            raise NotFiniteError("the loss is not finite")
        accuracy = (logits.argmax(dim=-1) == targets).double().mean(dim=0).numpy()
        if self.logger is not None:
            self._log(accuracy, losses)
        if self.how.warmup_steps and self.steps_taken <= self.how.warmup_steps:
            return
        better = (accuracy > self.accuracy) | ((accuracy == self.accuracy) & (losses < self.loss_value))
        better &= ~self.over
        self.waited = np.where(better, 0, self.waited + 1)
        margins = (logits[..., WRONG] - logits[..., CORRECT]).double().numpy()
        for i in np.flatnonzero(better):
            self.auroc[i] = auroc((targets[:, i] == WRONG).numpy(), margins[:, i])
        self.accuracy[better], self.loss_value[better] = accuracy[better], losses[better]
        chosen = torch.from_numpy(np.flatnonzero(better))
        for name, value in self.head.state_dict().items():
            self.best[name][chosen] = value[chosen.to(value.device)].to(self.best[name].device)
        if self.over.all():
            self.trainer.should_stop = True

    def restore_best(self) -> ProbeHead:
        """The heads with each one's best parameters, on the CPU and in evaluation mode."""
        head = self.head.cpu()
        head.load_state_dict({name: value.cpu() for name, value in self.best.items()})
        return head.eval()

    def configure_optimizers(self) -> Any:
        parameters = list(self.head.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.how.weight_decay, fused=True)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.how.gamma)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _log(self, accuracy: np.ndarray, losses: np.ndarray) -> None:
        figures: dict[str, float] = {}
        for i, stream in enumerate(self.head.streams):
            figures[f"train_loss/{stream}"] = float(self.recent[i])
            figures[f"validation_loss/{stream}"] = float(losses[i])
            figures[f"validation_accuracy/{stream}"] = float(accuracy[i])
        self.log_dict(figures)
