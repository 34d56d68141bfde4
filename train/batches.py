"""Training batches: several orders of the same rows side by side, a stretch between validations at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from probers.seeding import draw_key

from .data import CHUNK, States, TokenStates
from .settings import Balance

#: Values of the states that are validated on at once.
_VALUES = 4 << 20


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps of a training, and after which of them it is validated.

    Attributes:
        per_epoch: steps in a pass over the training rows.
        epochs: passes.
        checks: validations per pass, evenly spread; the last is at its end.
    """

    per_epoch: int
    epochs: int
    checks: int

    @property
    def steps(self) -> int:
        return self.per_epoch * self.epochs

    @property
    def ends(self) -> list[int]:
        """The step after which each validation takes place."""
        share = np.arange(1, self.epochs * self.checks + 1) / self.checks
        return sorted({int(end) for end in np.ceil(share * self.per_epoch)})


class Batches(Sampler[Tensor]):
    """Row numbers (S, b), batch by batch; every iteration goes through one stretch of the schedule.

    Each of S seeds has an order of its own, a new one every pass, which depends on the seed
    and the pass alone: what a head sees does not depend on what is trained beside it, nor on
    where a run was interrupted.

    Args:
        rows: row numbers to train on.
        batch_size: b.
        seeds: S of them.
        schedule: of the training.
        weights: (len(rows),) chances to be drawn, with replacement; None shuffles.
        start: stretches that were gone through before.
    """

    def __init__(
        self, rows: Tensor, batch_size: int, seeds: Sequence[int], schedule: Schedule, *,
        weights: Tensor | None = None, start: int = 0,
    ) -> None:  # fmt: skip
        self._rows, self._size, self._seeds = rows, batch_size, seeds
        self._schedule, self._weights = schedule, weights
        self._stretch = start
        self._orders: tuple[int, Tensor] = (-1, rows)

    def __iter__(self) -> Iterator[Tensor]:
        ends = [0, *self._schedule.ends]
        first, end = ends[self._stretch], ends[self._stretch + 1]
        self._stretch += 1
        for step in range(first, end):
            epoch, place = divmod(step, self._schedule.per_epoch)
            yield self._order(epoch)[:, place * self._size : (place + 1) * self._size]

    def _order(self, epoch: int) -> Tensor:
        if self._orders[0] != epoch:
            self._orders = (epoch, torch.stack([self._draw(seed, epoch) for seed in self._seeds]))
        return self._orders[1]

    def _draw(self, seed: int, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(draw_key("order", seed, str(epoch)) >> 1)
        if self._weights is None:
            return self._rows[torch.randperm(len(self._rows), generator=generator)]
        chosen = torch.multinomial(self._weights, len(self._rows), replacement=True, generator=generator)
        return self._rows[chosen]


class StoreData(Dataset[tuple[Any, Tensor]]):
    """Whole batches by row numbers (S, b): states of S * b rows as stored, targets (S, b, heads).

    Args:
        states: (N, columns, d) as stored.
        targets: (N, heads) class numbers.
        rows: row numbers of each split.
        batches: of the training.
    """

    def __init__(
        self, states: States | TokenStates, targets: Tensor, rows: Mapping[str, np.ndarray], batches: Batches
    ) -> None:
        self._states, self._targets, self._rows, self._batches = states, targets, rows, batches

    def __getitem__(self, index: Tensor) -> tuple[Any, Tensor]:
        return self._states[index.flatten()], self._targets[index]

    def training(self) -> DataLoader:
        """The training's batches, in its order."""
        return self._loader(self._batches)

    def validation(self) -> DataLoader:
        """Validation rows in the store's order."""
        # A chunk is copied to single precision as a whole, so that wide ones are taken in fewer rows.
        rows = max(1, min(CHUNK, _VALUES // math.prod(self._states.shape[1:])))
        return self._loader(torch.from_numpy(self._rows["validation"])[None].split(rows, dim=1))

    def _loader(self, batches: Any) -> DataLoader:
        # batch_size=None: the sampler gives whole batches, which are cut out by one index each.
        return DataLoader(self, batch_size=None, sampler=batches)


def balancing(balance: Balance, labels: np.ndarray) -> tuple[Tensor | None, tuple[float, float]]:
    """How two classes of unlike size are made to weigh the same.

    Args:
        balance: "none", "weights" in the loss, or "sampling" with replacement.
        labels: (n,) classes of the training rows, 0 or 1, both present.

    Returns:
        Chances of the rows to be drawn, or None, and the weight of each class in the loss.
    """
    counts = np.bincount(labels, minlength=2)
    weight = len(labels) / (2 * counts)
    if balance == "sampling":
        return torch.from_numpy(weight[labels]), (1.0, 1.0)
    return None, (float(weight[0]), float(weight[1])) if balance == "weights" else (1.0, 1.0)
