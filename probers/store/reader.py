"""Reader of states in place: shards are memory-mapped, and only the rows asked for are copied."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..types import UserError
from .files import damaged
from .spec import FeatureSpec

#: Largest number of shards mapped at once; each holds a file descriptor, and a process has few.
_MOST_MAPPED = 256
#: Bytes that may be mapped and touched before all maps are dropped. They belong to the
#: page cache and stay there, but would count as this process's memory meanwhile.
_MOST_RESIDENT = 64 << 20
#: A touched page brings its neighbours into the process (the kernel's fault-around).
_FAULT_AROUND = 64 << 10
#: Bytes requested ahead of their use at once; the kernel shortens long requests.
_AHEAD = 128 << 10
_FORMATS = {"float16": "F16", "float32": "F32", "float64": "F64"}


class StateReader:
    """Some layers of a store's states; indexing by rows copies only those into a new array.

    ``reader[rows]`` is (n, layers, d) for a slice or row numbers in any order; shards are read
    one after the other, each from its beginning to its end; memory does not grow with the store.

    Built from the shards' safetensors files, the rows of each, and the layers in their order. ``shape`` is
    (N, layers, d). UserError for a missing layer; on reading, for a damaged shard.
    """

    def __init__(
        self, files: Sequence[Path], counts: Sequence[int], spec: FeatureSpec, layers: Sequence[int]
    ) -> None:
        spec.select(layers)
        self.layers = tuple(layers)
        self.shape = (sum(counts), len(self.layers), spec.width)
        self.dtype = spec.read_as
        self._files, self._counts, self._spec = tuple(files), tuple(counts), spec
        self._starts = np.cumsum([0, *counts[:-1]])
        self._layouts: dict[int, tuple[int, dict[int, int]]] = {}
        self._maps: dict[int, _Map] = {}
        self._resident = 0

    @classmethod
    def joined(cls, readers: Sequence[StateReader]) -> StateReader:
        """Chain readers of the same specification and layers."""
        files = [file for reader in readers for file in reader._files]
        counts = [count for reader in readers for count in reader._counts]
        return cls(files, counts, readers[0]._spec, readers[0].layers)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> np.ndarray:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        rows = np.asarray(rows, dtype=np.int64)
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"rows from {rows.min()} to {rows.max()}, but the store has {len(self)}")
        result = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(rows, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(shards[order])) + 1):
            if places.size:
                shard = int(shards[places[0]])
                self._copy(shard, rows[places] - self._starts[shard], places, result)
        return result

    def _copy(self, shard: int, rows: np.ndarray, places: np.ndarray, result: np.ndarray) -> None:
        """Copy ascending rows of one shard to their places."""
        if shard not in self._maps and len(self._maps) >= _MOST_MAPPED:
            self._drop()
        mapped = self._maps.get(shard) or self._map(shard)
        positions = [self._layouts[shard][1][k] for k in self.layers]
        if len(rows) > 1 and (np.diff(rows) == 1).all() and (np.diff(places) == 1).all():
            first, end, there = int(rows[0]), int(rows[-1]) + 1, slice(places[0], places[-1] + 1)
            for position, column in sorted(zip(positions, range(len(positions)), strict=True)):
                mapped.expect(position, first, end)
                result[there, column] = mapped.data[position, first:end]
            touched = len(rows) * result[0].nbytes
        else:
            if mapped.touched < len(mapped.memory):  # else most of it has already been read
                for position in sorted(positions):
                    for row in rows.tolist():
                        mapped.expect(position, row, row + 1)
            result[places] = mapped.data[np.array(positions)[:, None], rows].swapaxes(0, 1)
            touched = len(rows) * len(positions) * max(_FAULT_AROUND, result[0, 0].nbytes)
        before = mapped.touched
        mapped.touched = min(len(mapped.memory), before + touched)
        self._resident += mapped.touched - before
        if self._resident > _MOST_RESIDENT:
            self._drop()

    def _drop(self) -> None:
        self._maps.clear()
        self._resident = 0

    def _map(self, shard: int) -> _Map:
        path, rows = self._files[shard], self._counts[shard]
        try:
            with path.open("rb") as file:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError) as error:  # ValueError: the file is empty
            raise _damaged(path, "is missing or empty") from error
        # By default the kernel reads megabytes around a touched byte, also of other layers.
        if hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)
        if shard not in self._layouts:
            self._layouts[shard] = _layout(path, memory, rows, self._spec)
        start, positions = self._layouts[shard]
        shape = (len(positions), rows, self._spec.width)
        end = start + math.prod(shape) * self.dtype.itemsize
        if len(memory) != end:
            raise _damaged(path, f"has {len(memory)} bytes instead of {end}")
        self._maps[shard] = _Map(memory, np.ndarray(shape, self.dtype, memory, start))
        return self._maps[shard]


@dataclass(slots=True)
class _Map:
    """One shard in memory: its bytes, its states (layers, rows, d), and the number of touched bytes."""

    memory: mmap.mmap
    data: np.ndarray
    touched: int = 0

    def expect(self, position: int, first: int, end: int) -> None:
        """Have the kernel begin to read the rows of a layer that will be touched next, and only those."""
        if not hasattr(mmap, "MADV_WILLNEED"):
            return
        row = self.data.strides[1]
        block = len(self.memory) - self.data.nbytes + position * self.data.strides[0]
        start, stop = block + first * row, block + end * row
        for offset in range(start - start % mmap.PAGESIZE, stop, _AHEAD):
            self.memory.madvise(mmap.MADV_WILLNEED, offset, min(_AHEAD, stop - offset))


def _layout(path: Path, memory: mmap.mmap, rows: int, spec: FeatureSpec) -> tuple[int, dict[int, int]]:
    """Read from a shard's header where its states start, and the position of each layer's block.

    The format leaves no gaps between tensors, so a position is an offset in units of one layer's size.
    """
    length, size = int.from_bytes(memory[:8], "little"), rows * spec.vector_bytes
    try:
        tensors: dict[str, Any] = json.loads(memory[8 : 8 + length])
        tensors.pop("__metadata__", None)
        begins = {name: tensor.pop("data_offsets")[0] for name, tensor in tensors.items()}
        layer = {"dtype": _FORMATS.get(spec.dtype), "shape": [rows, spec.width]}
        if tensors != {f"layer.{k}": layer for k in spec.layers}:
            raise ValueError(f"it has the tensors {str(tensors)[:200]}")
        if sorted(begins.values()) != [size * place for place in range(len(begins))]:
            raise ValueError("its tensors overlap")
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise _damaged(path, f"has a header that cannot be used ({error})") from error
    return 8 + length, {k: begins[f"layer.{k}"] // size for k in spec.layers}


def _damaged(path: Path, problem: str) -> UserError:
    return damaged(path.parent.parent, f"{path.parent.name}/{path.name}", problem)
