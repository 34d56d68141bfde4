"""Keys and values of a decoding batch, grown in place.

transformers' dynamic cache makes a new tensor of the whole context for every token and
layer. Here room for the whole text is allocated once and filled, which gives the same
numbers and is what makes long prompts in large batches cheap to continue.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

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
        self._buffers = empty(rows, max(length, self._capacity), keys, values)
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)
        return self.keys, self.values

    def _make_room(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        start, before = self.get_seq_length(), (self.keys, self.values)
        self._buffers = empty(len(keys), max(capacity, self._capacity), keys[0], values[0])
        if start:
            for buffer, old in zip(self._buffers, before, strict=True):
                assert old is not None  # there are positions already
                buffer[:, :, :start] = old

    def drop(self, count: int) -> None:
        """Take back the last ``count`` positions."""
        if self._buffers is not None:
            length = self.get_seq_length() - count
            self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and the room there was.

        Where rows keep their place and the others come from behind them, as
        :func:`probers.running.closed` orders them, only those are copied.
        """
        if self._buffers is None:
            return
        length, sources = self.get_seq_length(), indices.tolist()
        moved = [(row, source) for row, source in enumerate(sources) if row != source]
        if all(source >= len(sources) for _, source in moved):
            for buffer in self._buffers:
                for row, source in moved:
                    buffer[row, :, :length] = buffer[source, :, :length]
            kept = [buffer[: len(sources)] for buffer in self._buffers]
        else:
            kept = [buffer.index_select(0, indices.to(buffer.device)) for buffer in self._buffers]
        self._buffers = (kept[0], kept[1])
        self.keys, self.values = (buffer[:, :, :length] for buffer in self._buffers)


def empty(rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised (rows, heads, length, width) like keys and values (heads, _, width)."""
    made = [one.new_empty(rows, one.shape[0], length, one.shape[2]) for one in (keys, values)]
    return made[0], made[1]


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """An empty cache for a model of ``config``; full attention has room for ``capacity`` positions."""
    cache = DynamicCache(config=config)
    # Sliding windows stay as they are, they are short; so does whatever else a family brings.
    cache.layers = [GrowingLayer(capacity) if type(c) is DynamicLayer else c for c in cache.layers]
    return cache


def can_share(config: Any) -> bool:
    """Whether a prefix's keys and values can be handed to other texts in this family."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
