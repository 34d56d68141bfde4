"""Keys and values of a decoding batch: grown in place, and begun from a shared prefix.

transformers' dynamic cache makes a new tensor of the whole context for every token and
layer. Here room for the whole text is allocated once and filled, which gives the same
numbers and is what makes long prompts in large batches cheap to continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .forward import Decoder

_ROOM = 64  # positions added when a text outgrows its room


class GrowingLayer(DynamicLayer):
    """One layer's keys and values, as views of buffers with room for what is to come.

    Args:
        capacity: positions to make room for at first.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append (batch, heads, length, width) keys and values; returns all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._make_room(key_states, value_states, end + _ROOM if start else end)
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def reserve(self, rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Begin with ``length`` positions in each row, for the caller to fill.

        Args:
            keys, values: (heads, _, width) of one row, for their shape and kind.

        Returns:
            Keys and values (rows, heads, length, width) as the cache holds them.
        """
        self.lazy_initialization(keys, values)
        self._buffers = _empty(rows, max(length, self._capacity), keys, values)
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)
        return self.keys, self.values

    def _make_room(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        start, before = self.get_seq_length(), (self.keys, self.values)
        self._buffers = _empty(len(keys), max(capacity, self._capacity), keys[0], values[0])
        if start:
            for buffer, old in zip(self._buffers, before, strict=True):
                assert old is not None  # there are positions already
                buffer[:, :, :start] = old

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and the room there was."""
        if self._buffers is not None:
            length = self.get_seq_length()
            kept = [buffer.index_select(0, indices.to(buffer.device)) for buffer in self._buffers]
            self._buffers = (kept[0], kept[1])
            self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


def _empty(rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised (rows, heads, length, width) like keys and values (heads, _, width)."""
    made = [one.new_empty(rows, one.shape[0], length, one.shape[2]) for one in (keys, values)]
    return made[0], made[1]


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """An empty cache for a model of ``config``; full attention has room for ``capacity`` positions."""
    cache = DynamicCache(config=config)
    # Sliding windows stay as they are, they are short; so does whatever else a family brings.
    cache.layers = [GrowingLayer(capacity) if type(c) is DynamicLayer else c for c in cache.layers]
    return cache


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tokens that many prompts begin with, and their keys and values.

    Attributes:
        ids: the tokens.
        keys, values: per layer (heads, len(ids), width).
    """

    ids: tuple[int, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def compute(cls, decoder: Decoder, ids: Sequence[int]) -> Prefix:
        """Run the model over ``ids`` once."""
        tokens, mask, positions = decoder.pad([ids])
        # Without the config, so that layers with a sliding window keep all positions too:
        # how far the window reaches depends on what follows.
        cache = DynamicCache()
        decoder(tokens, mask, positions, cache=cache)
        layers: list[Any] = cache.layers
        found = [(layer.keys[0], layer.values[0]) for layer in layers]
        return cls(tuple(ids), tuple(k for k, _ in found), tuple(v for _, v in found))

    def shared(self, prompts: Sequence[Sequence[int]]) -> int:
        """How many of the tokens all ``prompts`` begin with, the last one of a prompt not counted.

        The last token is left to be computed, since its logits are wanted.
        """
        least = min(min(len(ids) - 1 for ids in prompts), len(self.ids))
        for ids in prompts:
            pairs = enumerate(zip(self.ids[:least], ids, strict=False))
            least = next((i for i, (mine, its) in pairs if mine != its), least)
        return least

    def fill(self, cache: Any, length: int, pads: Sequence[int]) -> None:
        """Put the first ``length`` columns of a left-padded batch into its empty cache.

        Row i begins with ``pads[i]`` columns of padding, and then has as much of the prefix
        as fits. What a row still lacks of it lies in the columns after these, and is
        computed with the rest of its prompt: every row stands where it would without a
        prefix, with the same positions and mask.
        """
        if not length:
            return
        runs = [(pad, len(list(rows))) for pad, rows in groupby(pads)]
        for layer, keys, values in zip(cache.layers, self.keys, self.values, strict=True):
            grows = isinstance(layer, GrowingLayer)
            make = layer.reserve if grows else _empty
            places = make(len(pads), length, keys, values)
            for place, found in zip(places, (keys, values), strict=True):
                start = 0
                for pad, count in runs:
                    rows = slice(start, start + count)
                    place[rows, :, :pad] = 0  # never seen, but it must be a number
                    place[rows, :, pad:] = found[:, : max(0, length - pad)]
                    start += count
            if not grows:
                layer.update(*places)


def can_share(config: Any) -> bool:
    """Whether a prefix's keys and values can be handed to other texts in this family."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
