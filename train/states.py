"""Hidden states as the heads read them: some rows at a time, from memory-mapped stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from probers.heads import Moments
from probers.store.spec import FeatureSpec, parse_layers
from probers.store.store import FeatureStore
from probers.types import Site, UserError

#: Rows read at once where their number does not matter to the result.
CHUNK = 1024


class Column(NamedTuple):
    """What one vector of a text is of: a site in the block, and the block's number."""

    site: Site
    layer: int

    def __str__(self) -> str:
        return f"layer {self.layer}" if self.site == "resid_post" else f"{self.site} {self.layer}"


class Padded(NamedTuple):
    """States of the tokens of n texts, the shorter ones padded with zeros.

    Attributes:
        states: (n, T, columns, d).
        mask: (n, T) true where there is a token.
    """

    states: Tensor
    mask: Tensor


class States(Protocol):
    """States (N, columns, d) that give some rows at a time: a tensor, or :class:`StoreStates`."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> Tensor:
        """(n, columns, d) of a slice or of row numbers."""
        ...


class StoreStates:
    """States of stores as tensors, row by row from their memory-mapped files; holds none itself.

    Args:
        stores: finished stores of the same rows in the same order, one per site.
        columns: what is wanted, those of one store together and in the order of ``stores``.
    """

    def __init__(self, stores: Sequence[FeatureStore], columns: Sequence[Column]) -> None:
        self._readers = []
        for store in stores:
            layers = [c.layer for c in columns if c.site == store.spec.site]
            if layers:
                self._readers.append(store.reader(layers))
        rows, _, width = self._readers[0].shape
        self.shape = (rows, len(columns), width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Tensor:
        numbers = rows.numpy() if isinstance(rows, Tensor) else rows
        parts = [torch.from_numpy(reader[numbers]) for reader in self._readers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class TokenStates:
    """States of whole texts, token by token, for heads that pool by themselves.

    Args:
        states: of the tokens.
        members: which rows of ``states`` each text has.
    """

    def __init__(self, states: States, members: Sequence[np.ndarray]) -> None:
        self._states, self._members = states, members
        self.shape = (len(members), *states.shape[1:])

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, rows: Any) -> Padded:
        numbers = range(*rows.indices(len(self))) if isinstance(rows, slice) else rows.tolist()
        chosen = [self._members[i] for i in numbers]
        sizes = torch.tensor([len(c) for c in chosen])
        found = self._states[torch.from_numpy(np.concatenate(chosen))]
        mask = torch.arange(int(sizes.max())) < sizes[:, None]
        states = found.new_zeros(*mask.shape, *found.shape[1:])
        states[mask] = found
        return Padded(states, mask)


def moments(states: States, rows: Tensor, columns: Sequence[int], targets: Tensor) -> Moments:
    """Mean and standard deviation (population's), and the mean of each class, chunk by chunk in float64.

    Args:
        states: (N, columns, d).
        rows: numbers of the training rows.
        columns: (H,) which column each head reads.
        targets: (N, H) classes, 0 or 1.
    """
    shape = (len(columns), states.shape[-1])
    mean, squares, seen = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64), 0
    of_class = torch.zeros(len(columns), 2, shape[1], dtype=torch.float64)
    # Each class's mean is kept as its distance from a fixed vector, so that large values do not cancel.
    origin: Tensor | None = None
    counts = torch.zeros(len(columns), 2, dtype=torch.float64)
    for part in rows.split(CHUNK):
        x = states[part][:, list(columns)].double()
        count = len(part)
        # Chan, Golub and LeVeque 1979: joins two sets' moments without cancellation.
        step = x.mean(dim=0) - mean
        squares += x.var(dim=0, correction=0) * count + step**2 * (seen * count / (seen + count))
        mean += step * (count / (seen + count))
        seen += count
        origin = x[0] if origin is None else origin
        membership = torch.nn.functional.one_hot(targets[part], 2).double()
        of_class += torch.einsum("nhk,nhd->hkd", membership, x - origin)
        counts += membership.sum(dim=0)
    assert origin is not None
    class_mean = of_class / counts.clamp(min=1)[..., None] + origin[:, None]
    return Moments(mean, (squares / seen).sqrt(), class_mean)


def layers_to_train(value: Any, spec: FeatureSpec) -> tuple[int, ...]:
    """The layers asked for: "all", one number, or a list of numbers.

    "all" leaves out layer 0, the embedding output, which is trained as a control.

    Raises:
        UserError: not understood, not in the store (lists those that are), or layer 0.
    """
    wanted = parse_layers(value, {"all": [k for k in spec.layers if k > 0]}, "layer")
    if not wanted and value == "all":
        raise UserError("layer=all: the store holds the embedding output only, make it with layers=all")
    if not wanted:
        raise UserError("layer=[] names no layer: give a number, a list like [6,8,10], or all")
    if 0 in wanted:
        raise UserError(
            f"layer=0 is the embedding output, which is trained as a control anyway: choose from 1 to "
            f"{spec.model.layers}"
        )
    return spec.select(wanted).layers
