"""Articles of a JSONL file, read as a stream.

The file is read twice: once to find every malformed line before any model runs, to draw
and to deal splits, which keeps 33 bytes per article, and once to deliver the articles.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probers.data.records import BadLine, check_object, read_lines
from probers.data.splits import Splits
from probers.seeding import draw_key
from probers.types import Article, UserError

from .base import ArticleSource, Problems, Rules, UnusableError, clean


def open_file(
    spec: str, *, limit: int | None, seed: int, on_bad_line: BadLine, rules: Rules
) -> ArticleSource:
    """The usable articles of a JSONL file (``.gz`` too), in its order.

    Raises:
        UserError: no such file, nothing usable, or with ``on_bad_line="error"`` a malformed
            line or a repeated id. A title that is there twice without ids is a problem only:
            real collections have them. The first article is kept.
    """
    path = Path(spec)
    if not path.is_file():
        raise UserError(
            f"articles={spec} is not a file: "
            "give testbed, the path of a JSONL file, wikipedia or hf:<dataset id>"
        )
    problems = Problems()
    splits = Splits(seed)
    ids, titles, draws, numbers, own = array("Q"), array("Q"), array("Q"), array("Q"), array("B")
    for number, line in read_lines(path):
        try:
            article = _article(line, rules)
        except (ValueError, RecursionError) as error:
            if on_bad_line == "error":
                raise UserError(
                    f"{path} line {number}: {error}; mend the line or pass on_bad_line=skip"
                ) from error
            problems.add(f"line {number}", f"malformed: {error}")
        except UnusableError as error:
            problems.add(_name(line, number), str(error))
        else:
            ids.append(draw_key("id", 0, article.id))
            titles.append(splits.key(article.title))
            if limit is not None:
                draws.append(_draw(number, seed))
            numbers.append(number)
            own.append(article.id != article.title)
    repeated = _repeated(ids, numbers)
    named = {n for n, has in zip(numbers, own, strict=True) if has and n in repeated}
    for number, first in repeated.items():
        if number in named and on_bad_line == "error":
            raise UserError(
                f"{path} line {number}: its id is already on line {first}; "
                "mend the line or pass on_bad_line=skip"
            )
        problems.add(
            f"line {number}", f"repeated {'id' if number in named else 'title'}: also on line {first}"
        )
    total = len(numbers) - len(repeated)
    if not total:
        raise problems.nothing_usable(spec)
    upto = 2**64
    if limit is not None and limit < total:
        kept = ~np.isin(np.frombuffer(numbers, np.uint64), np.fromiter(repeated, np.uint64, len(repeated)))
        upto = int(np.partition(np.frombuffer(draws, np.uint64)[kept], limit - 1)[limit - 1])
        total = limit
    articles = _deliver(path, rules, seed, upto, set(repeated), Splits(seed, titles))
    return ArticleSource(spec, articles, problems, total)


def _deliver(
    path: Path, rules: Rules, seed: int, upto: int, repeated: set[int], splits: Splits
) -> Iterator[Article]:
    for number, line in read_lines(path):
        if number in repeated or (upto < 2**64 and _draw(number, seed) > upto):
            continue
        try:
            yield _article(line, rules, splits)
        except (ValueError, RecursionError, UnusableError):
            continue  # counted by the first reading


def _article(line: str, rules: Rules, splits: Splits | None = None) -> Article:
    """The article of a line.

    Raises:
        ValueError: something is missing or of another type: the line is malformed.
        UnusableError: something is empty or too short.
    """
    record: Any = json.loads(line)
    check_object(record)
    title = record.get("title")
    if not isinstance(title, str):
        raise ValueError("no 'title'" if title is None else f"title must be a string, found {title!r}")
    if "sentences" in record:
        content = record["sentences"]
        if not isinstance(content, list) or not all(isinstance(s, str) for s in content):
            raise ValueError("sentences must be a list of strings")
    elif "text" in record:
        content = record["text"]
        if not isinstance(content, str):
            raise ValueError(f"text must be a string, found {type(content).__name__}")
    else:
        raise ValueError("no 'text' and no 'sentences'")
    id = record.get("id")
    return rules.article(title, content, id=None if id is None else str(id), split=splits)


def _draw(number: int, seed: int) -> int:
    """What decides whether a limit keeps a line; the lines with the least are kept."""
    return draw_key("limit", seed, str(number))


def _name(line: str, number: int) -> str:
    return clean(json.loads(line)["title"]).strip() or f"line {number}"


def _repeated(ids: array[int], numbers: array[int]) -> dict[int, int]:
    """Line number of every repeated id -> that of its first occurrence, in the file's order."""
    keys, lines = np.frombuffer(ids, np.uint64), np.frombuffer(numbers, np.uint64)
    if not len(keys):
        return {}
    order = np.lexsort((lines, keys))
    keys, lines = keys[order], lines[order]
    first = np.concatenate([[True], keys[1:] != keys[:-1]])
    origin = lines[first][np.cumsum(first) - 1]
    pairs = zip(lines[~first].tolist(), origin[~first].tolist(), strict=True)
    return dict(sorted(pairs))
