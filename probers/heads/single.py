"""Heads of one layer: linear probes, multilayer perceptrons, and learned pooling over a text's tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .base import Dropout, Linear, Moments, Norm, ProbeHead, StandardisedHead, weight_generators


class LinearHead(StandardisedHead):
    """Standardised states and one linear map: logistic regression, the simplest learned probe.

    The mean and standard deviation of the training states are kept with the weights.
    """

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__(streams, width)
        self.linear = Linear(weight_generators(streams), width, 2)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(self.input(x))


class MeanDifferenceHead(ProbeHead):
    """The mass-mean direction (Marks and Tegmark 2023, section 5): nothing is learned by gradient.

    With theta = mean of the wrong minus mean of the correct training states and m the point midway
    between the two means, the margin is ``2 theta.(x - m) / |theta|^2``: 1 at the mean of the wrong
    states, -1 at that of the correct ones, whatever their scale. As log-odds these units have no meaning
    until the prober fits a temperature on validation data. The paper's other form, theta rotated by the
    inverse of the covariance, is not offered.

    Args:
        standardise: divide each dimension by its deviation over all training states first,
            so that a dimension counts by how far its classes lie apart in deviations.
    """

    learns: ClassVar[bool] = False
    direction: Tensor
    midpoint: Tensor

    def __init__(self, streams: Sequence[str], width: int, *, standardise: bool = False) -> None:
        super().__init__(streams, width)
        self.standardise = standardise
        self.register_buffer("direction", torch.zeros(len(streams), width))
        self.register_buffer("midpoint", torch.zeros(len(streams), width))

    @torch.no_grad()
    def prepare(self, moments: Moments) -> None:
        """Take direction and midpoint from the classes' means.

        Without a direction (means equal to six digits, for instance for an embedding layer and one token)
        all margins are 0.
        """
        wrong, correct = moments.class_mean.unbind(dim=1)
        theta, midpoint = wrong - correct, moments.class_mean.mean(dim=1)
        variance = moments.deviation.masked_fill(moments.deviation <= 1e-6, 1).square()
        weights = theta / variance if self.standardise else theta
        apart = theta.norm(dim=1, keepdim=True) > 1e-6 * midpoint.norm(dim=1, keepdim=True)
        length = (theta * weights).sum(dim=1, keepdim=True)
        self.direction.copy_(torch.where(apart, 2 * weights / length, torch.zeros_like(theta)))
        self.midpoint.copy_(midpoint)

    def _logits(self, x: Tensor) -> Tensor:
        margin = torch.bmm(x - self.midpoint[:, None], self.direction[..., None])
        return torch.cat([margin / 2, -margin / 2], dim=-1)


class _MlpHead(StandardisedHead):
    """Linear maps with ReLU between them."""

    def __init__(
        self, streams: Sequence[str], width: int, hidden: Sequence[int], dropout: float, standardise: bool
    ) -> None:
        super().__init__(streams, width, standardise=standardise)
        self.dropout, self.standardise = dropout, standardise
        self.drop = Dropout(streams, dropout)
        generators, sizes = weight_generators(streams), [width, *hidden, 2]
        self.linears = nn.ModuleList(Linear(generators, a, b) for a, b in zip(sizes, sizes[1:], strict=False))


class RadioHead(_MlpHead):
    """RaDIO's detector (Zhu et al., AAAI 2025): Linear -> ReLU -> Linear on a token's last-layer state.

    The paper says "MLP" and binary cross-entropy (here of the difference of two logits); depth, width,
    activation, dropout of hidden units and standardised inputs are choices made here.

    Args:
        hidden: units of the one hidden layer.
        dropout: probability of dropping a hidden unit while training.
        standardise: whether states are standardised by the training states' moments.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, hidden: int = 256, dropout: float = 0.0,
        standardise: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(streams, width, [hidden], dropout, standardise)
        self.hidden = hidden

    def _logits(self, x: Tensor) -> Tensor:
        first, last = self.linears
        return last(self.drop(F.relu(first(self.input(x))), self.step))


class MindHead(_MlpHead):
    """MIND's detector (Su et al., Findings of ACL 2024): Dropout -> 256 -> 128 -> 64 -> 2 with ReLU.

    It is made for ``pool=mind``, whose states are two joined vectors: the last token averaged over layers,
    and the mean over tokens of the last layer.

    Args:
        dropout: probability of dropping an input dimension while training.
        standardise: whether states are standardised first; the published detector does not do it.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, dropout: float = 0.2, standardise: bool = False
    ) -> None:
        super().__init__(streams, width, [256, 128, 64], dropout, standardise)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop(self.input(x), self.step)
        for linear in self.linears[:-1]:
            x = F.relu(linear(x))
        return self.linears[-1](x)


class ProbingRagHead(ProbeHead):
    """Probing-RAG's prober, with the size and structure of its released code.

    LayerNorm(d) -> Linear -> SiLU -> LayerNorm -> Dropout -> Linear -> SiLU -> LayerNorm -> Dropout ->
    Linear 2. With d = 2048 and 512 hidden units a head has 1.32 million parameters, 2.6 MB as saved.

    Args:
        hidden: units of both hidden layers.
        dropout: probability of dropping a hidden unit while training.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, hidden: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__(streams, width)
        self.hidden, self.dropout = hidden, dropout
        generators = weight_generators(streams)
        self.norm0 = Norm(len(streams), width)
        self.linear1 = Linear(generators, width, hidden)
        self.norm1 = Norm(len(streams), hidden)
        self.drop1 = Dropout(streams, dropout, place=1)
        self.linear2 = Linear(generators, hidden, hidden)
        self.norm2 = Norm(len(streams), hidden)
        self.drop2 = Dropout(streams, dropout, place=2)
        self.linear3 = Linear(generators, hidden, 2)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop1(self.norm1(F.silu(self.linear1(self.norm0(x)))), self.step)
        x = self.drop2(self.norm2(F.silu(self.linear2(x))), self.step)
        return self.linear3(x)


class AttentionHead(ProbeHead):
    """Base of heads with a learned query that attends over the states of a text; a linear map reads the mean.

    Each state is layer-normed without a gain (query and map are one already), weighted by
    softmax(query . state / sqrt(d)) over all of them, and the mean goes through a linear map to the two
    logits. The query begins at zero: training begins at mean pooling.
    """

    tokens: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int, layers: int = 1) -> None:
        super().__init__(streams, width, layers)
        self.query = nn.Parameter(torch.zeros(len(streams), *self._sizes[::-1]))
        self.linear = Linear(weight_generators(streams), width, 2)

    def weights(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (n, T, H) or (n, T, H, L), with a sum of 1 for each head and text.

        ``states`` are (n, T, H, d) or (n, T, H, L, d), ``mask`` is (n, T).
        """
        return self._weights(_normed(states, mask), mask).movedim(0, 2)

    def _token_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        x = _normed(x, mask)
        return self.linear((self._weights(x, mask).flatten(2)[:, :, None] @ x.flatten(2, -2))[:, :, 0])

    def _weights(self, x: Tensor, mask: Tensor) -> Tensor:
        """Compute weights (H, n, T) or (H, n, T, L)."""
        scores = torch.einsum("hnt...d,h...d->hnt...", x, self.query) / math.sqrt(self.width)
        scores = scores.masked_fill(~mask.view(*mask.shape, *[1] * (x.ndim - 4)), -math.inf)
        return scores.flatten(2).softmax(dim=-1).view_as(scores)


class AttentionPoolHead(AttentionHead):
    """One learned query per head attends over the text's tokens; a linear map reads the result."""

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__(streams, width)


def _normed(states: Tensor, mask: Tensor) -> Tensor:
    """Normalise states (n, T, H, .., d) to (H, n, T, .., d); places without a token (n, T) are zero."""
    if not bool(mask.any(dim=1).all()):
        raise ValueError("a text without tokens has nothing to pool")
    x = states.movedim(2, 0).clone(memory_format=torch.contiguous_format)
    there = mask.view(*mask.shape, *[1] * (x.ndim - 3))
    # A zero weight is not enough: zero times NaN is NaN.
    return F.layer_norm(x.masked_fill_(~there, 0), x.shape[-1:])
