"""Articles of a dataset on the Hugging Face Hub, or of a folder that ``datasets`` reads, as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probers.data.records import open_stream
from probers.data.splits import Splits
from probers.types import Article, UserError, first_line

from .base import ArticleSource, Problems, Progress, Rules, UnusableError, clean, prose

#: With a limit, articles are drawn out of a window of this many rows that moves over the stream.
WINDOW = 1000


def open_hub(spec: str, *, limit: int | None, seed: int, rules: Rules, progress: Progress) -> ArticleSource:
    """The articles of ``hf:<dataset id>[:<config>][:<split>]``; the split defaults to train or the only one.

    Rows need a ``title`` and ``text`` or ``sentences`` (a list of strings). A limit counts
    usable articles, drawn by ``seed``.

    Raises:
        UserError: no such dataset, configuration, split or columns.
        RunError: the dataset cannot be reached.
    """
    parts = spec.removeprefix("hf:").split(":")
    if len(parts) > 3 or not parts[0]:
        raise UserError(f"articles={spec} is not understood: give hf:<dataset id>[:<config>][:<split>]")
    name, config, split = (*parts, "", "")[:3]
    folder = "give a folder with the dataset's files as hf:FOLDER"
    rows: Mapping[str, Any] = open_stream(f"articles={spec}", name, instead=folder, name=config or None)
    if split and split not in rows:
        raise UserError(f"articles={spec} has no split {split}: choose one of {', '.join(rows)}")
    if not split and "train" not in rows and len(rows) > 1:
        raise UserError(
            f"articles={spec} has several splits: add one of {', '.join(rows)} as hf:{name}:{config}:<split>"
        )
    data = rows[split or ("train" if "train" in rows else next(iter(rows)))]
    if limit is not None:
        data = data.shuffle(seed=seed, buffer_size=WINDOW)
    if data.column_names is not None:
        _check_columns(spec, data.column_names)
    problems = Problems()
    articles = _articles(spec, data, limit, Splits(seed), rules, problems, progress)
    return ArticleSource(spec, articles, problems, limit)


def _check_columns(spec: str, columns: Iterable[str]) -> None:
    columns = list(columns)
    if "title" not in columns or not {"text", "sentences"} & set(columns):
        raise UserError(
            f"articles={spec} needs the columns title and text or sentences: "
            f"it has {', '.join(columns) or 'none'}"
        )


def _articles(
    spec: str,
    data: Iterable[Mapping[str, Any]],
    limit: int | None,
    splits: Splits,
    rules: Rules,
    problems: Problems,
    progress: Progress,
) -> Iterator[Article]:
    done = number = 0
    rows = iter(data)
    while done != limit:
        try:
            row = next(rows, None)
        except Exception as error:  # whatever file system and format lie below
            problems.add(
                f"row {number + 1}", f"broke off: {type(error).__name__}: {first_line(error)}", failure=True
            )
            break
        if row is None:
            break
        if not number:
            _check_columns(spec, row)
        number += 1
        try:
            article = _article(row, number, rules, splits)
        except UnusableError as error:
            problems.add(str(row.get("title") or f"row {number}"), str(error))
        else:
            done += 1
            progress(done, limit, article.title)
            yield article


def _article(row: Mapping[str, Any], number: int, rules: Rules, splits: Splits) -> Article:
    title, content = row.get("title"), row.get("sentences")
    if not isinstance(title, str):
        raise UnusableError("no title")
    if content is None:
        content = row.get("text")
        if not isinstance(content, str):
            raise UnusableError("empty")
        content = prose(clean(content))
    elif not isinstance(content, list) or not all(isinstance(s, str) for s in content):
        raise UnusableError("malformed: sentences must be a list of strings")
    id = row.get("id")
    return rules.article(title, content, id=str(number if id is None else id), split=splits)
