"""Fast BM25 by the ``bm25s`` package, which computes scores while indexing and sums them for a query.

The formula is that of :mod:`.lexical`.

``bm25s`` keeps the tokens of all passages in Python lists while it indexes. A larger corpus is counted here
in shards, each sorted by token, then by passage. The shards are merged term by term, block after block, into
the files that ``bm25s`` reads. Memory holds one shard, or one block, and 4 bytes per passage. Shards are
written whole or not at all, so that counting resumes where a killed process stopped.
"""

from __future__ import annotations

import heapq
import json
import logging
import mmap
import os
import shutil
import sys
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy.sparse import coo_array

from probers.checksums import sealed, take, unsealed
from probers.data.cache import Estimate, build_once
from probers.data.corpus import PassageStore, Rows
from probers.files import cache_folder, write_text
from probers.progress import Bar
from probers.types import Passage, first_line

from . import lexical
from .lexical import NOWHERE, Places, write_places

# Importing bm25s starts JAX where that is installed, and JAX takes three quarters of a GPU's memory.
sys.modules.setdefault("jax", None)  # type: ignore[arg-type]
try:
    import bm25s
finally:
    if sys.modules["jax"] is None:
        del sys.modules["jax"]

log = logging.getLogger(__name__)

#: Number of passages from which on numba compiles queries. The first query then takes 3 s more, and each
#: query here 4 ms less; larger corpora save more.
COMPILED_FROM = 200_000


class BM25(lexical.LexicalRetriever):
    """Fast BM25 by precomputed scores that a query only sums; it ranks as ``rank_bm25`` does.

    Passages in a list are indexed in memory. Those of a stored corpus are indexed once on the disk with
    bounded memory, and the index is memory-mapped: a query reads the scores of its own words.

    Args:
        passages: the corpus, or rows of :func:`probers.data.corpus.as_passages` such as texts.
        k1: how soon repeated tokens stop adding; larger is later.
        b: how much long passages are held back, 0 (not) to 1 (fully).
        cache: folder for the indexes of corpora that are too large for memory; None is the user's.

    Raises:
        UserError: an empty corpus, no passage with a word, parameters out of range.
        RunError: the cache cannot be written to, or lacks room.
    """

    def __init__(
        self, passages: Rows, *, k1: float = lexical.K1, b: float = lexical.B,
        cache: str | Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(passages, k1, b)
        self._index: Any
        self._cache = Path(cache or cache_folder("bm25"))
        if isinstance(passages, PassageStore):
            name, build = f"-k1={float(k1)}-b={float(b)}", partial(build_index, passages, k1=k1, b=b)
            folder = self._made(name, "BM25 index of", build, _DISK)
            self._index = bm25s.BM25.load(folder, mmap=True, load_vocab=False)
            scores = self._index.scores
            # Plain arrays, for which numba compiles the same code as for those in memory.
            scores |= {key: np.asarray(scores[key]) for key in ("data", "indices", "indptr")}
            self._vocabulary = Vocabulary(folder)
            self._number = self._vocabulary.get
        else:
            documents = lexical.document_tokens(self._passages)
            self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
            self._index.index(documents, show_progress=len(documents) > 20_000)  # else under a second
            self._number = self._index.vocab_dict.get
        self._compiled = len(self._passages) >= COMPILED_FROM
        if self._compiled:
            self._index.activate_numba_scorer()

    def _scores(self, tokens: list[str]) -> np.ndarray | None:
        known = [n for n in map(self._number, tokens) if n is not None]
        return self._index.get_scores_from_ids(known) if known else None

    def _rows(self, token: str) -> np.ndarray:
        number = self._number(token)
        if number is None:
            return NOWHERE
        scores = self._index.scores  # a column is a token, with its passages in order
        start, end = scores["indptr"][number : number + 2]
        rows: np.ndarray = scores["indices"][start:end]
        return rows

    @cached_property
    def _places(self) -> Places:
        passages = self._passages
        if not isinstance(passages, PassageStore):
            return Places.of(map(lexical.tokens_of, passages))

        def write(folder: Path) -> dict[str, Any]:
            documents = map(lexical.tokens_of, passages)
            return write_places(documents, folder, self._number, len(self._vocabulary))

        return Places.load(self._made("-places", "places of words in", write, _PLACES), self._number)

    def _made(self, name: str, what: str, make: Callable[[Path], dict[str, Any]], disk: float) -> Path:
        """Make a folder of a stored corpus on first use; ``disk`` is its size by that of the corpus."""
        passages: Any = self._passages
        folder = self._cache / f"{passages.fingerprint}-{_SCHEMA}.{lexical.TOKENS_VERSION}{name}"
        size = passages.nbytes
        cost = Estimate(size * _SECONDS, size * disk, _MEMORY[0] + size * _MEMORY[1])
        build_once(folder, f"{what} {len(passages):,} passages", make, lambda: cost)
        return folder

    def _candidates(self, scores: np.ndarray, k: int) -> np.ndarray:
        if not self._compiled:
            return super()._candidates(scores, k)
        from bm25s.numba.selection import topk

        values, rows = topk(scores, k + 1)  # a heap keeps no order among equal scores
        if values[k] < values[k - 1]:
            return np.sort(rows[:k])
        # The k best share their lowest score with others, which may come before them in the corpus.
        return np.flatnonzero(scores >= values[k] if values[k] > 0 else scores > 0)


_TOKENS, _OFFSETS = "vocabulary.txt", "vocabulary.npy"


class Vocabulary:
    """Tokens that :func:`write_vocabulary` wrote, numbered by their places in code point order."""

    def __init__(self, folder: Path) -> None:
        # A view returns single numbers several times as fast as an array.
        self._offsets = memoryview(np.load(folder / _OFFSETS, mmap_mode="r", allow_pickle=False))
        with (folder / _TOKENS).open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def get(self, token: str) -> int | None:
        """Return the number of a token, None if the corpus does not have it."""
        wanted = token.encode()
        place = bisect_left(range(len(self)), wanted, key=self._at)
        return place if place < len(self) and self._at(place) == wanted else None

    def _at(self, number: int) -> bytes:
        return self._bytes[self._offsets[number] : self._offsets[number + 1] - 1]


def write_vocabulary(folder: Path, tokens: Iterable[str]) -> int:
    """Write distinct tokens, which come in sorted order; return their number."""
    offsets = array("q", [0])
    with (folder / _TOKENS).open("wb") as file:
        for token in tokens:
            offsets.append(offsets[-1] + file.write(token.encode() + b"\n"))
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64), allow_pickle=False)
    return len(offsets) - 1


#: Approximate number of tokens of a shard, which bounds the memory of counting.
SHARD = 8_000_000


@dataclass(frozen=True, slots=True)
class Shard:
    """Counts of consecutive passages from row ``first`` of the corpus on, in memory-mapped files.

    terms        its T distinct tokens, sorted, one a line
    starts.npy   (T + 1,) int64: where the postings of each token begin
    rows.npy     (P,) int32: the passage of each posting, counted from ``first``
    counts.npy   (P,) int32: how often the token stands there
    lengths.npy  (passages,) int32: tokens per passage
    ids.npy      (T,) int32: numbers of the tokens in the vocabulary of the corpus, once it is known
    """

    folder: Path
    number: int
    first: int
    passages: int

    def file(self, suffix: str) -> Path:
        return self.folder / f"{self.number:05d}.{suffix}"

    def array(self, name: str) -> np.ndarray:
        return np.load(self.file(f"{name}.npy"), mmap_mode="r", allow_pickle=False)

    def save(self, name: str, values: np.ndarray) -> None:
        np.save(self.file(f"{name}.npy"), values, allow_pickle=False)


def count_shard(
    folder: Path, number: int, first: int, passages: Iterator[Passage], tokens: int = SHARD
) -> Shard:
    """Count the passages from row ``first`` on, until the shard has ``tokens`` or more."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    flat, lengths = array("i"), array("i")
    for passage in passages:
        words = lexical.tokens_of(passage)
        flat.extend(map(numbers.__getitem__, words))
        lengths.append(len(words))
        if len(flat) >= tokens:
            break
    numbers.default_factory = None  # a reference to the dictionary, which would outlive this call
    shard = Shard(folder, number, first, len(lengths))
    terms = sorted(numbers)
    # Place of each number's term among the sorted ones; sorting a permutation inverts it.
    rank = np.argsort(np.fromiter((numbers[t] for t in terms), np.int32, len(terms))).astype(np.int32)
    with shard.file("terms").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{t}\n" for t in terms)
    sizes, terms_of = np.frombuffer(lengths, dtype=np.int32), rank[np.frombuffer(flat, dtype=np.int32)]
    rows = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    each = coo_array((np.ones(len(rows), np.int32), (rows, terms_of)), shape=(len(sizes), len(terms)))
    counts = each.tocsc()  # adds up equal places
    counts.sort_indices()
    shard.save("starts", counts.indptr.astype(np.int64))
    shard.save("rows", counts.indices.astype(np.int32))
    shard.save("counts", counts.data)
    shard.save("lengths", sizes)
    for path in folder.glob(f"{number:05d}.*"):
        with path.open("rb") as written:
            os.fsync(written.fileno())
    names = ("terms", "starts.npy", "rows.npy", "counts.npy", "lengths.npy")
    counted = [f"{number:05d}.{name}" for name in names]
    about = {"first": first, "passages": len(lengths), "files": take(folder, counted)}
    write_text(shard.file("json"), sealed(about))
    return shard


#: Number of postings merged at a time, which bounds the memory of merging.
BLOCK = 4_000_000

_SCHEMA = 1
# Measured by benchmarks/retrieval.py on one core. Per byte of passages: seconds, and bytes on the disk while
# building. Bytes of memory: at first, and per byte of passages.
_SECONDS, _DISK, _MEMORY = 1e-7, 2.1, (4.5e8, 0.07)
#: Bytes on the disk per byte of passages while places are made.
_PLACES = 1.4


def build_index(
    passages: PassageStore, folder: Path, k1: float, b: float, *, shard: int = SHARD, block: int = BLOCK
) -> dict[str, Any]:
    """Fill a folder with the index of a corpus with a word; reuse the shards of an interrupted call."""
    work = folder / "shards"
    work.mkdir(exist_ok=True)
    shards = _count(passages, work, shard)
    tokens = write_vocabulary(folder, _number_terms(shards))
    lexical.check_words(tokens, len(passages))
    postings = _merge(shards, folder, k1, b, tokens, block)
    about = {
        "k1": k1, "b": b, "delta": 0.5, "method": "lucene", "idf_method": "lucene",
        "dtype": "float32", "int_dtype": "int32", "num_docs": len(passages), "version": bm25s.__version__,
        "backend": "numpy",
    }  # fmt: skip
    write_text(folder / "params.index.json", json.dumps(about))
    for record in work.glob("*.json"):  # first, so that no half removed shard is taken for whole
        record.unlink()
    shutil.rmtree(work)
    return {"passages": len(passages), "tokens": tokens, "postings": postings}


def _count(passages: PassageStore, work: Path, tokens: int) -> list[Shard]:
    shards: list[Shard] = []
    while (record := work / f"{len(shards):05d}.json").exists():  # finished by an earlier process
        try:
            about = unsealed(record)
            if about["files"] != take(work, about["files"]):
                raise ValueError("belongs to files that were altered")
        except (OSError, ValueError) as error:
            log.warning("%s %s: the passages from there on are counted again", record, first_line(error))
            break
        shards.append(Shard(work, len(shards), about["first"], about["passages"]))
    row = sum(s.passages for s in shards)
    rest = passages.since(row)
    with Bar(total=len(passages), initial=row, desc="count tokens", unit="passage", unit_scale=True) as bar:
        while row < len(passages):
            shards.append(count_shard(work, len(shards), row, rest, tokens))
            row += shards[-1].passages
            bar.update(shards[-1].passages)
    return shards


def _number_terms(shards: Sequence[Shard]) -> Iterator[str]:
    """Yield all distinct tokens in sorted order; afterwards every shard knows the numbers of its tokens."""
    ids = [array("i") for _ in shards]
    with ExitStack() as stack:
        files = [stack.enter_context(s.file("terms").open(encoding="utf-8", newline="\n")) for s in shards]
        lines = [zip(file, repeat(i)) for i, file in enumerate(files)]
        for number, (line, group) in enumerate(groupby(heapq.merge(*lines), key=itemgetter(0))):
            for _, i in group:
                ids[i].append(number)
            yield line[:-1]
    for shard, numbers in zip(shards, ids, strict=True):
        shard.save("ids", np.frombuffer(numbers, dtype=np.int32))


def _merge(shards: Sequence[Shard], folder: Path, k1: float, b: float, tokens: int, block: int) -> int:
    """Write the postings of all shards with their scores, term by term; return their number."""
    lengths = np.concatenate([s.array("lengths") for s in shards])
    # Multiply as bm25s does: in double precision by numpy 2, in single precision by numpy 1.
    kind = (np.ones(1, np.float32) + np.float64(1)).dtype
    norms = (k1 * (1 - b + b * lengths / lengths.mean())).astype(kind)
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
        Bar(total=total, desc="merge", unit="posting", unit_scale=True) as bar,
    ):
        _header(data, np.dtype(np.float32), total)
        _header(indices, np.dtype(np.int32), total)
        start = 0
        while start < tokens:
            end = int(np.searchsorted(pointers, pointers[start] + block, side="right")) - 1
            end = min(max(end, start + 1), tokens)
            rows, counts = _block(shards, pointers[start : end + 1], start, end)
            weights = np.repeat(idf[start:end], frequencies[start:end])
            counts = counts.astype(kind)
            data.write((weights * (counts / (norms[rows] + counts))).astype(np.float32).tobytes())
            indices.write(rows.tobytes())
            bar.update(len(rows))
            start = end
    return total


def _block(
    shards: Sequence[Shard], pointers: np.ndarray, start: int, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Collect passages and counts of the tokens ``start`` to ``end``, sorted by token, then by passage."""
    size = int(pointers[-1] - pointers[0])
    rows, counts = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
    filled = (pointers[:-1] - pointers[0]).copy()
    for shard in shards:
        ids = shard.array("ids")
        low, high = np.searchsorted(ids, (start, end))
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
