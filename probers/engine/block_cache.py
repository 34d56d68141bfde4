"""Keys and values of earlier texts by blocks of tokens, for any later text that begins with them.

Blocks are found by a hash of their tokens and of all tokens before them (Kwon et al. 2023, section 4.4;
automatic prefix caching of vLLM), so that a text needs no name and what several share is held once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .kv_cache import CachedPrefix

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
        """What is known of the beginning of a prompt, its last token never; None where nothing is."""
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
