"""Files written whole or not at all, and JSON in one fixed layout."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .types import RunError, UserError

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)

RESUMES = "what was finished is kept, and the same command resumes once that is fixed"


def cache_folder(name: str) -> Path:
    """Return the folder of a cache: below ``PROBERS_CACHE``, else in the user's folder for caches."""
    if given := os.environ.get("PROBERS_CACHE"):
        return Path(given) / name
    home = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~/AppData/Local")}
    user = home.get(sys.platform) or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser() / "probers" / name


def write_bytes(path: Path, blob: bytes) -> None:
    """Write a file, whole or not at all, and the folders above it."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
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
    """Write text in UTF-8 like :func:`write_bytes`."""
    write_bytes(path, text.encode())


@contextmanager
def writing(path: Path, then: str = RESUMES) -> Iterator[None]:
    """Turn a failure to write into a RunError that says what is kept, or what to do ``then``."""
    try:
        yield
    except OSError as error:
        causes = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
        cause = causes.get(error.errno or 0, error.strerror or str(error))
        raise RunError(f"cannot write {path}: {cause}; {then}", "disk") from error


#: Failures of a lock on file systems that have none.
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP}  # at ENOSYS filelock marks a file by itself
#: End of the name of a file that stands for a lock there.
SOFT = ".soft"


def locked(path: Path, wait: Callable[[], None]) -> BaseFileLock:
    """Lock a file against other processes; where another holds it, call ``wait``, and wait unless it raises.

    On a file system without locks, such as NFS without its lock service, a further file marks the lock.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    def acquired(lock: BaseFileLock) -> BaseFileLock:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            wait()
            lock.acquire()
        return lock

    try:
        return acquired(FileLock(path))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        mark = path.with_name(f"{path.name}{SOFT}")
        log.warning(
            "note: the file system of %s has no locks (%s), so a file marks it as taken: remove %s if the "
            "process was killed on another machine", path.parent, error.strerror, mark,
        )  # fmt: skip
    return acquired(SoftFileLock(mark))


def digest(content: str | bytes, length: int = 16) -> str:
    """Compute the first hexadecimal digits of the SHA-256 of bytes, or of a text in UTF-8."""
    blob = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return hashlib.sha256(blob).hexdigest()[:length]


def canonical_json(value: Any) -> str:
    """Format as JSON with sorted keys and a fixed layout: equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def regular(path: Path) -> os.stat_result:
    """Read the facts of a file, also one behind a link; ValueError for a folder, pipe or broken link."""
    try:
        facts = path.stat()
    except OSError:
        if path.is_symlink():
            how = "dvc pull and git annex get fetch such files"
            raise ValueError(f"is a link to {os.readlink(path)}, where no file is ({how})") from None
        raise
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError("is a folder, pipe or device, but only a file is read")
    return facts


def check_file(path: str | Path) -> None:
    """Refuse a path without a file (OSError): reading a pipe or a device may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is a folder, pipe or device, not a file", str(path))


#: Beginnings of files that stand for others or were loaded in their place, with what they are.
_IMPOSTORS = (
    (b"version https://git-lfs", "is a Git LFS pointer to the file: run 'git lfs pull' where it was cloned"),
    (b"/annex/objects/", "is a git-annex pointer to the file: run 'git annex get' where it was cloned"),
    (b"<!doctype html", "is an HTML page, such as of a sign-in: download the file again"),
    (b"<html", "is an HTML page, such as of a sign-in: download the file again"),
    (b"<?xml", "is an XML page, such as of a refused download: download the file again"),
)


def impostor(path: Path) -> str:
    """Say what stands in the place of a file's content, and what to do; "" if nothing is seen."""
    if not path.exists():
        return "is a link to a file that is not there" if path.is_symlink() else "is missing"
    if not path.is_file():
        return "is no file"
    with path.open("rb") as file:
        beginning = file.read(128).lstrip().lower()
    return next((problem for start, problem in _IMPOSTORS if beginning.startswith(start)), "")


def given_file(option: str, path: str | Path, give: str) -> Path:
    """Return the path that an option gives; UserError without a file there, which says what to ``give``."""
    if not Path(path).is_file():
        raise UserError(f"{option}={path} is not a file: give {give}", "no-file")
    return Path(path)


#: Limits of JSON: digits of the longest number, and depth of nested objects and lists.
_DIGITS, _DEEPEST = 30, 100
#: Message about deeper nesting.
DEEP = "has too many brackets within each other"


def read_bytes(path: Path, most: int = 256 << 20) -> bytes:
    """Read a regular file of at most ``most`` bytes; OSError, or ValueError with the problem."""
    if (size := regular(path).st_size) > most:
        raise ValueError(f"has {size:,} bytes, and {most:,} are the most")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """Read text in UTF-8 like :func:`read_bytes`."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is not UTF-8 (byte {error.start})") from error


def read_json(path: Path) -> Any:
    """Read JSON with finite numbers only, like :func:`read_bytes`."""
    try:
        value = json.loads(read_text(path), parse_int=_whole, parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} in line {error.lineno})") from error
    except RecursionError as error:
        raise ValueError(DEEP) from error
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(_DEEPEST):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, (dict, list))]
    if level:
        raise ValueError(DEEP)
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise ValueError(f"holds a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"holds {text}, which is not a finite number")
    return number
