"""Passages in a folder, decoded when they are asked for.

passages.jsonl   one line ``["id","title","text"]`` per passage
offsets.npy      (N + 1,) int64: where each line begins
built.json       counts; written last
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from .types import Passage

PASSAGES, OFFSETS = "passages.jsonl", "offsets.npy"


class PassageStore(Sequence[Passage]):
    """Passages in a folder that :func:`.corpus.open_corpus` made.

    Args:
        path: the folder.
        fingerprint: stands for the passages and their order.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self._offsets = np.load(path / OFFSETS, mmap_mode="r", allow_pickle=False)
        self._file = (path / PASSAGES).open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all passages on the disk."""
        return int(self._offsets[-1])

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        row = index.__index__()
        row += len(self) if row < 0 else 0
        if not 0 <= row < len(self):
            raise IndexError(f"passage {index} of {len(self)}")
        start, end = map(int, self._offsets[row : row + 2])
        # Not mapped: what the kernel reads ahead would count as this process's memory. Nor is there a
        # position in the file that threads and forked processes would have to share.
        return _decode(os.pread(self._file.fileno(), end - start, start))

    def __iter__(self) -> Iterator[Passage]:
        return self.since(0)

    def since(self, row: int) -> Iterator[Passage]:
        """The passages from ``row`` on, read from the file as they come and not kept in memory."""
        with (self.path / PASSAGES).open("rb") as file:
            file.seek(int(self._offsets[row]))
            yield from map(_decode, file)


def encode(passage: Passage) -> bytes:
    """The line of a passage."""
    record = json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False, separators=(",", ":"))
    return record.encode("utf-8", "surrogatepass") + b"\n"


def _decode(line: bytes) -> Passage:
    name, title, text = json.loads(line)
    return Passage(name, title, text)
