"""Caches of keys and values, which grow in place and are reused by texts that begin alike.

transformers' dynamic cache makes a new tensor of the whole context for every token and layer. Here room for
the whole text is allocated once and filled, with the same numbers as result.

- :class:`PrefixCache` holds every token of the last text of a name, for calls that extend it (the loop).
  The number of columns that a batch begins with decides how its matrix products are cut and thus the last
  digits of scores: with whole blocks a resumed run would not repeat the digits of earlier ones. Drafts also
  look up the text of that name.
- :class:`BlockCache` holds blocks of tokens by a hash of all tokens up to their end (Kwon et al. 2023,
  section 4.4; automatic prefix caching of vLLM), for a server whose texts have no names.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .tokens import shared_start

_ROOM = 64  # positions added when a text outgrows its room


class GrowingLayer(DynamicLayer):
    """One layer's keys and values, views of buffers with room for ``capacity`` positions, or more."""

    keys: Any
    values: Any

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity
        self._buffers: tuple[Tensor, ...] = ()

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (batch, heads, length, width); return all there are."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows, start = len(key_states), self.get_seq_length()
        end = start + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            room = max(end + _ROOM if start else end, self._capacity)
            self._buffers = empty(rows, room, key_states[0], value_states[0])
            if start:
                for buffer, old in zip(self._buffers, (self.keys, self.values), strict=True):
                    buffer[:, :, :start] = old
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, start:end] = new
        return self._view(rows, end)

    def _view(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (buffer[:rows, :, :length] for buffer in self._buffers)
        return self.keys, self.values

    def reserve(self, rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Begin with ``length`` positions for the caller to fill; both are (rows, heads, length, width)."""
        self.lazy_initialization(keys, values)
        self._buffers = empty(rows, max(length, self._capacity), keys, values)
        return self._view(rows, length)

    def join(self, other: GrowingLayer, rows: int) -> None:
        """Add the rows of another layer, with room for ``rows``; shorter ones begin masked."""
        if other.keys is None:
            return
        if self.keys is None:
            self.lazy_initialization(other.keys, other.values)
        old, length = self._buffers, self.get_seq_length()
        before = len(self.keys) if old else 0
        after, total = before + len(other.keys), max(length, other.get_seq_length())
        if not old or after > len(old[0]) or total > old[0].shape[-2]:
            self._buffers = empty(max(after, rows), total + _ROOM, other.keys[0], other.values[0])
        if before and (old is not self._buffers or total > length):
            for buffer, values in zip(self._buffers, (self.keys, self.values), strict=True):
                _align(buffer[:before, :, :total], values.clone())  # both may lie in the same buffer
        for buffer, values in zip(self._buffers, (other.keys, other.values), strict=True):
            _align(buffer[before:after, :, :total], values)
        self._view(after, total)

    def trim(self, count: int) -> None:
        """Forget the first ``count`` positions of every row."""
        if self._buffers:
            rows, length = len(self.keys), self.get_seq_length() - count
            for buffer in self._buffers:
                buffer[:rows, :, :length] = buffer[:rows, :, count : count + length].clone()
            self._view(rows, length)

    def drop(self, count: int) -> None:
        """Remove the last ``count`` positions."""
        if self._buffers:
            self._view(len(self.keys), self.get_seq_length() - count)

    def select(self, sources: Sequence[int]) -> None:
        """Keep some rows, and the room; in the order of :func:`.decode.closed` few rows are copied."""
        if not self._buffers:
            return
        length = self.get_seq_length()
        moved = [(row, source) for row, source in enumerate(sources) if row != source]
        if all(source >= len(sources) for _, source in moved):
            for buffer in self._buffers:
                for row, source in moved:
                    buffer[row, :, :length] = buffer[source, :, :length]
        else:
            chosen = torch.tensor(sources, device=self._buffers[0].device)
            self._buffers = tuple(buffer.index_select(0, chosen) for buffer in self._buffers)
        self._view(len(sources), length)


def select_rows(cache: Any, rows: Sequence[int]) -> None:
    """Keep some rows of every layer, each on its own device."""
    for layer in cache.layers:
        if isinstance(layer, GrowingLayer):
            layer.select(rows)
        else:
            held = next((one for one in vars(layer).values() if isinstance(one, Tensor) and one.dim()), None)
            layer.batch_select_indices(torch.tensor(rows, device=None if held is None else held.device))


def _align(places: Tensor, values: Tensor) -> None:
    """Put values (rows, heads, n, width) at the end of ``places`` (rows, heads, length, width)."""
    start = places.shape[2] - values.shape[2]
    places[:, :, :start] = 0  # masked, but it must be a number
    places[:, :, start:] = values


def empty(rows: int, length: int, *parts: Tensor) -> tuple[Tensor, ...]:
    """Allocate uninitialised (rows, heads, length, width) for keys and values (heads, _, width)."""
    return tuple(part.new_empty(rows, part.shape[0], length, part.shape[2]) for part in parts)


class Cache(DynamicCache):
    """A cache of transformers; ``padded``: the next pass reads one token a row, and its mask hides some.

    With other caches transformers tests whether a mask hides anything, and the host waits for the answer at
    every token. With a compilable cache it does not test; nothing else in a pass depends on that.
    """

    padded = False

    @property
    def is_compileable(self) -> bool:
        return self.padded


def new_cache(config: Any, capacity: int, *, whole: bool = False) -> Cache:
    """Make an empty cache for a model of ``config``; full attention has room for ``capacity`` positions.

    With ``whole`` sliding windows keep all positions too, hidden by masks: texts begin at different places.
    """
    cache = Cache(config=config)
    # Else layers with sliding windows stay as they are, since they are short; so do unknown kinds of layers.
    grow = (DynamicLayer, DynamicSlidingWindowLayer) if whole else (DynamicLayer,)
    cache.layers = [GrowingLayer(capacity) if type(c) in grow else c for c in cache.layers]
    return cache


def can_drop(cache: Any) -> bool:
    """Tell whether a cache's positions can be removed and rows handed on; sliding windows allow neither."""
    return cache is not None and all(type(layer) is GrowingLayer for layer in cache.layers)


def can_share(config: Any) -> bool:
    """Tell whether texts of this model family can share keys and values of a prefix."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """Tokens that prompts may begin with, and their keys and values.

    ``layers`` has those from ``start`` on, two (heads, len(ids) - start, width) of each layer; ``before``
    has the others and is None where start is 0.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    before: CachedPrefix | None = None
    start: int = 0

    def common(self, ids: Sequence[int]) -> int:
        """Count the leading tokens of ``ids`` that are known; its last is computed anyway, for its logits."""
        return min(shared_start(self.ids, ids), len(ids) - 1)

    def write(self, layer: int, places: Sequence[Tensor]) -> None:
        """Copy a layer's keys and values of the first n tokens to two ``places`` (rows, heads, n, width)."""
        if self.before is not None:
            self.before.write(layer, [place[:, :, : self.start] for place in places])
        for place, values in zip(places, self.layers[layer], strict=True):
            if place.shape[2] > self.start:
                place[:, :, self.start :] = values[:, : place.shape[2] - self.start]


def fill(
    cache: Any, prefixes: Sequence[CachedPrefix], prompts: Sequence[Sequence[int]], pads: Sequence[int]
) -> int:
    """Fill the empty cache of a left-padded batch with the columns known in every row; return their number.

    Row i begins with ``pads[i]`` columns of padding, then the tokens of ``prefixes[i]`` that its prompt has
    too. The rest is computed with the rest of its prompt, at the same positions and mask.
    """
    length = min(pad + one.common(ids) for pad, one, ids in zip(pads, prefixes, prompts, strict=True))
    if not length:
        return 0
    runs = [(pad, one, len(list(rows))) for (pad, one), rows in groupby(zip(pads, prefixes, strict=True))]
    for number, layer in enumerate(cache.layers):
        grows = isinstance(layer, GrowingLayer)
        make = layer.reserve if grows else empty
        buffers = make(len(prompts), length, *prefixes[0].layers[number])
        start = 0
        for pad, one, count in runs:
            places = [buffer[start : start + count] for buffer in buffers]
            for place in places:
                place[:, :, :pad] = 0  # masked, but it must be a number
            if length > pad:
                one.write(number, [place[:, :, pad:] for place in places])
            start += count
        if not grows:
            layer.update(*buffers)
    return length


class PrefixCache:
    """Key/value caches of recent generations, keyed by request name, reused by prompts that extend them.

    Each call of :meth:`.CausalLM.generate` takes the beginnings of its prompts from it,
    and stores its results in it. Results do not depend on it. It stores nothing for families with sliding
    windows, whose keys and values cannot be handed on, and nothing beyond ``megabytes``.
    """

    def __init__(self, *, megabytes: float = 1024) -> None:
        self._room = megabytes * 1e6
        self._texts: dict[str, CachedPrefix] = {}
        self._taken: dict[str, int] = {}  # bytes

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, name: str) -> CachedPrefix | None:
        return self._texts.get(name)

    def keep(
        self, name: str, cache: Any, row: int, pad: int, ids: tuple[int, ...], prefix: CachedPrefix | None
    ) -> None:
        """Copy a batch's cache of ``row``, in place of the last text of that name.

        The row begins with ``pad`` columns of padding, then ``ids``, as many as the cache has or more. Its
        ``prefix`` is not copied again.
        """
        if prefix is None or prefix is not self._texts.get(name):
            self.forget(name)
        if not can_drop(cache):
            return
        ids = ids[: cache.layers[0].get_seq_length() - pad]
        start = 0 if prefix is None else prefix.common(ids)
        new = [[part[row, :, pad + start :] for part in (layer.keys, layer.values)] for layer in cache.layers]
        size = sum(part.nbytes for parts in new for part in parts)
        if size > self._room:
            self.forget(name)
            return
        self._room -= size
        self._taken[name] = self._taken.get(name, 0) + size  # its prefix stays in memory
        layers = tuple((keys.clone(), values.clone()) for keys, values in new)
        self._texts[name] = CachedPrefix(ids, layers, prefix if start else None, start)

    def forget(self, name: str) -> None:
        self._texts.pop(name, None)
        self._room += self._taken.pop(name, 0)


class BlockCache:
    """The blocks of ``size`` tokens used last, up to ``megabytes`` of keys and values; 0 keeps none."""

    def __init__(self, *, megabytes: float = 512, size: int = 32) -> None:
        self._size, self._room = size, megabytes * 1e6
        # Keys and values of each block, in tensors (parts of one shape, heads, size, width).
        self._blocks: OrderedDict[bytes, list[Tensor]] = OrderedDict()
        # Places among the parts of a block: of layer 1's keys, its values, layer 2's ..
        self._places: list[int] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ids: Sequence[int]) -> CachedPrefix | None:
        """Find the known beginning of a prompt, without its last token; None if nothing is known."""
        names = list(takewhile(self._blocks.__contains__, self._names(ids[:-1])))
        self._touch(names)
        if not names:
            return None
        blocks = zip(*(self._blocks[name] for name in names), strict=True)
        joined = [part for parts in blocks for part in torch.cat(parts, dim=2)]
        ordered = [joined[place] for place in self._places]
        layers = tuple(zip(ordered[::2], ordered[1::2], strict=True))
        return CachedPrefix(tuple(ids[: len(names) * self._size]), layers)

    def keep(self, ids: Sequence[int], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy a text's whole blocks that are not known yet; ``layers`` has (heads, n, width) of each."""
        length = layers[0][0].shape[1]
        parts = [part for layer in layers for part in layer]
        alike: dict[Any, list[int]] = {}  # one copy per block of all parts with the same shape and device
        for place, part in enumerate(parts):
            alike.setdefault((part.device, part.dtype, part.shape), []).append(place)
        self._places = np.argsort([place for group in alike.values() for place in group]).tolist()
        names = list(self._names(ids[:length]))
        for number, name in enumerate(names):
            if name in self._blocks:
                continue
            cut = slice(number * self._size, (number + 1) * self._size)
            block = [torch.stack([parts[i][:, cut] for i in group]) for group in alike.values()]
            self._room -= sum(stacked.nbytes for stacked in block)
            self._blocks[name] = block
        self._touch(names)
        while self._room < 0 and self._blocks:
            self._room += sum(stacked.nbytes for stacked in self._blocks.popitem(last=False)[1])

    def _names(self, ids: Sequence[int]) -> Iterator[bytes]:
        above = b""
        for start in range(0, len(ids) - self._size + 1, self._size):
            block = np.asarray(ids[start : start + self._size], dtype=np.int64).tobytes()
            above = hashlib.sha256(above + block).digest()
            yield above

    def _touch(self, names: Sequence[bytes]) -> None:
        """Note a use; a text's first block stays longest, since the others are found only through it."""
        for name in reversed(names):
            self._blocks.move_to_end(name)
