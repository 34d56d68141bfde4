"""Keys and values: grown in place while a batch decodes, and used again for texts that begin alike.

transformers' dynamic cache makes a new tensor of the whole context for every token and
layer. Here room for the whole text is allocated once and filled, which gives the same
numbers and is what makes long prompts in large batches cheap to continue.

Nothing that was computed is computed again: a :class:`CachedPrefix` begins the prompts that
share it, a :class:`PrefixCache` has one for every text of earlier calls, and a prompt that
another one of its call begins with is computed inside that one (:func:`read_nested`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from .batch_size import Batches
from .forward import Decoder

_ROOM = 64  # positions added when a text outgrows its room


class GrowingLayer(DynamicLayer):
    """One layer's keys and values, as views of buffers with room for what is to come: positions, and rows.

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
        rows = len(key_states)
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._make_room(key_states, value_states, end + _ROOM if start else end)
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, start:end] = new
        self.keys, self.values = (buffer[:rows, :, :end] for buffer in self._buffers)
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

    def join(self, other: GrowingLayer, rows: int) -> None:
        """Take the rows of another layer as well; the shorter ones begin with positions to be masked.

        Args:
            rows: to make room for.
        """
        if other.keys is None or other.values is None:
            return
        if self.keys is None or self.values is None:
            self.lazy_initialization(other.keys, other.values)
        assert self.keys is not None and self.values is not None
        before, length = (0, 0) if self._buffers is None else (len(self.keys), self.get_seq_length())
        after, total = before + len(other.keys), max(length, other.get_seq_length())
        old = self._buffers
        if old is None or after > len(old[0]) or total > old[0].shape[-2]:
            self._buffers = empty(max(after, rows), total + _ROOM, other.keys[0], other.values[0])
        assert self._buffers is not None
        if before and (old is not self._buffers or total > length):
            for buffer, own in zip(self._buffers, (self.keys, self.values), strict=True):
                _align(buffer[:before, :, :total], own.clone())  # it may lie in the same buffer
        for buffer, own in zip(self._buffers, (other.keys, other.values), strict=True):
            _align(buffer[before:after, :, :total], own)
        self.keys, self.values = (buffer[:after, :, :total] for buffer in self._buffers)

    def trim(self, count: int) -> None:
        """Forget the first ``count`` positions of every row."""
        if self._buffers is None or self.keys is None:
            return
        rows, length = len(self.keys), self.get_seq_length() - count
        for buffer in self._buffers:
            buffer[:rows, :, :length] = buffer[:rows, :, count : count + length].clone()
        self.keys, self.values = (buffer[:rows, :, :length] for buffer in self._buffers)

    def drop(self, count: int) -> None:
        """Take back the last ``count`` positions."""
        if self._buffers is not None and self.keys is not None:
            rows, length = len(self.keys), self.get_seq_length() - count
            self.keys, self.values = (buffer[:rows, :, :length] for buffer in self._buffers)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows, and the room there was.

        Where rows keep their place and the others come from behind them, as
        :func:`probers.engine.decode.closed` orders them, only those are copied.
        """
        if self._buffers is None:
            return
        length, sources = self.get_seq_length(), indices.tolist()
        moved = [(row, source) for row, source in enumerate(sources) if row != source]
        if all(source >= len(sources) for _, source in moved):
            for buffer in self._buffers:
                for row, source in moved:
                    buffer[row, :, :length] = buffer[source, :, :length]
        else:
            keys, values = (buffer.index_select(0, indices.to(buffer.device)) for buffer in self._buffers)
            self._buffers = keys, values
        self.keys, self.values = (buffer[: len(sources), :, :length] for buffer in self._buffers)


def _align(places: Tensor, values: Tensor) -> None:
    """Put values (rows, heads, n, width) at the end of ``places`` (rows, heads, length, width)."""
    start = places.shape[2] - values.shape[2]
    places[:, :, :start] = 0  # never seen, but it must be a number
    places[:, :, start:] = values


def empty(rows: int, length: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised (rows, heads, length, width) like keys and values (heads, _, width)."""
    made = [one.new_empty(rows, one.shape[0], length, one.shape[2]) for one in (keys, values)]
    return made[0], made[1]


def new_cache(config: Any, capacity: int, *, whole: bool = False) -> DynamicCache:
    """An empty cache for a model of ``config``; full attention has room for ``capacity`` positions.

    Args:
        whole: layers with a sliding window keep all positions too, which their masks hide: for texts
            that begin at different places, whose windows end at different places.
    """
    cache = DynamicCache(config=config)
    # Else sliding windows stay as they are, they are short; so does whatever else a family brings.
    grow = (DynamicLayer, DynamicSlidingWindowLayer) if whole else (DynamicLayer,)
    cache.layers = [GrowingLayer(capacity) if type(c) in grow else c for c in cache.layers]
    return cache


def can_drop(cache: Any) -> bool:
    """Whether positions can be taken back, and rows handed on: not with sliding windows."""
    return all(type(layer) is GrowingLayer for layer in cache.layers)


def can_share(config: Any) -> bool:
    """Whether a prefix's keys and values can be handed to other texts in this family."""
    layers = DynamicCache(config=config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """Tokens that prompts may begin with, and their keys and values.

    Attributes:
        ids: the tokens.
        layers: keys and values of each, both (heads, len(ids) - start, width), of the tokens from
            ``start`` on.
        before: has those of the first ``start`` tokens; None where start is 0.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    before: CachedPrefix | None = None
    start: int = 0

    @classmethod
    @torch.inference_mode()
    def compute(cls, decoder: Decoder, sequences: Sequence[Sequence[int]]) -> list[CachedPrefix]:
        """Run the model once over a batch of token sequences."""
        tokens, mask, positions = decoder.pad(sequences)
        # Without the config, so that layers with a sliding window keep all positions too:
        # how far the window reaches depends on what follows.
        cache: Any = DynamicCache()
        decoder(tokens, mask, positions, cache=cache)
        found = []
        for row, ids in enumerate(sequences):
            own = slice(tokens.shape[1] - len(ids), None)
            layers = tuple((layer.keys[row, :, own], layer.values[row, :, own]) for layer in cache.layers)
            found.append(cls(tuple(ids), layers))
        return found

    def common(self, ids: Sequence[int]) -> int:
        """How many tokens ``ids`` begins with that are known, its last one not counted.

        The last token is left to be computed, since its logits are wanted.
        """
        least = min(len(ids) - 1, len(self.ids))
        pairs = enumerate(zip(self.ids[:least], ids, strict=False))
        return next((i for i, (mine, its) in pairs if mine != its), least)

    def write(self, layer: int, places: Sequence[Tensor]) -> None:
        """Put a layer's keys and values of the first n tokens into two ``places`` (rows, heads, n, width)."""
        if self.before is not None:
            self.before.write(layer, [place[:, :, : self.start] for place in places])
        for place, own in zip(places, self.layers[layer], strict=True):
            if place.shape[2] > self.start:
                place[:, :, self.start :] = own[:, : place.shape[2] - self.start]


def fill(
    cache: Any, prefixes: Sequence[CachedPrefix], prompts: Sequence[Sequence[int]], pads: Sequence[int]
) -> int:
    """Begin the empty cache of a left-padded batch with as many columns as are known in every row.

    Row i begins with its padding, and then has as much of ``prefixes[i]`` as its prompt begins
    with. What a row still lacks lies in the columns after these, and is computed with the rest
    of its prompt: every row stands where it would without this, with the same positions and mask.

    Args:
        prompts: token ids of the rows.
        pads: columns of padding before each.

    Returns:
        The number of columns.
    """
    length = min(pad + one.common(ids) for pad, one, ids in zip(pads, prefixes, prompts, strict=True))
    if not length:
        return 0
    runs = [(pad, one, len(list(rows))) for (pad, one), rows in groupby(zip(pads, prefixes, strict=True))]
    for number, layer in enumerate(cache.layers):
        grows = isinstance(layer, GrowingLayer)
        make = layer.reserve if grows else empty
        made = make(len(prompts), length, *prefixes[0].layers[number])
        start = 0
        for pad, one, count in runs:
            places = [part[start : start + count] for part in made]
            for place in places:
                place[:, :, :pad] = 0  # never seen, but it must be a number
            if length > pad:
                one.write(number, [place[:, :, pad:] for place in places])
            start += count
        if not grows:
            layer.update(*made)
    return length


class PrefixCache:
    """The texts of late generations by name, for prompts that go on from them.

    Given to one call of :meth:`probers.engine.model.CausalLM.generate` after another: each takes from it
    what its prompts begin with, and leaves in it what it computed. Results do not depend on it.
    Nothing is left by families whose keys and values cannot be handed on (sliding windows), nor
    beyond ``megabytes``.
    """

    def __init__(self, *, megabytes: float = 1024) -> None:
        self._room = megabytes * 1e6
        self._texts: dict[str, CachedPrefix] = {}
        self._taken: dict[str, int] = {}  # bytes

    def __len__(self) -> int:
        return len(self._texts)

    def get(self, name: str) -> CachedPrefix | None:
        """The last text of this name."""
        return self._texts.get(name)

    def keep(
        self, name: str, cache: Any, row: int, pad: int, ids: tuple[int, ...], prefix: CachedPrefix | None
    ) -> None:
        """Copy what a batch's cache has of ``row``, in the place of the last text of that name.

        Args:
            pad: columns of padding that the row begins with.
            ids: the tokens after them, as many as the cache has or more.
            prefix: what the row began with, which is not copied again.
        """
        if prefix is None or prefix is not self._texts.get(name):
            self.forget(name)
        if not can_drop(cache):
            return
        ids = ids[: cache.layers[0].get_seq_length() - pad]
        start = 0 if prefix is None else prefix.common(ids)
        own = [[part[row, :, pad + start :] for part in (layer.keys, layer.values)] for layer in cache.layers]
        size = sum(part.nbytes for parts in own for part in parts)
        if size > self._room:
            self.forget(name)
            return
        self._room -= size
        self._taken[name] = self._taken.get(name, 0) + size  # what it goes on from stays in memory
        layers = tuple((keys.clone(), values.clone()) for keys, values in own)
        self._texts[name] = CachedPrefix(ids, layers, prefix if start else None, start)

    def forget(self, name: str) -> None:
        """Leave out a text."""
        self._texts.pop(name, None)
        self._room += self._taken.pop(name, 0)


#: Tokens that must be saved: about what a further pass over one token of each row costs.
_LEAST = 128


def longest(sequences: Sequence[Sequence[int]]) -> list[int]:
    """For each sequence the index of one that begins with it and that no other begins with."""
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    found = list(range(len(sequences)))
    # Whatever begins some sequence begins its neighbour in alphabetical order.
    for this, following in zip(order[-2::-1], order[:0:-1], strict=True):
        if tuple(sequences[following][: len(sequences[this])]) == tuple(sequences[this]):
            found[this] = found[following]
    return found


def nested(prompts: Sequence[Sequence[int]], config: Any) -> list[int] | None:
    """For each prompt the longest that begins with all its tokens but the last.

    The last token is left to be computed, since its logits are wanted, and may thus differ.

    Args:
        prompts: token ids; one without any is left out by its caller.
        config: of the model.

    Returns:
        Indices; None where too little is nested, or the family's keys and values cannot be shared.
    """
    if any(len(ids) == 1 for ids in prompts) or not can_share(config):
        return None
    found = longest([ids[:-1] for ids in prompts])
    saved = sum(len(prompts[i]) for i, own in enumerate(found) if i != own)
    return found if saved >= _LEAST else None


def read_nested(
    decoder: Decoder,
    batches: Batches,
    prompts: Sequence[Sequence[int]],
    whole: Sequence[int],
    known: Container[int],
) -> Iterator[dict[int, CachedPrefix]]:
    """Keys and values of all but the last token of each prompt, of nested ones computed once.

    Prompts come in groups that take as much memory as a batch of the longest of them would.

    Args:
        batches: says how many prompts are read at once.
        prompts: token ids.
        whole: of each the one that it is computed in, as :func:`nested` gives it.
        known: prompts that nothing is wanted of; a group of them alone is left out.

    Yields:
        By the index of a prompt what it begins with.
    """

    def compute(heads: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[CachedPrefix]:
        return CachedPrefix.compute(decoder, [heads[i] for i in chosen])

    parts: dict[int, list[int]] = {}
    for index, own in enumerate(whole):
        parts.setdefault(own, []).append(index)
    waiting = sorted(parts, key=lambda i: -len(prompts[i]))
    while waiting:
        lengths = list(accumulate(len(prompts[i]) for i in waiting))
        count = bisect_right(lengths, batches.size * lengths[0])
        group, waiting = waiting[:count], waiting[count:]
        if all(index in known for own in group for index in parts[own]):
            continue
        heads = [prompts[i][:-1] for i in group]
        read = batches.each(
            [len(head) for head in heads],
            partial(compute, heads),
            price=_LEAST,
        )
        computed = {group[place]: one for made in read for place, one in made.items()}
        found = {index: computed[own] for own in group for index in parts[own]}
        del computed  # the caller alone holds them
        yield found


def begin_cache(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    prefixes: Sequence[CachedPrefix | None],
    capacity: int,
    *,
    whole: bool = False,
) -> tuple[Any, int]:
    """A cache for left-padded prompts, and how many of its columns need not be computed any more.

    Args:
        prompts: token ids.
        prefixes: what each may begin with; used where all have one.
        capacity: positions to make room for.
        whole: as of :func:`new_cache`.
    """
    cache: Any = new_cache(decoder.model.config, capacity, whole=whole)
    known = [prefix for prefix in prefixes if prefix is not None]
    if len(known) < len(prompts):
        return cache, 0
    width = max(map(len, prompts))
    return cache, fill(cache, known, prompts, [width - len(ids) for ids in prompts])
