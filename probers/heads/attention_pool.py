"""Learned pooling over a text's tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Linear, ProbeHead, weight_generators


class AttentionPoolHead(ProbeHead):
    """One learned query per head attends over the text's tokens; a linear map reads the result.

    Each token's state is layer-normed without a gain (query and map are one already), weighted by
    softmax(query . state / sqrt(d)) over the tokens, and the mean goes through a linear map to the two
    logits. The query begins at zero: training begins at mean pooling.
    """

    tokens: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__(streams, width)
        self.query = nn.Parameter(torch.zeros(len(streams), width))
        self.linear = Linear(weight_generators(streams), width, 2)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (n, T, H) of tokens, which sum to 1 over T; states (n, T, H, d), mask (n, T)."""
        return self._weights(normed(states, mask), mask).permute(1, 2, 0)

    def _token_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        x = normed(x, mask)
        return self.linear((self._weights(x, mask)[:, :, None] @ x)[:, :, 0])

    def _weights(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (H, n, T)."""
        scores = torch.bmm(x.flatten(1, 2), self.query[..., None]).view(x.shape[:3]) / math.sqrt(self.width)
        return scores.masked_fill(~mask, -math.inf).softmax(dim=-1)


def normed(states: Tensor, mask: Tensor) -> Tensor:
    """Normalise the states with the heads first; places without a token are zero.

    It maps (n, T, H, d) to (H, n, T, d), or (n, T, H, L, d) to (H, n, T, L, d); ``mask`` is (n, T).
    """
    if not bool(mask.any(dim=1).all()):
        raise ValueError("a text without tokens has nothing to pool")
    x = states.movedim(2, 0).clone(memory_format=torch.contiguous_format)
    there = mask.view(*mask.shape, *[1] * (x.ndim - 3))
    # A zero weight is not enough: zero times NaN is NaN.
    return F.layer_norm(x.masked_fill_(~there, 0), x.shape[-1:])
