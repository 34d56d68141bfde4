"""Questions and passages, from the testbed, from files and from published sets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..types import Passage, Question
from .lines import BadLine

if TYPE_CHECKING:
    from .questions import QuestionSource


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
        from ..testbed import assets

        return assets.load_corpus()
    from .corpus import CACHE, open_corpus

    return open_corpus(source, on_bad_line=on_bad_line, passage_words=passage_words, cache=cache or CACHE)
