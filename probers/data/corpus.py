"""The corpus as a sequence of passages, with memory that does not grow with its texts.

A small file is read into memory. A large one is turned once into a :class:`PassageStore`, named by a hash of
the file's bytes: passages.jsonl has a line ``["id","title","text"]`` per passage, and offsets.npy (N + 1,)
int64 has the place where each begins.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..checksums import draw_key, file_digest, inputs
from ..files import cache_folder, digest
from ..progress import Bar, warn_once
from ..types import Passage, Retriever, RunError, UserError
from .cache import Estimate, build_once
from .corpus_formats import BadLines, read_passages
from .records import BadLine, as_rows, bad_line, check_bad_line, given_records, half_in

PASSAGES, OFFSETS = "passages.jsonl", "offsets.npy"


class PassageStore(Sequence[Passage]):
    """Passages in a folder made by :func:`load_corpus`; ``fingerprint`` identifies them and their order."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self._offsets = np.load(path / OFFSETS, mmap_mode="r", allow_pickle=False)
        self._file = (path / PASSAGES).open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def nbytes(self) -> int:
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
        # Not mapped: the kernel's read-ahead would count as this process's memory. Nor is there a
        # position in the file, which threads and forked processes would share.
        return _decode(os.pread(self._file.fileno(), end - start, start))

    def __iter__(self) -> Iterator[Passage]:
        return self.since(0)

    def since(self, row: int) -> Iterator[Passage]:
        """Yield the passages from ``row`` on, read from the file one by one."""
        with (self.path / PASSAGES).open("rb") as file:
            file.seek(int(self._offsets[row]))
            yield from map(_decode, file)


#: Passages as users hold them: texts, dictionaries or passages.
Rows = Iterable[str | Mapping[str, Any] | Passage]


def as_passages(rows: Rows) -> Sequence[Passage]:
    """Make passages of texts, of dictionaries with ``text`` and perhaps ``id`` and ``title``, or of passages.

    A row without an id is named by its number from 1 on. UserError for no rows, for a row without text, and
    for an id that two rows have.
    """
    if isinstance(rows, PassageStore):
        return rows
    if isinstance(rows, (str, bytes, Mapping)):
        raise UserError(f"passages={rows!r:.80} is one passage: give a list of passages", "bad-value")
    passages = [_passage(row, number) for number, row in enumerate(as_rows(rows), 1)]
    if not passages:
        raise UserError("passages=[] is empty: give at least one text, or corpus=testbed or a file", "empty")
    places: dict[str, int] = {}
    for number, passage in enumerate(passages, 1):
        if (first := places.setdefault(passage.id, number)) != number:
            message = f"passages {first} and {number} have the same id {passage.id!r}"
            raise UserError(f"{message}: give each an id of its own, or none", "conflict")
    return passages


def _passage(row: Any, number: int) -> Passage:
    fields = asdict(row) if isinstance(row, Passage) else {"text": row} if isinstance(row, str) else row
    if not isinstance(fields, Mapping):
        raise UserError(f"passage {number} must be a text, or a dictionary with text, found {row!r:.80}")
    if "text" not in fields:
        there = ", ".join(map(repr, fields)) or "nothing"
        raise UserError(f"passage {number} has no 'text', only {there}: rename one to it", "missing-value")
    if (place := half_in(fields)) is not None:
        raise UserError(f"passage {number}: {place or 'a name'} holds half a pair of surrogates")
    if isinstance(row, Passage):
        return row
    for name in ("text", "title"):
        if not isinstance(value := fields.get(name, ""), str):
            raise UserError(f"passage {number}: {name}={value!r:.80} must be a string", "bad-value")
    return Passage(str(fields.get("id", number)), fields.get("title", ""), fields["text"])


def encode(passage: Passage) -> bytes:
    """Encode a passage as the line of a store."""
    record = json.dumps([passage.id, passage.title, passage.text], ensure_ascii=False, separators=(",", ":"))
    return record.encode("utf-8", "surrogatepass") + b"\n"


def _decode(line: bytes) -> Passage:
    name, title, text = json.loads(line)
    return Passage(name, title, text)


#: Files up to this many bytes are read into memory.
IN_MEMORY = 4 << 20

_SCHEMA = 2
# Measured by benchmarks/retrieval.py on one core. Per byte of text: seconds, bytes of the store. Memory in
# bytes: at first, and per byte of text. Ratio of text to .gz.
_SECONDS, _DISK, _MEMORY, _UNPACKED = 2.5e-8, 1.0, (6e7, 0.06), 3.2


def load_corpus(
    source: str | Path,
    *,
    on_bad_line: BadLine = "error",
    passage_words: int | None = None,
    cache: str | Path | None = None,
    in_memory: int = IN_MEMORY,
) -> Sequence[Passage]:
    """Read the passages of the testbed ("testbed"), or of a file, ``.gz`` or not.

    ``testbed:misleading=0.3`` is the testbed's corpus with false or missing passages for that share of its
    questions (:mod:`probers.testbed.misleading`).

    Args:
        source: the file; :func:`probers.data.corpus_formats.read_passages` describes its formats.
        on_bad_line: whether a malformed line or a repeated id is an "error" or left out ("skip").
        passage_words: cut texts, or articles, into passages of this many words; None keeps them whole.
        cache: the folder for passage stores, made from files of over ``in_memory`` bytes; None is the user's.

    Raises:
        UserError: missing file, malformed line, repeated id, or no passage at all.
    """
    if source == "testbed":
        from ..testbed import assets

        return assets.load_corpus()
    if str(source).startswith("testbed:"):
        from ..testbed import misleading

        return misleading.load_misleading(str(source))
    give = "'testbed', a JSONL, TSV, CSV or Parquet file, or in Python a list of texts"
    path = given_records("corpus", source, give)
    cache = Path(cache or cache_folder("corpus"))
    check_bad_line(on_bad_line)
    request = _Request(path, on_bad_line, passage_words)
    if (size := _size(path)) <= in_memory:
        return request.read()
    known = (".tsv", ".csv", ".parquet", ".gz")
    suffix = "".join(s for s in map(str.lower, path.suffixes) if s in known)  # the format
    content = inputs(path)[str(path)] if path.is_dir() else file_digest(path, cache)
    key = digest(f"{_SCHEMA} {content} {suffix} {passage_words}", 20)
    unpacked = size * (_UNPACKED if path.suffix.lower() in (".gz", ".parquet") else 1)
    estimate = Estimate(unpacked * _SECONDS, unpacked * _DISK, _MEMORY[0] + unpacked * _MEMORY[1])
    summary = build_once(cache / key, f"passage store of {path}", request.write, lambda: estimate)
    if summary["skipped"] and on_bad_line == "error":
        raise bad_line(summary["first_skipped"])
    return PassageStore(cache / key, key)


def search(retriever: Retriever, queries: Sequence[str], k: int) -> list[list[Passage]]:
    """Find up to ``k`` passages for each query, best first, each title and text once, whatever its ids."""
    results: list[list[Passage]] = [[] for _ in queries]
    open_, wanted = list(range(len(queries))), k
    while open_:
        lacking = []
        for i, hits in zip(open_, retriever.search([queries[i] for i in open_], wanted), strict=True):
            if not isinstance(hits, Sequence) or not all(isinstance(hit, Passage) for hit in hits):
                message = f"retriever={type(retriever).__name__} found {hits!r:.80} for a query"
                raise UserError(f"{message}: return one list of Passage objects for each", "own-class")
            results[i] = list({_key(passage): passage for passage in reversed(hits)}.values())[::-1]
            if len(results[i]) < len(hits):
                warn_once("passages alike in title and text are found: they share one place of a search")
            if len(results[i]) < k and len(hits) >= wanted:
                lacking.append(i)
        open_, wanted = lacking, wanted * 4
    return [hits[:k] for hits in results]


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _key(passage: Passage) -> int:
    """Make a key of title and text: passages with the same are one, whatever their ids."""
    return draw_key("passage", 0, " ".join(f"{passage.title}\n{passage.text}".split()))


def fingerprint(passages: Sequence[Passage]) -> str:
    """Fingerprint passages and their order: a store's own, or a hash of a list's content."""
    if isinstance(passages, PassageStore):
        return passages.fingerprint
    hashed = hashlib.sha256()
    for passage in passages:
        hashed.update(encode(passage))
    return hashed.hexdigest()[:20]


def passages_from(passages: Sequence[Passage], row: int) -> Iterator[Passage]:
    """Yield the passages from ``row`` on."""
    if isinstance(passages, PassageStore):
        return passages.since(row)
    return (passages[i] for i in range(row, len(passages)))


def _alike(keys: array[int]) -> set[int]:
    """Find the places of keys that occur more than once."""
    _, place, counts = np.unique(np.frombuffer(keys, np.uint64), return_inverse=True, return_counts=True)
    return set(np.flatnonzero(counts[place] > 1).tolist())


@dataclass(frozen=True, slots=True)
class _Request:
    path: Path
    policy: BadLine
    words: int | None

    def read(self) -> list[Passage]:
        bad = self._bad_lines()
        passages = list(self._each_once(bad))
        bad.alike = len(passages) - len(set(map(_key, passages)))
        self._finish(len(passages), bad)
        return passages

    def write(self, folder: Path) -> dict[str, Any]:
        """Fill the folder of a store, over the leftovers of an interrupted call."""
        bad, before = self._bad_lines(), self._stamp()
        # 64 bits of every id and every text find all repeated ones.
        offsets, hashes, texts = array("q", [0]), array("Q"), array("Q")
        with (
            Bar(total=_size(self.path), desc="passages", unit="B", unit_scale=True) as bar,
            (folder / PASSAGES).open("wb") as file,
        ):
            progress = lambda done: bar.update(done - bar.n)  # noqa: E731
            for _, passage in read_passages(self.path, bad, words=self.words, progress=progress):
                offsets.append(offsets[-1] + file.write(encode(passage)))
                hashes.append(draw_key("id", 0, passage.id))
                texts.append(_key(passage))
            progress(_size(self.path))
        # All that repeat an id, and perhaps by chance others.
        if again := _alike(hashes):
            offsets = array("q", [0])
            with (folder / PASSAGES).open("wb") as file:
                for passage in self._each_once(bad, again):
                    offsets.append(offsets[-1] + file.write(encode(passage)))
        np.save(folder / OFFSETS, np.frombuffer(offsets, dtype=np.int64), allow_pickle=False)
        if self._stamp() != before:
            raise RunError(f"{self.path} has changed while it was read: run again", "changed")
        bad.alike = len(texts) - len(np.unique(np.frombuffer(texts, dtype=np.uint64)))
        self._finish(len(offsets) - 1, bad)
        return {"passages": len(offsets) - 1, "skipped": len(bad), "first_skipped": bad.first()}

    def _each_once(self, bad: BadLines, suspects: Container[int] | None = None) -> Iterator[Passage]:
        """Yield passages with new ids; ``suspects`` are the only rows that may repeat one."""
        # Of a second reading malformed lines were counted before.
        malformed = bad if suspects is None else BadLines()
        lines: dict[str, str] = {}
        dropped = ""
        for row, (line, passage) in enumerate(read_passages(self.path, malformed, words=self.words)):
            if passage.id in lines and line != dropped:
                bad.refuse(line, f"the id {passage.id!r} is already on {lines[passage.id]}")
                dropped = line
            if line != dropped:  # dropped: all pieces of an article whose first piece is a repetition
                if suspects is None or row in suspects:
                    lines[passage.id] = line
                yield passage

    def _bad_lines(self) -> BadLines:
        return BadLines(file=str(self.path), policy=self.policy)

    def _stamp(self) -> tuple[int, int]:
        return _size(self.path), self.path.stat().st_mtime_ns

    def _finish(self, count: int, bad: BadLines) -> None:
        bad.report()
        if not count:
            raise UserError(f"corpus={self.path} holds no usable line", "empty")
