"""Questions and passages from the testbed or from files, and what all readers of lines share.

A malformed line is named by file and line number. ``on_bad_line="error"`` stops at
the first one; ``"skip"`` leaves them out and says at the end how many there were.
"""

from __future__ import annotations

import gzip
import random
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from .types import Passage, Question, UserError

if TYPE_CHECKING:
    from .questions import QuestionSource

BadLine = Literal["error", "skip"]
T = TypeVar("T")

SPLIT_SHARES = (("train", 0.6), ("validation", 0.15), ("test", 0.25))


def load_questions(
    source: str | QuestionSource,
    *,
    limit: int | None = None,
    split: str | None = None,
    seed: int = 0,
    on_bad_line: BadLine = "error",
) -> list[Question]:
    """Questions of the testbed, of a JSONL file or of a published set, every one with a split.

    The short form of :func:`.questions.open_questions`; what was left out is said on the
    standard error.

    Args:
        source: "testbed", a path, the name of a set (its copy on the Hub is read then), or a
            set with its options.
        limit: keep this many; they are drawn with ``seed`` so that a smaller
            limit is a part of a larger one. None keeps all.
        split: keep only "train", "validation" or "test".

    Raises:
        UserError: missing file, malformed line, duplicate id, nothing left.
        RunError: the Hub cannot be reached.
    """
    from .questions import open_questions

    found = open_questions(source, limit=limit, split=split, seed=seed, on_bad_line=on_bad_line)
    for line in found.lines():
        print(line, file=sys.stderr)
    return found.questions


def load_corpus(
    source: str,
    *,
    on_bad_line: BadLine = "error",
    passage_words: int | None = None,
    cache: str | Path | None = None,
) -> Sequence[Passage]:
    """Passages of the testbed, of a JSONL file or of DPR's TSV (``.gz`` too).

    Of a large file the texts stay on the disk; see :func:`.corpus.open_corpus`.

    Args:
        source: "testbed" or a path.
        passage_words: cut texts into passages of this many words; None keeps them whole.
        cache: the folder for what large files are turned into; None is runs/cache/corpus.

    Raises:
        UserError: missing file, malformed line, duplicate id, nothing left.
    """
    if source == "testbed":
        from .testbed import assets

        return assets.load_corpus()
    from .corpus import CACHE, open_corpus

    return open_corpus(source, on_bad_line=on_bad_line, passage_words=passage_words, cache=cache or CACHE)


def limited(items: list[T], limit: int | None, seed: int) -> list[T]:
    """``limit`` items drawn by ``seed``, in the order of the draw; all in theirs when there are no more."""
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    order = list(range(len(items)))
    random.Random(f"limit:{seed}").shuffle(order)
    return [items[i] for i in order[:limit]]


def dealt(keys: list[str], seed: int) -> dict[str, str]:
    """A split per group key, in the shares of SPLIT_SHARES to within one group."""
    groups = sorted(set(keys))
    random.Random(f"split:{seed}").shuffle(groups)
    sides: dict[str, str] = {}
    upto, start = 0.0, 0
    for name, share in SPLIT_SHARES:
        upto += share
        end = round(upto * len(groups))
        sides.update(dict.fromkeys(groups[start:end], name))
        start = end
    return sides


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of every line that is not blank; ``.gz`` is unpacked.

    Raises:
        UserError: the file is not UTF-8 text, or cut short.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}") from error
