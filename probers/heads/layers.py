"""Linear heads of several layers at once: concatenated, mixed, or with attention over layers and tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..types import UserError
from .base import Linear, ProbeHead, Standardise, StandardisedHead, weight_generators
from .single import normed


class ConcatHead(StandardisedHead):
    """Logistic regression on the standardised states of all layers, joined to one vector.

    With ``group_lasso`` the loss also has that number times the sum over layers of sqrt(d) |W_l|, where W_l
    are the weights of layer l (Yuan and Lin 2006, equation 2.1). Each step ends in the penalty's proximal
    map in the metric of the optimiser (Yun et al. 2021, with the mean rate of each layer), so that the
    weights of layers without information become exactly zero.

    Args:
        group_lasso: strength of the penalty; 0 keeps all layers.
    """

    joint: ClassVar[bool] = True
    beside: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int, layers: int, *, group_lasso: float = 0.0) -> None:
        super().__init__(streams, width, layers)
        if group_lasso < 0:
            raise UserError(f"head.group_lasso={group_lasso:g} must be at least 0")
        self.group_lasso = group_lasso
        self.input = Standardise(len(streams), layers, width)
        self.linear = Linear(weight_generators(streams), layers * width, 2)

    @torch.no_grad()
    def shrink(self, rates: Mapping[str, Tensor]) -> None:
        """Shorten each layer's weights by the penalty's share of a step, but not below zero."""
        if not self.group_lasso:
            return
        weights, rate = map(self._by_layer, (self.linear.weight, rates["linear.weight"]))
        step = rate.mean(dim=(2, 3), keepdim=True) * self.group_lasso * math.sqrt(self.width)
        length = weights.norm(dim=(2, 3), keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        weights.mul_((1 - step / length).clamp_min(0))

    @torch.no_grad()
    def layer_weights(self) -> Tensor:
        """Compute the share (H, L) of each layer in the norm of the weights."""
        lengths = self._by_layer(self.linear.weight).norm(dim=(2, 3))
        return lengths / lengths.sum(dim=1, keepdim=True).clamp_min(torch.finfo(lengths.dtype).tiny)

    def _by_layer(self, weight: Tensor) -> Tensor:
        """View (H, L d, 2) as (H, L, d, 2)."""
        return weight.unflatten(1, (self.layers, self.width))

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(self.input(x).flatten(2))


class MixHead(StandardisedHead):
    """Logistic regression on a learned mix of the layers.

    The mix is the mean of the standardised states with weights softmax(a), initially equal (the scalar mix
    of Peters et al. 2018, equation 1). It has 1/L of the parameters of :class:`ConcatHead`.
    """

    joint: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int, layers: int) -> None:
        super().__init__(streams, width, layers)
        self.input = Standardise(len(streams), layers, width)
        self.mix = nn.Parameter(torch.zeros(len(streams), layers))
        self.linear = Linear(weight_generators(streams), width, 2)

    @torch.no_grad()
    def layer_weights(self) -> Tensor:
        """Return weights (H, L) of the mix."""
        return self.mix.softmax(dim=1)

    def _logits(self, x: Tensor) -> Tensor:
        mixed = self.mix.softmax(dim=1)[:, None, None] @ self.input(x)
        return self.linear(mixed[:, :, 0])


class LayerAttentionHead(ProbeHead):
    """Attention over the tokens and layers of a text; a linear map reads the result.

    :class:`.single.AttentionPoolHead` with a query for each layer and one softmax over all tokens of
    all layers. The queries start at zero, and thus training at the mean of all states.
    """

    joint: ClassVar[bool] = True
    tokens: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int, layers: int) -> None:
        super().__init__(streams, width, layers)
        self.query = nn.Parameter(torch.zeros(len(streams), layers, width))
        self.linear = Linear(weight_generators(streams), width, 2)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (n, T, H, L), which sum to 1 over T and L.

        ``states`` are (n, T, H, L, d), ``mask`` is (n, T).
        """
        return self._weights(normed(states, mask), mask).movedim(0, 2)

    def _token_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        x = normed(x, mask)
        return self.linear((self._weights(x, mask).flatten(2)[:, :, None] @ x.flatten(2, 3))[:, :, 0])

    def _weights(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (H, n, T, L)."""
        scores = (x * self.query[:, None, None]).sum(dim=-1) / math.sqrt(self.width)
        scores = scores.masked_fill(~mask[..., None], -math.inf)
        return scores.flatten(2).softmax(dim=-1).view_as(scores)
