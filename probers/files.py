"""Files written whole or not at all, JSON in one fixed layout, and what names a content."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .types import RunError

#: What a failed write leaves possible, where the caller does not know better.
RESUMES = "what was finished is kept, and the same command resumes once that is mended"


def write_bytes(path: Path, blob: bytes, then: str = RESUMES) -> None:
    """Write a file so that a reader sees all of it or none; a failure leaves nothing behind.

    Folders that are not there are made.

    Raises:
        RunError: as :func:`writing`.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path, then):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_text(path: Path, text: str) -> None:
    """:func:`write_bytes` for text in UTF-8."""
    write_bytes(path, text.encode())


@contextmanager
def writing(path: Path, then: str = RESUMES) -> Iterator[None]:
    """Turn a failure to write ``path`` into one sentence that says what ``then`` is possible.

    Raises:
        RunError: a full disk, a used-up quota, a folder that may not be written to, ...
    """
    try:
        yield
    except OSError as error:
        causes = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
        cause = causes.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"cannot write {path}: {cause}; {then}") from error


def digest(content: str | bytes, length: int = 16) -> str:
    """The first hexadecimal digits of the SHA-256 of bytes, or of a text in UTF-8."""
    blob = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(blob).hexdigest()[:length]


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and a fixed layout: equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
