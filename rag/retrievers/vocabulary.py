"""The tokens of a large index, on the disk in sorted order: looked up by bisection, never loaded."""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path

import numpy as np

_TOKENS, _OFFSETS = "vocabulary.txt", "vocabulary.npy"


class Vocabulary:
    """Tokens with their numbers, which are their places in the order of code points.

    Args:
        folder: where :func:`write_vocabulary` wrote.
    """

    def __init__(self, folder: Path) -> None:
        # Single numbers come out of a view several times as fast as out of an array.
        self._offsets = memoryview(np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False))
        with (folder / _TOKENS).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get(self, token: str) -> int | None:
        """The number of a token, None when the corpus does not have it."""
        wanted = token.encode()
        place = bisect_left(range(len(self)), wanted, key=self._at)
        return place if place < len(self) and self._at(place) == wanted else None

    def _at(self, number: int) -> bytes:
        return self._bytes[self._offsets[number] : self._offsets[number + 1] - 1]


def write_vocabulary(folder: Path, tokens: Iterable[str]) -> int:
    """Write distinct tokens, which come in sorted order; how many there were."""
    offsets = array("q", [0])
    with (folder / _TOKENS).open("wb") as file:
        for token in tokens:
            offsets.append(offsets[-1] + file.write(token.encode() + b"\n"))
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64), allow_pickle=False)
    return len(offsets) - 1
