"""Rows of a dataset on the Hugging Face Hub, as a stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any

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
    data = _load(source)
    if data.column_names is not None:
        _refuse(source, check(data.column_names))
    rows, number = iter(data), 0
    while True:
        try:
            row = next(rows, None)
        except Exception as error:  # whatever file system and format lie below
            raise RunError(
                f"{source.spec} broke off after {number} rows: {type(error).__name__}: {_line(error)}; "
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


def _load(source: QuestionSource) -> Any:
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    assert source.hub is not None
    try:
        return datasets.load_dataset(
            source.hub, name=source.config, split=source.hub_split, revision=source.revision, streaming=True
        )
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"{source.spec}: no such dataset, or nothing in it can be read ({_line(error)})"
        ) from error
    except (ValueError, RuntimeError) as error:  # an unknown configuration or split, a loading script
        raise UserError(f"{source.spec} cannot be opened: {_line(error)}") from error
    except Exception as error:  # the libraries below raise many kinds for one thing: no network
        raise RunError(
            f"{source.spec} cannot be reached: {type(error).__name__}: {_line(error)}; "
            "check the network, or give a local file as questions.path"
        ) from error


def _line(error: BaseException) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
