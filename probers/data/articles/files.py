"""Articles of a file, of rows, or of a dataset of the Hugging Face Hub, read as streams.

A file is read twice: first to find every malformed line before any model runs, to draw and to deal splits,
which keeps 25 bytes per article, then to deliver the articles. A dataset of the Hub is read once.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...checksums import draw_key
from ...options import shown
from ...types import Article, RunError, UserError
from ..records import (
    BadLine,
    UnusableError,
    bad_line,
    check_object,
    check_strings,
    file_rows,
    given_records,
    is_lines,
    line_rows,
    what_is_wrong,
)
from ..rows import records_of
from ..splits import Splits
from ..tables import HUB_FOLDER, Row, hub_splits, stream_rows
from .base import ArticleSource, Problems, Rules, clean, prose

#: With a limit, articles of the Hub are drawn from a window of this many rows that moves over the stream.
WINDOW = 1000


def open_rows(
    given: Any, *, limit: int | None, seed: int, on_bad_line: BadLine, rules: Rules
) -> ArticleSource:
    """Open the usable articles of a file (:func:`..records.file_rows`) or of rows, in their order.

    UserError for a missing file, nothing usable, or with ``on_bad_line="error"`` a malformed line or repeated
    id. A repeated title without ids is only a problem; its first article is kept.
    """
    spec = str(given) if isinstance(given, (str, Path)) else "rows"
    rows, key = _opener(given), Splits(seed).key
    problems = Problems(file=spec, policy=on_bad_line)
    ids, titles, numbers, has_id = array("Q"), array("Q"), array("Q"), array("B")
    for number, row in rows():
        try:
            article = _of_row(row, rules)
        except (ValueError, RecursionError) as error:
            problems.refuse(row.where, what_is_wrong(error))
        except UnusableError as error:
            problems.add(clean(row.record["title"]).strip() or row.where, str(error))
        else:
            ids.append(draw_key("id", 0, article.id))
            titles.append(key(article.title))
            numbers.append(number)
            has_id.append(article.id != article.title)
    lines = np.array(numbers)
    _, firsts, place = np.unique(np.array(ids), return_index=True, return_inverse=True)
    origin = lines[firsts[place]]
    again = origin != lines
    repeats = (each[again].tolist() for each in (lines, origin, np.array(has_id)))
    for number, first, named in zip(*repeats, strict=True):
        if named and on_bad_line == "error":
            raise bad_line(f"{spec} line {number}: its id is already on line {first}")
        what = "id" if named else "title"
        problems.add(f"line {number}", f"repeated {what}: also on line {first}")
    repeated, usable = set(lines[again].tolist()), lines[~again]
    if not (total := len(usable)):
        raise problems.nothing_usable(spec)
    upto = 2**64
    if limit is not None and limit < total:
        draws = np.fromiter((_draw(number, seed) for number in usable.tolist()), np.uint64, total)
        upto, total = int(np.partition(draws, limit - 1)[limit - 1]), limit
    splits = Splits(seed, titles)

    def articles() -> Iterator[Article]:
        for number, row in rows():
            if number not in repeated and _draw(number, seed) <= upto:
                with suppress(ValueError, RecursionError, UnusableError):  # counted by the first reading
                    yield _of_row(row, rules, splits)

    return ArticleSource(spec, articles(), problems, total)


def _opener(given: Any) -> Callable[[], Iterable[tuple[int, Row]]]:
    """Return a function that opens the records of a file or of rows anew, each with its number."""
    if not isinstance(given, (str, Path)):
        records = records_of(given, None, ("title", "text"))
        return lambda: ((number, Row(f"row {number}", record)) for number, record in enumerate(records, 1))
    path = given_records("articles", given, "testbed, a JSONL file, wikipedia or hf:<dataset id>")
    if not is_lines(path):
        return lambda: enumerate(file_rows(path), 1)
    # What no text can hold is cleaned later.
    return lambda: ((int(row.where.removeprefix("line ")), row) for row in line_rows(path, json.loads))


def _of_row(row: Row, rules: Rules, splits: Splits | None = None) -> Article:
    """Make the article of a row; ValueError if malformed, UnusableError if the article is useless."""
    if row.problem:
        raise ValueError(row.problem)
    record = row.record
    check_object(record)
    title = record.get("title")
    if not isinstance(title, str):
        raise ValueError("no 'title'" if title is None else f"title must be a string, found {title!r}")
    if "sentences" in record:
        check_strings("sentences", content := record["sentences"])
    elif "text" not in record:
        raise ValueError("no 'text' and no 'sentences'")
    elif not isinstance(content := record["text"], str):
        raise ValueError(f"text must be a string, found {shown(content)}")
    id = record.get("id")
    return rules.article(title, content, id=None if id is None else str(id), split=splits)


def _draw(number: int, seed: int) -> int:
    return draw_key("limit", seed, str(number))


def open_hub(spec: str, *, limit: int | None, seed: int, rules: Rules) -> ArticleSource:
    """Open the articles of ``hf:<dataset id>[:<config>][:<split>]``, by default train or the only split.

    Rows need a ``title`` and ``text`` or ``sentences`` (a list of strings).
    """
    opened = hub_splits("articles", spec)
    if len(opened) > 1 and "train" not in opened:
        there = ", ".join(opened)
        message = f"articles={spec} has several splits: add one of {there} as hf:ID:CONFIG:SPLIT"
        raise UserError(message, "missing-value")
    data = opened.get("train") or next(iter(opened.values()))
    if limit is not None:
        data = data.shuffle(seed=seed, buffer_size=WINDOW)
    if data.column_names is not None:
        _check_columns(spec, data.column_names)
    problems, splits = Problems(), Splits(seed)
    rows = stream_rows(f"articles={spec}", data, partial(_check_columns, spec), instead=HUB_FOLDER)

    def articles() -> Iterator[Article]:
        done = number = 0
        try:
            for number, row in enumerate(rows, 1):
                record = {"id": number, "title": "", "text": ""}
                record |= {name: value for name, value in row.record.items() if value is not None}
                if isinstance(record["text"], str):
                    record["text"] = prose(clean(record["text"]))
                try:
                    article = _of_row(row._replace(record=record), rules, splits)
                except ValueError as error:
                    problems.refuse(row.where, str(error))
                except UnusableError as error:
                    problems.add(str(record["title"] or row.where), str(error))
                else:
                    done += 1
                    yield article
                    if done == limit:
                        return
        except RunError as error:  # what came before stays
            problems.add(f"row {number + 1}", f"broke off: {error}", failure=True)

    return ArticleSource(spec, articles(), problems, limit)


def _check_columns(spec: str, columns: Collection[str]) -> None:
    if "title" not in columns or not {"text", "sentences"} & {*columns}:
        there = ", ".join(columns) or "none"
        raise UserError(f"articles={spec} needs title and text or sentences: it has {there}", "bad-file")
