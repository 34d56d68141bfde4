"""Append-only files of JSON lines, each with its own checksum, which survive a kill at any byte."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .checksums import seal, unseal
from .files import read_text, regular, write_bytes, writing
from .types import UserError, first_line


@dataclass(frozen=True, slots=True)
class Lines:
    """Content of a journal.

    Attributes:
        records: the sound lines by number, from 1.
        damaged: numbers of the lines that are not as they were written.
        cut: a last line without its end was left out.
    """

    records: dict[int, dict[str, Any]]
    damaged: tuple[int, ...] = ()
    cut: bool = False


class Journal:
    """Records that a run appends as it goes on, and reads again when it resumes.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Lines:
        """Read all sound lines.

        Raises:
            UserError: the path is a link, folder, pipe or device.
        """
        try:
            regular(self.path)
        except FileNotFoundError:
            return Lines({})
        except ValueError as error:
            raise UserError(f"{self.path} {error}: remove it", "bad-file") from error
        *lines, rest = self.path.read_bytes().split(b"\n")
        records: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            try:
                records[number] = unseal(json.loads(line), older=False)
            except (ValueError, RecursionError):
                continue
        damaged = tuple(n for n in range(1, len(lines) + 1) if n not in records)
        return Lines(records, damaged, bool(rest))

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add records and have them on disk before returning; a kill leaves all of them or none.

        Raises:
            RunError: they cannot be written.
        """
        with writing(self.path), self.path.open("ab") as file:
            file.write(sealed_lines(records).encode())
            file.flush()
            os.fsync(file.fileno())

    def rewrite(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the file, whole or not at all.

        Raises:
            RunError: it cannot be written.
        """
        write_bytes(self.path, sealed_lines(records).encode())


def sealed_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Format records as JSON lines, each with its own checksum."""
    return "".join(f"{json.dumps(seal(r), ensure_ascii=False, allow_nan=False)}\n" for r in records)


def unsealed_lines(path: Path) -> list[dict[str, Any]]:
    """Read a whole file of :func:`sealed_lines`, in which every line must be sound.

    Raises:
        OSError: the file is missing or unreadable.
        ValueError: a line is damaged; names it.
    """
    found = []
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        try:
            found.append(unseal(json.loads(line), older=False))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is damaged in line {number} ({first_line(error)})") from error
    return found
