"""Keys and values computed once and used again by texts that begin alike.

Two stores share one value, :class:`CachedPrefix`, and one way to begin a batch with it, :func:`fill`.

- :class:`PrefixCache` holds every token of the last text of a name, for calls that extend it (the loop).
  How many columns a batch begins with decides how its matrix products are cut and thus the last digits of
  scores: with whole blocks a resumed run would not repeat the digits of earlier ones. Drafts also look up
  the text of that name.
- :class:`BlockCache` holds blocks of tokens by a hash of all tokens up to their end (Kwon et al. 2023,
  section 4.4; automatic prefix caching of vLLM), for a server whose texts have no names: any later text
  finds them, and what several texts share is held once.

Prompts that other prompts of the same call begin with are computed inside these (:func:`read_nested`).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from .batch_size import Batches
from .forward import Decoder, GrowingLayer, can_drop, can_share, empty


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
        """Number of leading tokens of ``ids`` that are known, its last one not counted.

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


#: Keys and values (heads, tokens, width) of each layer.
Layers = Sequence[tuple[Tensor, Tensor]]


class BlockCache:
    """The blocks that were used last, up to a size.

    Args:
        megabytes: of keys and values kept at most; 0 keeps none.
        size: tokens of a block.
    """

    def __init__(self, *, megabytes: float = 512, size: int = 32) -> None:
        self._size, self._room = size, megabytes * 1e6
        self._blocks: OrderedDict[bytes, list[tuple[Tensor, Tensor]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, ids: Sequence[int]) -> CachedPrefix | None:
        """The known beginning of a prompt, without its last token; None if nothing is known."""
        found = []
        for name in self._names(ids[:-1]):
            if name not in self._blocks:
                break
            found.append(name)
        self._touch(found)
        if not found:
            return None
        blocks = [self._blocks[name] for name in found]
        layers = tuple(
            (torch.cat([keys for keys, _ in layer], dim=1), torch.cat([values for _, values in layer], dim=1))
            for layer in zip(*blocks, strict=True)
        )
        return CachedPrefix(tuple(ids[: len(found) * self._size]), layers)

    def keep(self, ids: Sequence[int], layers: Layers) -> None:
        """Copy the whole blocks of a text that are not known yet.

        Args:
            ids: its tokens, n or more of them.
            layers: keys and values (heads, n, width) of each layer.
        """
        length = layers[0][0].shape[1]
        names = list(self._names(ids[:length]))
        for number, name in enumerate(names):
            if name in self._blocks:
                continue
            place = slice(number * self._size, (number + 1) * self._size)
            block = [(keys[:, place].clone(), values[:, place].clone()) for keys, values in layers]
            self._room -= _bytes(block)
            self._blocks[name] = block
        self._touch(names)
        while self._room < 0 and self._blocks:
            self._room += _bytes(self._blocks.popitem(last=False)[1])

    def _names(self, ids: Sequence[int]) -> Iterator[bytes]:
        """The hash of each whole block of ``ids``."""
        above = b""
        for start in range(0, len(ids) - self._size + 1, self._size):
            own = np.asarray(ids[start : start + self._size], dtype=np.int64).tobytes()
            above = hashlib.sha256(above + own).digest()
            yield above

    def _touch(self, names: Sequence[bytes]) -> None:
        """Note a use; a text's first block stays longest, for without it the others are never found."""
        for name in reversed(names):
            self._blocks.move_to_end(name)


def _bytes(block: Sequence[tuple[Tensor, Tensor]]) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in block)


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

        def compute(chosen: list[int], heads: list[Sequence[int]] = heads) -> list[CachedPrefix]:
            return CachedPrefix.compute(decoder, [heads[i] for i in chosen])

        read = batches.each([len(head) for head in heads], compute, price=_LEAST)
        computed = {group[place]: one for made in read for place, one in made.items()}
        found = {index: computed[own] for own in group for index in parts[own]}
        del computed  # the caller alone holds them
        yield found
