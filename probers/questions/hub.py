"""Rows of a dataset on the Hugging Face Hub, as a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from ..hub import first_line, open_stream
from ..types import RunError, UserError
from .reading import Row

if TYPE_CHECKING:
    from .base import QuestionSource

#: Says what is wrong with the columns of a dataset, None when nothing is.
Check = Callable[[Collection[str]], "str | None"]


def hub_rows(source: QuestionSource, check: Check) -> Iterator[Row]:
    """The rows of ``source.hub``; what they lack is said before the first one is read.

    Raises:
        UserError: no such dataset, configuration, split or columns.
        RunError: the Hub cannot be reached, also in the middle of the stream: a part of the
            questions in place of the ones asked for would be another experiment.
    """
    assert source.hub is not None
    data = open_stream(
        source.spec,
        source.hub,
        instead="give a local file as questions.path",
        name=source.config,
        split=source.hub_split,
        revision=source.revision,
    )
    if data.column_names is not None:
        _refuse(source, check(data.column_names))
    rows, number = iter(data), 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # whatever file system and format lie below
            raise RunError(
                f"{source.spec} broke off after {number} rows: {type(error).__name__}: {first_line(error)}; "
                "run the same command again, or give a local file as questions.path"
            ) from error
        if row is None:
            return
        if not number:
            _refuse(source, check(row))
        number += 1
        yield Row(f"row {number}", row)


def _refuse(source: QuestionSource, problem: str | None) -> None:
    if problem:
        raise UserError(f"{source.spec}: {problem}; give another questions.hub or a file as questions.path")
