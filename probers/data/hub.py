"""Datasets of the Hugging Face Hub, or folders that ``datasets`` reads, opened as streams."""

from __future__ import annotations

from typing import Any

from ..types import RunError, UserError


def open_stream(spec: str, dataset: str, *, instead: str, **options: Any) -> Any:
    """What ``datasets.load_dataset(dataset, streaming=True)`` gives, every failure in one sentence.

    Args:
        spec: the option and its value, as messages call it.
        dataset: its id, or a folder.
        instead: what to give where there is no network, e.g. "give a local file as questions.path".
        **options: further ones of ``load_dataset``.

    Raises:
        UserError: no such dataset, configuration or split, or one that needs code to be run.
        RunError: it cannot be reached.
    """
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    try:
        return datasets.load_dataset(dataset, streaming=True, **options)
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise UserError(
            f"{spec}: no such dataset, or nothing in it can be read ({first_line(error)})"
        ) from error
    except (ValueError, RuntimeError) as error:  # an unknown configuration or split, a loading script
        raise UserError(f"{spec} cannot be opened: {first_line(error)}") from error
    except Exception as error:  # the libraries below raise many kinds for one thing: no network
        raise RunError(
            f"{spec} cannot be reached: {type(error).__name__}: {first_line(error)}; "
            f"check the network, or {instead}"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
