"""Questions, articles and passages from the testbed or from JSONL files.

A malformed line is named by file and line number. ``on_bad_line="error"`` stops at
the first one; ``"skip"`` leaves them out and says at the end how many there were.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from .types import Article, Passage, Question, UserError

if TYPE_CHECKING:
    from .questions import QuestionSource

BadLine = Literal["error", "skip"]
T = TypeVar("T", Question, Article)

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


def load_articles(
    source: str, *, limit: int | None = None, seed: int = 0, on_bad_line: BadLine = "error"
) -> list[Article]:
    """Articles of the testbed or of a JSONL file, every one with a split (see load_questions)."""
    if source == "testbed":
        from .testbed import assets

        articles = assets.load_articles()
    else:
        articles = _read(source, "articles", _article, on_bad_line)
        articles = _with_article_splits(articles, seed)
    return limited(articles, limit, seed)


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


def _with_article_splits(articles: list[Article], seed: int) -> list[Article]:
    from dataclasses import replace

    sides = dealt([a.title for a in articles if not a.split], seed)
    return [replace(a, split=a.split or sides[a.title]) for a in articles]


def _read(source: str, option: str, parse: Callable[[Any], T], on_bad_line: BadLine) -> list[T]:
    path = Path(source)
    if not path.is_file():
        raise UserError(f"{option}={source} is not a file: give 'testbed' or the path of a JSONL file")
    items: list[T] = []
    seen: dict[str, int] = {}
    bad: list[str] = []
    for number, line in read_lines(path):
        try:
            item = parse(json.loads(line))
            if item.id in seen:
                raise ValueError(f"the id {item.id!r} is already on line {seen[item.id]}")
        except (ValueError, KeyError, TypeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            if on_bad_line == "error":
                raise UserError(
                    f"{path} line {number}: {reason}; mend the line or pass on_bad_line=skip"
                ) from error
            bad.append(f"{path} line {number}: {reason}")
            continue
        seen[item.id] = number
        items.append(item)
    if bad:
        print(f"skipped {len(bad)} malformed lines:", *bad[:10], sep="\n  ", file=sys.stderr)
    if not items:
        raise UserError(f"{option}={source} holds no usable line")
    return items


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


def _text(record: Any, key: str) -> str:
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {type(record).__name__}")
    value = record[key]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be a non-empty string, found {value!r}")
    return value


def _strings(record: dict[str, Any], key: str) -> tuple[str, ...]:
    value = record[key]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ValueError(f"{key} must be a list of strings, found {value!r}")
    return tuple(value)


def _article(record: Any) -> Article:
    title = _text(record, "title")
    if "sentences" in record:
        sentences = _strings(record, "sentences")
    else:
        from .text import split_sentences

        text = _text(record, "text")
        sentences = tuple(text[a:b] for a, b in split_sentences(text))
    return Article(str(record.get("id", title)), title, sentences)
