"""Building blocks of heads: H layers side by side, on activations (H, n, d)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..drawing import draw_key
from ..types import UserError
from .base import Moments


def weight_generators(streams: Sequence[str]) -> list[torch.Generator]:
    """One generator of initial weights per head."""
    return [torch.Generator().manual_seed(draw_key("weights", 0, stream)) for stream in streams]


class Linear(nn.Module):
    """H linear maps; initial values uniform in +-1/sqrt(inputs), each from its own generator."""

    def __init__(self, generators: Sequence[torch.Generator], inputs: int, outputs: int) -> None:
        super().__init__()
        if outputs < 1:
            raise UserError(f"head: a hidden layer of {outputs} units is none: give 1 or more")
        bound = 1 / math.sqrt(inputs)
        weights = [torch.rand(inputs, outputs, generator=g) for g in generators]
        biases = [torch.rand(outputs, generator=g) for g in generators]
        self.weight = nn.Parameter((2 * torch.stack(weights) - 1) * bound)
        self.bias = nn.Parameter((2 * torch.stack(biases) - 1) * bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], x, self.weight)


class Norm(nn.Module):
    """H layer norms."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, width))
        self.bias = nn.Parameter(torch.zeros(heads, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias[:, None], F.layer_norm(x, x.shape[-1:]), self.weight[:, None])


class Standardise(nn.Module):
    """Zero mean and unit deviation per head and dimension, by the training states' moments.

    Until :meth:`fit` is called the states pass unchanged.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(heads, width))
        self.register_buffer("scale", torch.ones(heads, width))

    @torch.no_grad()
    def fit(self, moments: Moments) -> None:
        """Take mean and deviation; a constant dimension is left unscaled."""
        deviation = moments.deviation
        self.mean.copy_(moments.mean)
        self.scale.copy_(torch.where(deviation > 1e-6, deviation, torch.ones_like(deviation)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean[:, None]) / self.scale[:, None]


class Dropout(nn.Module):
    """Dropout whose masks follow from stream, place and step alone.

    They depend neither on which other heads there are nor on the device, and there is no
    state to save. Each number is a hash of its position: the output function of
    SplitMix64 (Steele, Lea and Flood 2014) on a counter, four 16-bit draws per value.
    Drawn for all heads at once, that takes less time than a generator per head, and on a
    GPU nothing waits for the CPU.

    Args:
        streams: names of the heads' random streams.
        p: share to drop, a multiple of 2**-16 after rounding.
        place: tells the dropouts of one head apart.
    """

    _keys: Tensor

    def __init__(self, streams: Sequence[str], p: float, place: int = 0) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"head.dropout={p} must be at least 0 and below 1")
        self.p = p
        keys = [_signed(draw_key(f"dropout{place}", 0, stream)) for stream in streams]
        self.register_buffer("_keys", torch.tensor(keys)[:, None], persistent=False)

    def forward(self, x: Tensor, step: int) -> Tensor:
        """Activations (H, n, d), some of them zero while training; another ``step``, other ones."""
        if not self.training or self.p == 0:
            return x
        size = x[0].numel()
        counter = torch.arange(-(-size // 4), device=x.device) * _GOLDEN
        first = _mix(self._keys + _signed(step * _GOLDEN % 2**64))
        draws = _mix(first + counter).view(torch.int16)[:, :size].reshape(x.shape)
        keep = draws >= round(self.p * 2**16) - 2**15
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))


def _signed(number: int) -> int:
    """The 64 bits of a number as torch's integers have them, which know no unsigned arithmetic."""
    return number - 2**64 if number >= 2**63 else number


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_ROUNDS = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


def _mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser of int64, in place: every bit of the input reaches every bit."""
    for shift, factor in _ROUNDS:
        # torch shifts in the sign, hence the mask.
        z.bitwise_xor_((z >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return z.bitwise_xor_((z >> 31).bitwise_and_(2**33 - 1))
