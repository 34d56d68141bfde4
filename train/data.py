"""From a feature store to training batches: the splits checked, the states read when needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from probers.features import FeatureSpec
from probers.store import FeatureStore
from probers.types import UserError

SPLITS = ("train", "validation", "test")

#: Rows read at once where their number does not matter to the result.
CHUNK = 1024


class States(Protocol):
    """States (N, layers, d) that give some rows at a time: a tensor, or :class:`StoreStates`."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Tensor:
        """(n, layers, d) of a slice or of row numbers; (n, d) of row numbers and a layer's position."""
        ...


class StoreStates:
    """States of a store as tensors, row by row from its memory-mapped files; holds none itself.

    Args:
        store: a finished store.
        layers: numbers of the layers wanted, in the order wanted.
    """

    def __init__(self, store: FeatureStore, layers: Sequence[int]) -> None:
        self._store, self._reader = store, store.reader(layers)
        self.shape = self._reader.shape

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, rows: Any) -> Tensor:
        if isinstance(rows, tuple):
            rows, position = rows
            layer = self._reader.layers[position]
            return torch.from_numpy(self._store.states((layer,), _numbers(rows))[:, 0])
        return torch.from_numpy(self._reader[_numbers(rows)])


def _numbers(rows: Any) -> Any:
    return rows.numpy() if isinstance(rows, Tensor) else rows


def moments(states: States, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (population's) of some rows' states, in float64, chunk by chunk.

    Returns:
        Two tensors (layers, d).
    """
    mean = torch.zeros(tuple(states.shape[1:]), dtype=torch.float64)
    squares, seen = torch.zeros_like(mean), 0
    for part in rows.split(CHUNK):
        x = states[part].double()
        count = len(part)
        # Chan, Golub and LeVeque 1979: joins two sets' moments without cancellation.
        step = x.mean(dim=0) - mean
        squares += x.var(dim=0, correction=0) * count + step**2 * (seen * count / (seen + count))
        mean += step * (count / (seen + count))
        seen += count
    return mean, (squares / seen).sqrt()


@dataclass(frozen=True, slots=True)
class Examples:
    """The labelled rows of a store, in its order.

    Attributes:
        table: all columns.
        rows: row numbers of each split.
    """

    table: pd.DataFrame
    rows: dict[str, np.ndarray]

    @property
    def wrong(self) -> np.ndarray:
        """(N,) 1 where the text is wrong or hallucinated: what a detector is to find."""
        return 1 - self.table["correct"].to_numpy()

    def column(self, name: str, split: str) -> np.ndarray:
        """Values of a column in one split."""
        return self.table[name].to_numpy()[self.rows[split]]


def load_examples(store: FeatureStore) -> Examples:
    """The store's rows, refused where a training or its test would mean nothing.

    Raises:
        UserError: a group on two sides of a split, an empty split, a split of one class.
    """
    table = store.table()
    sides = {group: sorted(set(found)) for group, found in table.groupby("group")["split"]}
    leaks = [group for group, found in sides.items() if len(found) > 1]
    if leaks:
        more = f" (and {len(leaks) - 1} more groups are)" if len(leaks) > 1 else ""
        raise UserError(
            f"data={store.path} leaks: the group {leaks[0]!r} is in {' and '.join(sides[leaks[0]])}{more}; "
            "deal the splits by group and make it again"
        )
    rows = {split: np.flatnonzero(table["split"] == split) for split in SPLITS}
    for split, found in rows.items():
        labels = table["correct"].to_numpy()[found]
        if not len(found):
            raise UserError(f"data={store.path} has no {split} examples: make it with a higher limit")
        if labels.min() == labels.max():
            kind = "right" if labels[0] else "wrong"
            raise UserError(
                f"data={store.path} has only {kind} texts among its {len(found)} {split} examples: "
                "a detector needs both kinds, make it with a higher limit or another label"
            )
    return Examples(table, rows)


def parse_layers(value: Any, spec: FeatureSpec) -> tuple[int, ...]:
    """The layers asked for: "all", one number, or a list of numbers.

    "all" leaves out layer 0, the embedding output, which is trained as a control.

    Raises:
        UserError: not understood, not in the store (lists those that are), or layer 0.
    """
    if value == "all":
        layers = tuple(k for k in spec.layers if k > 0)
        if not layers:
            raise UserError("layer=all: the store holds the embedding output only, make it with layers=all")
        return layers
    wanted = [value] if isinstance(value, int) else value
    if isinstance(wanted, str) or not all(isinstance(k, int) and not isinstance(k, bool) for k in wanted):
        raise UserError(f"layer={value} is not understood: give a number, a list like [6,8,10], or all")
    if not len(wanted):
        raise UserError("layer=[] names no layer: give a number, a list like [6,8,10], or all")
    if 0 in wanted:
        raise UserError(
            f"layer=0 is the embedding output, which is trained as a control anyway: choose from 1 to "
            f"{spec.model.layers}"
        )
    return spec.select(sorted(set(wanted))).layers


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Whole batches by row numbers: states (n, layers, d) as stored, targets (n, heads)."""

    def __init__(self, states: States, targets: Tensor) -> None:
        self.states, self.targets = states, targets

    def __getitem__(self, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.states[index], self.targets[index]


class Batches(Sampler[Tensor]):
    """Row numbers batch by batch; a new order every epoch, the same for every choice of layers."""

    def __init__(self, rows: np.ndarray, batch_size: int, *, seed: int | None) -> None:
        self.rows, self.batch_size = torch.as_tensor(rows), batch_size
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        rows = self.rows
        if self._generator is not None:
            rows = rows[torch.randperm(len(rows), generator=self._generator)]
        yield from rows.split(self.batch_size)


class StoreData(LightningDataModule):
    """Training batches in random order and validation batches in the store's.

    Args:
        states: (N, layers, d) as stored.
        targets: (N, heads) class numbers.
        rows: row numbers of each split.
        batch_size: examples per training step.
        seed: of the order.
    """

    def __init__(
        self, states: States, targets: Tensor, rows: dict[str, np.ndarray], *, batch_size: int, seed: int
    ) -> None:
        super().__init__()
        self._data, self._rows = Rows(states, targets), rows
        self._batch_size, self._seed = batch_size, seed

    def train_dataloader(self) -> DataLoader:
        return self._loader("train", self._batch_size, self._seed)

    def val_dataloader(self) -> DataLoader:
        return self._loader("validation", CHUNK, None)

    def _loader(self, split: str, batch_size: int, seed: int | None) -> DataLoader:
        # batch_size=None: the sampler gives whole batches, which are cut out by one index each.
        return DataLoader(
            self._data, batch_size=None, sampler=Batches(self._rows[split], batch_size, seed=seed)
        )
