"""Domain: similarity of texts and their states to those that a prober was trained on.

A head gives a score to any vector; on texts unlike its training texts that score was never tested. Two
measures apply, each to the unit that the prober judges. ``surprise`` reveals another writer: how much less
likely the text's tokens are to the model than it expects (:func:`probers.signals.surprise`). It hardly
differs for the model's own text, written as in training, but does for others' text. The states' distance
reveals another form, such as another language or code. It is Mahalanobis' (Lee et al. 2018, "A Simple Unified
Framework for Detecting Out-of-Distribution Samples") with one mean, under the covariance of probabilistic PCA
(Tipping and Bishop 1999, eq. 6-8): a variance along each of k directions, and one for all others, so
that no matrix of d x d is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as encode
from torch import Tensor

from ..checksums import read_tensors
from ..files import digest, write_bytes
from ..types import RunError

FILE = "domain.safetensors"
_CHUNK = 1024  # states at once
#: Directions with a variance of their own, and passes over the states, each of which improves them.
_COMPONENTS, _PASSES = 32, 3
#: Least spread of a coordinate, relative to the typical one, so that a nearly constant one does not dominate.
_LEAST = 1e-2
#: The tensors of a domain.
_TENSORS = ("mean", "scale", "components", "variances", "residual")

#: Tolerance in nats around the range of surprise of validation texts, for rounding.
_ROUNDING = 0.01
#: Shares of the rate that either measure alone may use; together they stay within the rate.
_SHARES = np.linspace(1.0, 0.5, 11)

#: Yields the states (n, layers, d) of training texts, some at a time, again for each pass.
Chunks = Callable[[], Iterator[Tensor]]


@dataclass(frozen=True)
class Domain:
    """The training states of some layers, described by their mean and spread.

    Attributes:
        mean, scale: (layers, d); the scale is each coordinate's deviation, always above 0.
        components, variances: (layers, k, d) orthonormal directions of scaled states, in half precision, and
            (layers, k) the variances along them.
        residual: (layers,) variance of every other direction.
        limit: largest distance of a text like the training texts, as the mean over its tokens if these are
            not pooled; a share ``rate`` of validation texts exceeds the limits of either measure.
        surprise: range for similar texts, nats per token; None if that of the training texts is unknown.
    """

    mean: Tensor
    scale: Tensor
    components: Tensor
    variances: Tensor
    residual: Tensor
    limit: float
    rate: float
    surprise: tuple[float, float] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, d)."""
        return self.mean.shape[0], self.mean.shape[1]

    def __call__(self, states: Any) -> Tensor:
        """Compute distances (n,) of states (n, layers, d); the mean square for training states is about 1.

        A distance is the root of the squared Mahalanobis distance by dimension, mean over layers.
        """
        given = torch.as_tensor(states)
        if tuple(given.shape[1:]) != self.shape:
            raise ValueError(f"states {tuple(given.shape)} are not (n, {self.shape[0]}, {self.shape[1]})")
        distances = torch.cat([self._squared(part) for part in given.split(_CHUNK)]).mean(dim=1).sqrt()
        if not torch.isfinite(distances).all():
            raise RunError("states have no distance to the training states: they hold NaN or infinite values")
        return distances.cpu()

    def _squared(self, states: Tensor) -> Tensor:
        """Compute (n, layers) squared distances by dimension."""
        away = (states.to(self.mean.device, torch.float32) - self.mean) / self.scale
        along = _along(away, self.components.float().transpose(1, 2))
        left = (away.square().sum(dim=-1) - along.square().sum(dim=-1)).clamp_min(0)
        return ((along.square() / self.variances).sum(dim=-1) + left / self.residual) / self.shape[1]

    @classmethod
    def fit(cls, chunks: Chunks, rate: float) -> Domain:
        """Fit mean and spread of states; limits are infinite until :meth:`within` sets them.

        Memory stays within a chunk by subspace iteration (Halko et al. 2011, algorithm 4.4).
        """
        rows = sum(len(x) for x in chunks())
        mean = _sum(x.double().sum(dim=0) for x in chunks()) / rows
        deviation = (_sum((x.double() - mean).square().sum(dim=0) for x in chunks()) / rows).sqrt()
        least = _LEAST * deviation.median(dim=1, keepdim=True).values
        scale = torch.maximum(deviation, least).clamp_min(1e-6)
        spread = (deviation / scale).square().sum(dim=1).float()

        def scaled() -> Iterator[Tensor]:
            return ((x - mean.float()) / scale.float() for x in chunks())

        directions = _directions(scaled, rows, spread)
        return cls(mean.float(), scale.float(), *directions, limit=float("inf"), rate=rate)

    def within(self, distances: np.ndarray, surprise: np.ndarray | None = None) -> Domain:
        """Return it with limits that a share ``rate`` of texts exceeds, given those of n similar texts (n,).

        Both measures get the same share, the largest with which the two together stay within the rate.
        """
        if surprise is None:
            return replace(self, limit=limit_of(distances, self.rate))
        allowed = max(0, len(distances) - int(np.ceil((len(distances) + 1) * (1 - self.rate))))
        domain = self
        for share in _SHARES * self.rate:
            ends = -limit_of(-surprise, share / 2) - _ROUNDING, limit_of(surprise, share / 2) + _ROUNDING
            domain = replace(self, limit=limit_of(distances, share), surprise=ends)
            if domain.unlike(distances, surprise).sum() <= allowed:
                break
        return domain

    def unlike(self, distance: Any, surprise: Any = None) -> Any:
        """Tell whether texts of these distances, and surprise if known, are unlike the training texts."""
        far = np.asarray(distance) > self.limit
        if self.surprise is not None and surprise is not None:
            low, high = self.surprise
            far = far | (np.asarray(surprise) < low) | (np.asarray(surprise) > high)
        return far if far.ndim else bool(far)

    def to(self, device: Any) -> Domain:
        """Return it on another device."""
        moved: dict[str, Any] = {name: getattr(self, name).to(device) for name in _TENSORS}
        return replace(self, **moved)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write ``domain.safetensors``; return its entry in ``config.json``."""
        blob = encode({name: getattr(self, name).cpu().contiguous() for name in _TENSORS})
        write_bytes(folder / FILE, blob)
        surprise = None if self.surprise is None else list(self.surprise)
        return {"limit": self.limit, "rate": self.rate, "surprise": surprise, "sha256": digest(blob, 64)}

    @classmethod
    def read(cls, folder: Path, about: Mapping[str, Any]) -> Domain:
        """Invert :meth:`save`; UserError where the file is missing or damaged."""
        tensors = read_tensors(folder / FILE, about["sha256"], "train the prober again")
        low_high = about["surprise"] and tuple(map(float, about["surprise"]))
        return cls(**tensors, limit=float(about["limit"]), rate=float(about["rate"]), surprise=low_high)


def limit_of(distances: np.ndarray, rate: float) -> float:
    """Return the distance that a share ``rate`` of further texts should exceed, given those of n texts.

    It is the ceil((n + 1)(1 - rate))-th smallest, at most the largest (split conformal, Vovk et al. 2005).
    """
    place = int(np.ceil((len(distances) + 1) * (1 - rate)))
    return float(np.sort(distances)[min(place, len(distances)) - 1])


def _directions(chunks: Chunks, rows: int, spread: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find components (layers, k, d), their variances (layers, k), and the mean of all others (layers,).

    The ``rows`` states are centred and scaled; ``spread`` (layers,) is the sum of all coordinates' variances.
    """
    width = next(chunks()).shape[-1]
    k = max(0, min(_COMPONENTS, (rows - 1) // 4, width // 2))
    directions = torch.randn(len(spread), width, k, generator=torch.Generator().manual_seed(0))
    for _ in range(_PASSES):
        moved = _sum(torch.einsum("nld,nlk->ldk", x, _along(x, directions)) for x in chunks())
        directions = torch.linalg.qr(moved).Q
    inner = _sum(torch.einsum("nlk,nlm->lkm", z, z) for z in (_along(x, directions) for x in chunks())) / rows
    variances, turn = torch.linalg.eigh(inner)
    residual = ((spread - variances.sum(dim=1)) / (width - k)).clamp_min(1e-6)
    # Other directions never have more spread than the chosen ones.
    variances = torch.maximum(variances, residual[:, None])
    return (directions @ turn).transpose(1, 2).half().contiguous(), variances, residual


def _along(x: Tensor, directions: Tensor) -> Tensor:
    return torch.einsum("nld,ldk->nlk", x, directions)


def _sum(parts: Iterator[Tensor]) -> Tensor:
    return reduce(torch.add, parts)
