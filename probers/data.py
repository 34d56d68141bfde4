"""Questions, articles and passages from the testbed or from JSONL files.

A malformed line is named by file and line number. ``on_bad_line="error"`` stops at
the first one; ``"skip"`` leaves them out and says at the end how many there were.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from .types import Article, Passage, Question, UserError

BadLine = Literal["error", "skip"]
T = TypeVar("T", Question, Article, Passage)

SPLIT_SHARES = (("train", 0.6), ("validation", 0.15), ("test", 0.25))


def load_questions(
    source: str,
    *,
    limit: int | None = None,
    split: str | None = None,
    seed: int = 0,
    on_bad_line: BadLine = "error",
) -> list[Question]:
    """Questions of the testbed or of a JSONL file, every one with a split.

    Args:
        source: "testbed" or a path.
        limit: keep this many; they are drawn with ``seed`` so that a smaller
            limit is a part of a larger one. None keeps all.
        split: keep only "train", "validation" or "test".

    Raises:
        UserError: missing file, malformed line, duplicate id, nothing left.
    """
    if source == "testbed":
        from .testbed import assets

        questions = assets.load_questions()
    else:
        questions = _read(source, "questions", _question, on_bad_line)
        questions = _with_splits(questions, seed)
    if split is not None:
        questions = [q for q in questions if q.split == split]
        if not questions:
            raise UserError(f"questions={source} has no question in the {split} split")
    return _limited(questions, limit, seed)


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
    return _limited(articles, limit, seed)


def load_corpus(source: str, *, on_bad_line: BadLine = "error") -> list[Passage]:
    """Passages of the testbed or of a JSONL file (``.gz`` too)."""
    if source == "testbed":
        from .testbed import assets

        return assets.load_corpus()
    return _read(source, "corpus", _passage, on_bad_line)


def _limited(items: list[T], limit: int | None, seed: int) -> list[T]:
    if limit is None or limit >= len(items):
        return items
    if limit < 1:
        raise UserError(f"limit={limit} leaves nothing: give 1 or more, or null for all")
    order = list(range(len(items)))
    random.Random(f"limit:{seed}").shuffle(order)
    return [items[i] for i in order[:limit]]


def _deal(keys: list[str], seed: int) -> dict[str, str]:
    """A split per group key, in the shares of SPLIT_SHARES to within one group."""
    groups = sorted(set(keys))
    random.Random(f"split:{seed}").shuffle(groups)
    dealt: dict[str, str] = {}
    upto, start = 0.0, 0
    for name, share in SPLIT_SHARES:
        upto += share
        end = round(upto * len(groups))
        dealt.update(dict.fromkeys(groups[start:end], name))
        start = end
    return dealt


def _with_splits(questions: list[Question], seed: int) -> list[Question]:
    from dataclasses import replace

    keyed = [(q, q.group or q.id) for q in questions]
    dealt = _deal([k for q, k in keyed if not q.split], seed)
    return [replace(q, group=k, split=q.split or dealt[k]) for q, k in keyed]


def _with_article_splits(articles: list[Article], seed: int) -> list[Article]:
    from dataclasses import replace

    dealt = _deal([a.title for a in articles if not a.split], seed)
    return [replace(a, split=a.split or dealt[a.title]) for a in articles]


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
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
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


def _question(record: Any) -> Question:
    text = _text(record, "question")
    passages = tuple(
        Passage(str(i), _text(p, "title"), _text(p, "text"), is_gold=p.get("is_gold"))
        for i, p in enumerate(record.get("passages", []))
    )
    return Question(
        id=str(record["id"]),
        question=text,
        answers=_strings(record, "answers") if "answers" in record else (),
        rationale=record.get("rationale", ""),
        dataset=record.get("dataset", ""),
        passages=passages,
        group=record.get("group", ""),
        split=record.get("split", ""),
    )


def _article(record: Any) -> Article:
    title = _text(record, "title")
    if "sentences" in record:
        sentences = _strings(record, "sentences")
    else:
        from .text import split_sentences

        text = _text(record, "text")
        sentences = tuple(text[a:b] for a, b in split_sentences(text))
    return Article(str(record.get("id", title)), title, sentences)


def _passage(record: Any) -> Passage:
    return Passage(str(record["id"]), record.get("title", ""), _text(record, "text"))
