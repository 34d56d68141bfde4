"""Places of tokens in a corpus, for exact counts of the passages that hold phrases.

A place is the number of a token in the corpus read as one sequence, with one empty place after every
passage, so that no phrase runs over the end of a passage. The places of a token are in order. Those of a
phrase are found from its rarest token by bisection in the places of the others, moved by their distance
(positional postings, Manning et al. 2008, section 2.4.2).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

#: Files of the places of a stored corpus: of all tokens, where each token's begin, where each passage begins.
PLACES, POINTERS, BEGINNINGS = "places.npy", "pointers.npy", "beginnings.npy"
#: Approximate number of tokens read at a time from a stored corpus, which bounds the memory of making.
BLOCK = 8_000_000
#: Numbers of tokens kept in memory.
_NUMBERS = 1_000_000

#: The passages of an unknown token.
NOWHERE = np.zeros(0, dtype=np.int32)


class Places:
    """Places of T distinct tokens in N passages with P tokens.

    Args:
        number: number of a token, None for an unknown one.
        places: (P,) unsigned, those of one token after those of another.
        pointers: (T + 1,) where the places of each token begin.
        beginnings: (N + 1,) the place where each passage begins, and the end.
    """

    def __init__(
        self, number: Callable[[str], int | None], places: np.ndarray, pointers: np.ndarray,
        beginnings: np.ndarray,
    ) -> None:  # fmt: skip
        self._number, self._places = number, np.asarray(places)
        self._pointers, self._beginnings = np.asarray(pointers), np.asarray(beginnings)

    @classmethod
    def of(cls, documents: Iterable[Sequence[str]]) -> Places:
        """Number the tokens of documents and gather their places, in memory."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        flat, lengths = array("i"), array("i")
        for tokens in documents:
            flat.extend(map(numbers.__getitem__, tokens))
            lengths.append(len(tokens))
        ids = np.frombuffer(flat, dtype=np.int32)
        beginnings = _beginnings(lengths)
        pointers = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=len(numbers)))])
        # One empty place stands after every passage.
        places = np.arange(len(ids)) + np.repeat(np.arange(len(lengths)), np.frombuffer(lengths, np.int32))
        ordered = places[np.argsort(ids, kind="stable")].astype(beginnings.dtype)
        return cls(numbers.get, ordered, pointers, beginnings)

    @classmethod
    def load(cls, folder: Path, number: Callable[[str], int | None]) -> Places:
        """Map the files that :func:`write_places` made."""
        names = (PLACES, POINTERS, BEGINNINGS)
        return cls(number, *(np.load(folder / n, mmap_mode="r", allow_pickle=False) for n in names))

    def rows(self, phrase: Sequence[str]) -> np.ndarray:
        """List the rows of the passages that hold some tokens in a row, in order; none for no tokens."""
        numbers = [self._number(token) for token in phrase]
        if not numbers or None in numbers:
            return NOWHERE
        each = [(self._of(number), offset) for offset, number in enumerate(numbers) if number is not None]
        each.sort(key=lambda pair: len(pair[0]))
        (places, first), *others = each
        for longer, offset in others:
            wanted = places + np.array(offset - first).astype(places.dtype)  # below 0 wraps around, and back
            places = places[among(wanted, longer)]
        rows = np.searchsorted(self._beginnings, places, side="right") - 1
        return np.unique(rows).astype(np.int32)

    def _of(self, number: int) -> np.ndarray:
        start, end = self._pointers[number : number + 2]
        return self._places[start:end]


def among(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Tell which values are in a sorted array; bisection makes a frequent token cheap beside a rare one."""
    found: np.ndarray = ordered[np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)] == values
    return found


def write_places(
    documents: Iterable[Sequence[str]], folder: Path, number: Callable[[str], int | None], tokens: int, *,
    block: int = BLOCK,
) -> dict[str, Any]:  # fmt: skip
    """Fill a folder with the places of documents, whose vocabulary has ``tokens`` tokens.

    The documents are read once into a file of token numbers, which is then sorted block by block: memory
    holds one block, 16 bytes per token of the vocabulary and 24 per document.
    """
    numbered = lru_cache(_NUMBERS)(number)
    flat, lengths = folder / "tokens.bin", array("i")
    frequencies = np.zeros(tokens, dtype=np.int64)
    with flat.open("wb") as file:
        ids = array("i")

        def write() -> None:
            np.add(frequencies, np.bincount(np.frombuffer(ids, np.int32), minlength=tokens), out=frequencies)
            file.write(ids.tobytes())

        for words in documents:
            ids.extend(map(numbered, words))  # type: ignore[arg-type]  # the vocabulary has them all
            lengths.append(len(words))
            if len(ids) >= block:
                write()
                ids = array("i")
        write()
    beginnings = _beginnings(lengths)
    pointers = np.concatenate([[0], np.cumsum(frequencies)])
    total, filled = int(pointers[-1]), pointers[:-1].copy()
    kind = beginnings.dtype
    places = np.lib.format.open_memmap(folder / PLACES, "w+", kind, (total,))
    sequence = np.memmap(flat, np.int32, "r", shape=(total,)) if total else np.zeros(0, np.int32)
    ends = np.cumsum(np.frombuffer(lengths, dtype=np.int32), dtype=np.int64)
    for start in range(0, total, block):
        numbers = np.asarray(sequence[start : start + block])
        order = np.argsort(numbers, kind="stable")
        here = np.arange(start, start + len(numbers))
        # A place is the token's number in the sequence, and one more for every passage before it.
        here += np.searchsorted(ends, here, side="right")
        distinct, firsts, sizes = np.unique(numbers[order], return_index=True, return_counts=True)
        targets = np.repeat(filled[distinct] - firsts, sizes) + np.arange(len(numbers))
        places[targets] = here[order].astype(kind)
        filled[distinct] += sizes
    places.flush()
    flat.unlink()
    np.save(folder / POINTERS, pointers, allow_pickle=False)
    np.save(folder / BEGINNINGS, beginnings, allow_pickle=False)
    return {"passages": len(lengths), "tokens": total}


def _beginnings(lengths: array[int]) -> np.ndarray:
    """Compute the place where each passage begins, and the end."""
    sizes = np.frombuffer(lengths, dtype=np.int32).astype(np.int64) + 1
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return ends.astype(np.uint32 if ends[-1] < 2**31 else np.uint64)
