"""Heads of several layers at once: concatenated, mixed, with attention, or a small causal transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..types import UserError
from .base import Dropout, Linear, Memory, Norm, StandardisedHead, weight_generators
from .single import AttentionHead


class ConcatHead(StandardisedHead):
    """Logistic regression on the standardised states of all layers, joined to one vector.

    With ``group_lasso`` the loss also has that number times the sum over layers of ``sqrt(d) |W_l|``, where
    W_l are the weights of layer l (Yuan and Lin 2006, equation 2.1). Each step ends in the penalty's proximal
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
        self.mix = nn.Parameter(torch.zeros(len(streams), layers))
        self.linear = Linear(weight_generators(streams), width, 2)

    @torch.no_grad()
    def layer_weights(self) -> Tensor:
        """Return weights (H, L) of the mix."""
        return self.mix.softmax(dim=1)

    def _logits(self, x: Tensor) -> Tensor:
        mixed = self.mix.softmax(dim=1)[:, None, None] @ self.input(x)
        return self.linear(mixed[:, :, 0])


class LayerAttentionHead(AttentionHead):
    """Attention over the tokens and layers of a text; a linear map reads the result.

    It has a query for each layer and one softmax over all tokens of all layers.
    """

    joint: ClassVar[bool] = True


#: Width of an attention head.
_HEAD = 32
#: Probability of dropping a number of the embedded token, or of each block's outputs, while training.
_DROPOUT = 0.2


class SequenceHead(StandardisedHead):
    """A transformer decoder of one or two blocks, which scores each token by the tokens up to it.

    The standardised states of all layers are joined and mapped to ``size`` numbers a token. Each block is
    pre-norm attention and an MLP of twice that size with GELU; a token sees itself and the ``window`` - 1
    tokens before it, with a learned bias for each distance instead of positions. So a score depends only on
    the last :attr:`reach` tokens, and a growing text keeps only the keys and values of one window
    (:meth:`advance`). Its inputs are those of the small transformers of Shelmanov et al. (2025), without
    attention; the losses are those of Obeso et al. (2025) with ``loss=span_max``.

    Args:
        size: numbers per token within the head, 32 for each attention head.
        blocks: transformer blocks, 1 or 2.
        window: number of tokens that a token can see, itself included.
        marker: add a learned vector to the tokens of the scored span. Its scores are then those of given
            spans, so that it cannot score a text while it grows.
    """

    joint: ClassVar[bool] = True
    beside: ClassVar[bool] = True
    causal = True

    def __init__(
        self, streams: Sequence[str], width: int, layers: int, *, size: int = 128, blocks: int = 1,
        window: int = 32, marker: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(streams, width, layers)
        ranges = {"size": (size, 8, 1024), "blocks": (blocks, 1, 2), "window": (window, 1, 1024)}
        for name, (value, least, most) in ranges.items():
            if not least <= value <= most:
                raise UserError(f"head.{name}={value} must be from {least} to {most}")
        attention_heads = max(1, size // _HEAD)
        if size % attention_heads:
            raise UserError(f"head.size={size} does not fit heads of {_HEAD}: give a multiple of {_HEAD}")
        self.size, self.blocks, self.window, self.marker = size, blocks, window, marker
        generators, heads = weight_generators(streams), len(streams)
        self.drop = Dropout(streams, _DROPOUT)
        self.embed = Linear(generators, layers * width, size)
        self.mark = nn.Parameter(torch.zeros(heads, size)) if marker else None
        block = partial(_Block, streams, generators, (size, attention_heads, window))
        self.stack = nn.ModuleList(map(block, range(blocks)))
        self.norm = Norm(heads, size)
        self.linear = Linear(generators, size, 2)

    @property
    def reach(self) -> int:
        return self.blocks * (self.window - 1) + 1

    def _sequence_logits(self, x: Tensor, mask: Tensor, judged: Tensor | None) -> Tensor:
        mask = mask.movedim(2, 0) if mask.ndim == 3 else mask
        judged = judged.movedim(2, 0) if judged is not None and judged.ndim == 3 else judged
        # Not a product: zero times NaN is NaN.
        x = self._embedded(x.movedim(2, 0).masked_fill(~mask[..., None, None], 0))
        if self.mark is not None and judged is not None:
            x = x + judged[..., None] * self.mark[:, None, None]
        places = torch.arange(x.shape[2], device=x.device)
        away = places[:, None] - places  # distance of a key from a query (rows)
        seen = (away >= 0) & (away < self.window) & mask[..., None, :]
        # Padding sees itself, so that no row of the softmax is empty.
        seen = seen | torch.eye(len(places), dtype=torch.bool, device=x.device)
        for block in self.stack:
            x = block(x, away.clamp(0, self.window - 1), seen, self.step)
        return self.linear(self.norm(x.flatten(1, 2))).view(*x.shape[:3], 2)

    def _embedded(self, x: Tensor) -> Tensor:
        """Map (H, n, T, L, d) to (H, n, T, size)."""
        flat = self.embed(self.input(x.flatten(1, 2)).flatten(2))
        return self.drop(flat, self.step).unflatten(1, x.shape[1:3])

    def begin(self, texts: int) -> Memory:
        """Make empty keys and values (n, H, blocks, 2, window - 1, size), and lengths (n,)."""
        shape = (texts, len(self.streams), self.blocks, 2, self.window - 1, self.size)
        length = torch.zeros(texts, dtype=torch.long, device=self.device)
        return Memory((torch.zeros(shape, device=self.device), length))

    def advance(self, states: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Compute the logits (n, H, 2) of the next tokens, whose keys and values are added to the memory."""
        before, length = memory
        x = self._embedded(states.movedim(1, 0)[:, :, None])
        there = torch.arange(self.window - 1, 0, -1, device=x.device) <= length[:, None]
        after = []
        for number, block in enumerate(self.stack):
            assert isinstance(block, _Block)
            x, keys_and_values = block.advance(x, before[:, :, number].movedim(0, 1), there)
            after.append(keys_and_values)
        logits = self.linear(self.norm(x[:, :, 0])).movedim(0, 1)
        return logits, Memory((torch.stack(after, dim=2).movedim(0, 1), length + 1))


class _Block(nn.Module):
    """Attention over a window, and an MLP, each with a norm before it and added to its input."""

    def __init__(
        self, streams: Sequence[str], generators: Sequence[torch.Generator], sizes: tuple[int, int, int],
        place: int,
    ) -> None:  # fmt: skip
        super().__init__()
        size, self._heads, self._window = sizes
        count = len(streams)
        self.norm1, self.norm2 = Norm(count, size), Norm(count, size)
        self.qkv = Linear(generators, size, 3 * size, bias=False)
        self.out = Linear(generators, size, size)
        self.up, self.down = Linear(generators, size, 2 * size), Linear(generators, 2 * size, size)
        self.bias = nn.Parameter(torch.zeros(count, self._heads, self._window))
        self.drop1 = Dropout(streams, _DROPOUT, place=2 * place + 1)
        self.drop2 = Dropout(streams, _DROPOUT, place=2 * place + 2)

    def forward(self, x: Tensor, away: Tensor, seen: Tensor, step: int) -> Tensor:
        """Map (H, n, T, size) to itself; ``away`` (T, T), ``seen`` (.., n, T, T) are by query and key."""
        query, key, value = self._project(x)
        scores = query @ key.transpose(-1, -2) + self.bias[:, :, away][:, None]
        weights = scores.masked_fill(~seen[..., None, :, :], -math.inf).softmax(dim=-1)
        return self._finish(x, weights @ value, step)

    def advance(self, x: Tensor, before: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Map (H, n, 1, size), keys and values (H, n, 2, window - 1, size) to the next ones.

        ``there`` (n, window - 1) tells which of them belong to tokens.
        """
        query, key, value = self._project(x)
        every = torch.cat([before, torch.stack([self._joined(key), self._joined(value)], dim=2)], dim=3)
        key, value = (self._split(part) for part in every.unbind(dim=2))
        scores = query @ key.transpose(-1, -2) + self.bias.flip(-1)[:, None, :, None]
        seen = F.pad(there, (0, 1), value=True)
        weights = scores.masked_fill(~seen[:, None, None], -math.inf).softmax(dim=-1)
        return self._finish(x, weights @ value, 0), every[:, :, :, 1:]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute scaled queries, keys and values (H, n, A, T, size / A) from (H, n, T, size)."""
        parts = self.qkv(self.norm1(x.flatten(1, 2))).unflatten(1, x.shape[1:3]).chunk(3, dim=-1)
        query, key, value = map(self._split, parts)
        return query / math.sqrt(query.shape[-1]), key, value

    def _split(self, x: Tensor) -> Tensor:
        """Split (H, n, T, size) to (H, n, A, T, size / A)."""
        return x.unflatten(-1, (self._heads, -1)).transpose(2, 3)

    def _joined(self, x: Tensor) -> Tensor:
        """Join (H, n, A, T, size / A) to (H, n, T, size)."""
        return x.transpose(2, 3).flatten(3)

    def _finish(self, x: Tensor, attended: Tensor, step: int) -> Tensor:
        flat = x.flatten(1, 2) + self.drop1(self.out(self._joined(attended).flatten(1, 2)), step)
        inner = self.down(F.gelu(self.up(self.norm2(flat))))
        return (flat + self.drop2(inner, step)).unflatten(1, x.shape[1:3])
