"""The index of ``bm25s`` for a corpus too large to be counted in memory.

``bm25s`` itself keeps the tokens of all passages in Python lists while it indexes. Here the corpus is
counted in shards (:mod:`.postings`) and the shards are merged term by term, block after block, into the
files that ``bm25s`` reads: memory holds one shard, or one block, and 4 bytes per passage.
"""

from __future__ import annotations

import heapq
import json
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import bm25s
import numpy as np
from tqdm import tqdm

from probers.builds import Estimate, build_once
from probers.corpus import PassageStore
from probers.files import write_text

from .lexical import TOKENS_VERSION, no_word
from .postings import SHARD, Shard, count_shard, finished_shards
from .vocabulary import Vocabulary, write_vocabulary

#: Postings that are merged at a time: what bounds the memory of merging.
BLOCK = 4_000_000

_SCHEMA = 1
# Of benchmarks/retrieval.py on one core. Per byte of passages: seconds, bytes on the disk while building.
# Bytes of memory: at first, and per byte of passages.
_SECONDS, _DISK, _MEMORY = 1e-7, 2.1, (4.5e8, 0.07)


@dataclass(frozen=True, slots=True)
class Formula:
    """The two parameters of :mod:`.lexical`'s function."""

    k1: float
    b: float


def open_index(passages: PassageStore, formula: Formula, cache: Path) -> tuple[Any, Vocabulary]:
    """The index of a stored corpus, made on first use: ``bm25s``'s, memory-mapped, and its vocabulary.

    Args:
        passages: the corpus.
        formula: an index is made for one formula.
        cache: the folder for indexes.

    Raises:
        UserError: no passage holds a word.
        RunError: the cache cannot be written to, or lacks room.
    """
    name = f"{passages.fingerprint}-{_SCHEMA}.{TOKENS_VERSION}-k1={float(formula.k1)}-b={float(formula.b)}"
    total = passages.nbytes
    build_once(
        cache / name,
        f"BM25 index of {len(passages):,} passages",
        lambda folder: build_index(passages, folder, formula),
        lambda: Estimate(total * _SECONDS, total * _DISK, _MEMORY[0] + total * _MEMORY[1]),
    )
    index = bm25s.BM25.load(cache / name, mmap=True, load_vocab=False)
    # As plain arrays, for which numba compiles the same code as for those in memory.
    index.scores |= {key: np.asarray(index.scores[key]) for key in ("data", "indices", "indptr")}
    return index, Vocabulary(cache / name)


def build_index(
    passages: PassageStore, folder: Path, formula: Formula, *, shard: int = SHARD, block: int = BLOCK
) -> dict[str, Any]:
    """Fill a folder with the index; shards that an interrupted call left there are used.

    Raises:
        UserError: no passage holds a word.
    """
    work = folder / "shards"
    work.mkdir(exist_ok=True)
    shards = _count(passages, work, shard)
    tokens = write_vocabulary(folder, _number_terms(shards))
    if not tokens:
        raise no_word(len(passages))
    postings = _merge(shards, folder, formula, tokens, block)
    about = {
        "k1": formula.k1, "b": formula.b, "delta": 0.5, "method": "lucene", "idf_method": "lucene",
        "dtype": "float32", "int_dtype": "int32", "num_docs": len(passages), "version": bm25s.__version__,
        "backend": "numpy",
    }  # fmt: skip
    write_text(folder / "params.index.json", json.dumps(about))
    for record in work.glob("*.json"):  # first, so that no shard that is half removed is taken for whole
        record.unlink()
    shutil.rmtree(work)
    return {"passages": len(passages), "tokens": tokens, "postings": postings}


def _count(passages: PassageStore, work: Path, tokens: int) -> list[Shard]:
    shards = finished_shards(work)
    row = sum(s.passages for s in shards)
    rest = passages.since(row)
    with tqdm(total=len(passages), initial=row, desc="count tokens", unit="passage", unit_scale=True) as bar:
        while row < len(passages):
            shards.append(count_shard(work, len(shards), row, rest, tokens))
            row += shards[-1].passages
            bar.update(shards[-1].passages)
    return shards


def _number_terms(shards: Sequence[Shard]) -> Iterator[str]:
    """All distinct tokens in sorted order; when they are through, every shard knows their numbers."""
    ids = [array("i") for _ in shards]
    with ExitStack() as stack:
        files = [stack.enter_context(s.terms.open(encoding="utf-8", newline="\n")) for s in shards]
        lines = [zip(file, repeat(i)) for i, file in enumerate(files)]
        for number, (line, group) in enumerate(groupby(heapq.merge(*lines), key=itemgetter(0))):
            for _, i in group:
                ids[i].append(number)
            yield line[:-1]
    for shard, found in zip(shards, ids, strict=True):
        shard.save("ids", np.frombuffer(found, dtype=np.int32))


def _merge(shards: Sequence[Shard], folder: Path, formula: Formula, tokens: int, block: int) -> int:
    """Write the postings of all shards with their scores, term by term; how many there are."""
    lengths = np.concatenate([s.array("lengths") for s in shards])
    norms = formula.k1 * (1 - formula.b + formula.b * lengths / lengths.mean())
    frequencies = np.zeros(tokens, dtype=np.int64)
    for shard in shards:
        frequencies[shard.array("ids")] += np.diff(shard.array("starts"))
    pointers = np.zeros(tokens + 1, dtype=np.int64)
    np.cumsum(frequencies, out=pointers[1:])
    idf = np.log1p((len(lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    np.save(folder / "indptr.csc.index.npy", pointers, allow_pickle=False)
    total = int(pointers[-1])
    with (
        (folder / "data.csc.index.npy").open("wb") as data,
        (folder / "indices.csc.index.npy").open("wb") as indices,
        tqdm(total=total, desc="merge", unit="posting", unit_scale=True) as bar,
    ):
        _header(data, np.dtype(np.float32), total)
        _header(indices, np.dtype(np.int32), total)
        start = 0
        while start < tokens:
            end = int(np.searchsorted(pointers, pointers[start] + block, side="right")) - 1
            end = min(max(end, start + 1), tokens)
            rows, counts = _block(shards, pointers[start : end + 1], start, end)
            weights = np.repeat(idf[start:end], frequencies[start:end])
            data.write((weights * (counts / (norms[rows] + counts))).astype(np.float32).tobytes())
            indices.write(rows.tobytes())
            bar.update(len(rows))
            start = end
    return total


def _block(
    shards: Sequence[Shard], pointers: np.ndarray, start: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Passages and counts of the tokens from ``start`` to ``end``, sorted by token, then by passage."""
    size = int(pointers[-1] - pointers[0])
    rows, counts = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
    filled = (pointers[:-1] - pointers[0]).copy()
    for shard in shards:
        ids = shard.array("ids")
        low, high = np.searchsorted(ids, (start, end))
        if low == high:
            continue
        starts = np.asarray(shard.array("starts")[low : high + 1])
        here, sizes = ids[low:high] - start, np.diff(starts)
        places = np.repeat(filled[here] - starts[:-1], sizes) + np.arange(starts[0], starts[-1])
        rows[places] = shard.array("rows")[starts[0] : starts[-1]] + shard.first
        counts[places] = shard.array("counts")[starts[0] : starts[-1]]
        filled[here] += sizes
    return rows, counts


def _header(file: BinaryIO, kind: np.dtype, size: int) -> None:
    """Begin a ``.npy`` file of one dimension whose values are written after it."""
    about = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, about)
