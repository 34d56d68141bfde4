"""Rows of numbers in 8 bits: float8 e4m3 (Micikevicius et al. 2022), each row with a scale of its own.

e4m3 keeps 3 bits behind the leading one, from 448 down to 2^-6, and below it steps of 2^-9. A row is divided
by the power of two that brings its largest number to between 232 and 464, which is rounded to 448 at most.
So each number is off by at most a 16th of itself, or the largest of its row over 237,568 where that is more.
A power of two changes no digit: what is read and written again gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

#: The format's name, as ``dtype`` of a store.
FP8 = "fp8"
#: Numbers as large are not stored: they could be rounded up to what float32 does not have.
TOO_LARGE = 2.0**127

_SMALLEST = -126  # exponent of a scale: of the smallest normal number of float32
_TURN = 464 / 512  # from half of a power of two to the power: what lies above would be rounded to over 448


def encode(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Codes (.., d) in float8_e4m3fn and scales (..,) in float32, whose product stands for the vectors.

    Args:
        vectors: (.., d) float32, finite and below :data:`TOO_LARGE`.
    """
    import torch

    half, exponent = torch.frexp(vectors.abs().amax(dim=-1))
    exponent = (exponent - 9 + (half > _TURN)).clamp(min=_SMALLEST)
    scales = torch.ldexp(torch.ones_like(half), exponent)
    return (vectors / scales[..., None]).to(torch.float8_e4m3fn), scales


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The vectors (.., d) in float32 that codes, as bytes, and scales (..,) stand for."""
    import torch

    vectors = torch.from_numpy(codes).view(torch.float8_e4m3fn).float()
    return vectors.mul_(torch.from_numpy(scales)[..., None]).numpy()


def rounded(vectors: Tensor) -> Tensor:
    """Vectors as they would be read again."""
    codes, scales = encode(vectors)
    return codes.float().mul_(scales[..., None])
