"""Command lines that a shell takes: of the next step, and of the same run again; names of folders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..files import digest
from .compose import key_value, parsed, quote

_LONGEST = 100  # characters of a folder's name; file systems allow 255 bytes


def override(key: str, value: object) -> str:
    """Write a key with a number, null or any text so that Hydra's grammar reads it as this value."""
    if value is None or isinstance(value, int | float):
        return f"{key}={'null' if value is None else value}"
    plain = parsed(f"{key}={value}")
    bare = plain is not None and not plain.is_sweep_override() and plain.value() == str(value)
    return f"{key}={value if bare else quote(str(value))}"


def for_shell(word: str) -> str:
    """Quote a word for the shell, in double quotes where it has single ones that these protect."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)


def command_line(command: str, *words: str, **options: object) -> str:
    """Format a command for the shell: words as they are typed, then options with any text as value."""
    typed = [f"probers-{command}", *words, *(override(key, value) for key, value in options.items())]
    return " ".join(map(for_shell, typed))


def retyped(typed: Sequence[str]) -> tuple[str, ...]:
    """Drop the options of a run's part, folder and launcher from typed ones."""
    means = ("part", "out", "wait", "overwrite", "launch")
    return tuple(option for option in typed if key_value(option)[0].partition(".")[0] not in means)


def for_reading(typed: Sequence[str]) -> list[str]:
    """Write typed options as in :func:`retyped`, a file of questions as ``questions=FILE``."""
    options = list(retyped(typed))
    if "questions=file" in options:
        options.remove("questions=file")
        options = [option.replace("questions.path=", "questions=", 1) for option in options]
    return options


def folder_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """Name a folder for each job after what it varies: ``head=linear,seed=1``.

    Readable as far as file systems allow, different for different jobs, and the same in another sweep over
    the same keys.
    """
    names = []
    for text in map(",".join, jobs):
        name = re.sub(r"[^\w.=,+-]+", "_", text)
        if name != text or len(name) > _LONGEST:
            # The replaced or cut part may have been the only difference between two jobs.
            name = f"{name[:_LONGEST]}-{digest(text, 6)}"
        names.append(name)
    return names


def merge_line(parts: Path) -> str:
    """Format the command that merges the parts in a folder."""
    return f"probers-merge {for_shell(str(parts))}/*"
