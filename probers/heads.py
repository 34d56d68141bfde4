"""Prober heads: from the pooled state of one layer to "wrong" against "correct".

All layers' heads are one module whose parameters carry a leading head axis, so that
they train and run as batched matrix products. They share nothing: each head's
initial weights and dropout masks come from a random stream of its own, so that a head
trained among others equals one trained alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Index of the class in the logits' last axis; Probing-RAG's label 1 is "answer correct".
WRONG, CORRECT = 0, 1


class ProbeHead(nn.Module):
    """H independent heads on states of width d; subclasses define :meth:`_logits`.

    Args:
        streams: one name per head for its random stream, e.g. seed and layer; H of them.
        width: d.
    """

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__()
        self.streams = tuple(streams)
        self.width = width

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments that rebuild this kind of head, beside streams and width."""
        raise NotImplementedError

    def prepare(self, mean: Tensor, deviation: Tensor) -> None:
        """Fit what is not learned by gradient; nothing by default.

        Args:
            mean, deviation: (H, d) float64, of each head's training states.
        """

    def forward(self, states: Tensor) -> Tensor:
        """Logits (n, H, 2) of states (n, H, d), every head on its own slice.

        Raises:
            ValueError: another number of heads or width.
        """
        if states.ndim != 3 or states.shape[1:] != (len(self.streams), self.width):
            raise ValueError(
                f"states have shape {tuple(states.shape)}, expected (n, {len(self.streams)}, {self.width})"
            )
        # Heads first: the layout of batched matrix products.
        return self._logits(states.transpose(0, 1)).transpose(0, 1)

    def _logits(self, x: Tensor) -> Tensor:
        """(H, n, d) -> (H, n, 2)."""
        raise NotImplementedError

    def select(self, heads: Sequence[int]) -> ProbeHead:
        """A copy with some of the heads, by position."""
        index = torch.as_tensor(list(heads), dtype=torch.long)
        chosen = type(self)([self.streams[i] for i in heads], self.width, **self.options)
        with torch.no_grad():
            chosen.load_state_dict({k: v.detach().cpu()[index] for k, v in self.state_dict().items()})
        return chosen.train(self.training)


class ProbingRagHead(ProbeHead):
    """Probing-RAG's prober, as its size and released code have it.

    LayerNorm(d) -> Linear -> SiLU -> LayerNorm -> Dropout -> Linear -> SiLU ->
    LayerNorm -> Dropout -> Linear 2. With d = 2048 and 512 hidden units a head has 1.32
    million parameters, 2.6 MB in the half precision it is saved in.

    Args:
        streams: see :class:`ProbeHead`.
        width: d.
        hidden: units of both hidden layers.
        dropout: probability of dropping a hidden unit while training.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, hidden: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__(streams, width)
        self.hidden, self.dropout = hidden, dropout
        generators = [_generator(s, "weights") for s in self.streams]
        self.norm0 = _Norm(len(self.streams), width)
        self.linear1 = _Linear(generators, width, hidden)
        self.norm1 = _Norm(len(self.streams), hidden)
        self.linear2 = _Linear(generators, hidden, hidden)
        self.norm2 = _Norm(len(self.streams), hidden)
        self.linear3 = _Linear(generators, hidden, 2)
        self.drop = _Dropout(self.streams, dropout)

    @property
    def options(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "dropout": self.dropout}

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm1(F.silu(self.linear1(self.norm0(x)))))
        x = self.drop(self.norm2(F.silu(self.linear2(x))))
        return self.linear3(x)


class LinearHead(ProbeHead):
    """Standardised states and one linear map: logistic regression, the simplest probe.

    The mean and standard deviation of the training states are kept with the weights.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__(streams, width)
        self.linear = _Linear([_generator(s, "weights") for s in self.streams], width, 2)
        self.register_buffer("mean", torch.zeros(len(self.streams), width))
        self.register_buffer("scale", torch.ones(len(self.streams), width))

    @property
    def options(self) -> dict[str, Any]:
        return {}

    @torch.no_grad()
    def prepare(self, mean: Tensor, deviation: Tensor) -> None:
        """Take mean and deviation per head and dimension; a constant dimension is left unscaled."""
        self.mean.copy_(mean)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear((x - self.mean[:, None]) / self.scale[:, None])


#: Names in ``config.json`` of saved probers and in ``configs/head``.
HEADS: dict[str, type[ProbeHead]] = {"probing_rag": ProbingRagHead, "linear": LinearHead}


def head_name(head: ProbeHead | type[ProbeHead]) -> str:
    """The name under which a head is saved; a dotted path for a class of the user's own."""
    kind = head if isinstance(head, type) else type(head)
    names = {cls: name for name, cls in HEADS.items()}
    return names.get(kind, f"{kind.__module__}.{kind.__qualname__}")


class _Linear(nn.Module):
    """H linear maps; initial values uniform in +-1/sqrt(inputs), each from its own stream."""

    def __init__(self, generators: Sequence[torch.Generator], inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        weights = [torch.rand(inputs, outputs, generator=g) for g in generators]
        biases = [torch.rand(outputs, generator=g) for g in generators]
        self.weight = nn.Parameter((2 * torch.stack(weights) - 1) * bound)
        self.bias = nn.Parameter((2 * torch.stack(biases) - 1) * bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], x, self.weight)


class _Norm(nn.Module):
    """H layer norms."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight[:, None] + self.bias[:, None]


class _Dropout(nn.Module):
    """Dropout whose masks for a head do not depend on which other heads there are."""

    def __init__(self, streams: Sequence[str], p: float) -> None:
        super().__init__()
        self.p = p
        # Always on the CPU, so that the masks are the same on every device.
        self._generators = [_generator(s, "dropout") for s in streams]

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # Uniform 16-bit integers are drawn several times faster than floats.
        keep = torch.empty(x.shape, dtype=torch.int16)
        for head, generator in zip(keep, self._generators, strict=True):
            head.random_(0, 1 << 15, generator=generator)
        mask = (keep >= round(self.p * (1 << 15))).to(x.device, x.dtype)
        return x * mask / (1 - self.p)


def _generator(stream: str, use: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{use}/{stream}".encode()))
