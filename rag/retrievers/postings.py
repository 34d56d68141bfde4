"""A large corpus counted shard by shard: which token stands how often in which passage.

A shard is sorted by token, then by passage. Shards are written whole or not at all, so that counting
goes on where a killed process stopped.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probers.files import write_text
from probers.types import Passage

from .lexical import tokens_of

#: Tokens of a shard, about: what bounds the memory of counting.
SHARD = 8_000_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The counts of consecutive passages, in files that are memory-mapped when read.

    Attributes:
        folder: of all shards.
        number: of this one, from 0.
        first: row of its first passage in the corpus.
        passages: how many it covers.
    """

    folder: Path
    number: int
    first: int
    passages: int

    @property
    def terms(self) -> Path:
        """The file of its T distinct tokens, sorted, one a line."""
        return self._file("terms")

    def array(self, name: str) -> np.ndarray:
        """One of its arrays.

        ``starts`` (T + 1,) int64: where the postings of each token begin. ``rows`` (P,) int32: the passage
        of each posting, counted from ``first``. ``counts`` (P,) int32: how often the token stands there.
        ``lengths`` (passages,) int32: tokens per passage. ``ids`` (T,) int32: the tokens' numbers in the
        vocabulary of the whole corpus, once it is known.
        """
        return np.load(self._file(f"{name}.npy"), mmap_mode="r", allow_pickle=False)

    def save(self, name: str, values: np.ndarray) -> None:
        np.save(self._file(f"{name}.npy"), values, allow_pickle=False)

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.number:05d}.{suffix}"


def finished_shards(folder: Path) -> list[Shard]:
    """The shards that an earlier process finished, up to the first gap."""
    found: list[Shard] = []
    while (record := folder / f"{len(found):05d}.json").exists():
        found.append(Shard(folder, len(found), **json.loads(record.read_bytes())))
    return found


def count_shard(
    folder: Path, number: int, first: int, passages: Iterator[Passage], tokens: int = SHARD
) -> Shard:
    """Count passages until a shard is full or there are no more.

    Args:
        folder: of all shards.
        number: of this one.
        first: row of the next passage that the iterator gives.
        passages: the corpus from there; what the shard takes is taken from it.
        tokens: the shard is full when it has as many.
    """
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    flat, lengths = array("i"), array("i")
    for passage in passages:
        found = tokens_of(passage)
        flat.extend(map(numbers.__getitem__, found))
        lengths.append(len(found))
        if len(flat) >= tokens:
            break
    numbers.default_factory = None  # it refers to the dictionary, which would outlive this call
    shard = Shard(folder, number, first, len(lengths))
    terms = sorted(numbers)
    rank = np.empty(len(terms), dtype=np.int64)
    rank[np.fromiter((numbers[t] for t in terms), np.int64, len(terms))] = np.arange(len(terms))
    with shard.terms.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{t}\n" for t in terms)
    sizes = np.frombuffer(lengths, dtype=np.int32)
    _save_postings(shard, rank, np.frombuffer(flat, dtype=np.int32), sizes)
    shard.save("lengths", sizes)
    _sync(folder, number)
    about: dict[str, Any] = {"first": first, "passages": len(lengths)}
    write_text(folder / f"{number:05d}.json", json.dumps(about))
    return shard


def _save_postings(shard: Shard, rank: np.ndarray, flat: np.ndarray, lengths: np.ndarray) -> None:
    # Sorting one number per token, made of its term and its passage, sorts by both at once.
    passages = max(1, len(lengths))
    keys = rank[flat]
    keys *= passages
    keys += np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    keys, counts = np.unique(keys, return_counts=True)
    term, row = np.divmod(keys, passages)
    starts = np.zeros(len(rank) + 1, dtype=np.int64)
    np.cumsum(np.bincount(term, minlength=len(rank)), out=starts[1:])
    shard.save("starts", starts)
    shard.save("rows", row.astype(np.int32))
    shard.save("counts", counts.astype(np.int32))


def _sync(folder: Path, number: int) -> None:
    for path in folder.glob(f"{number:05d}.*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
