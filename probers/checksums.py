"""Checksums of files: taken when written, compared on first use, remembered until the file changes."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import canonical_json, digest, read_json, read_text, regular, write_text
from .types import RunError, first_line

_BLOCK = 1 << 20  # bytes
#: Bytes read at each of the places a file is sampled at, and how many places.
_SAMPLE, _PLACES = 4096, 64
_RACY = 2_000_000_000  # nanoseconds: file systems whose clock is coarser are not known
#: Key of the checksum that JSON carries of itself.
_SEAL = "sha256"
_MANY = 2_000_000_000  # bytes from which on it is said that they are read


def hashed(path: Path, found: Any) -> str:
    """Hexadecimal digits of a file's hash; ``found`` is an empty one of the wanted kind."""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    return hashed(path, hashlib.sha256())


def sampled(files: Iterable[Path], *, about: bytes = b"", named: bool = True) -> str:
    """12 hexadecimal digits of files' sizes and of samples throughout each, header and end among them.

    They tell another training run of the same shape, and large weights need not be read whole.

    Args:
        about: counts as well.
        named: the files' names count as well.
    """
    found = hashlib.sha256(about)
    for path in files:
        size = path.stat().st_size
        found.update(f"{path.name if named else ''}:{size}".encode())
        with path.open("rb") as file:
            for place in range(_PLACES):
                file.seek(max(0, size - _SAMPLE) * place // (_PLACES - 1))
                found.update(file.read(_SAMPLE))
    return found.hexdigest()[:12]


def settled(started: int, *times: int) -> bool:
    """Whether what was read from ``started`` on is known by the file's times (all in nanoseconds).

    A file that was written a moment ago could change once more without its times showing it.
    """
    return started - max(times) > _RACY


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Plain containers with the checksum of their content."""
    return {**value, _SEAL: digest(canonical_json(dict(value)), 64)}


def unseal(value: Any, *, older: bool = True) -> dict[str, Any]:
    """What was given to :func:`seal`.

    Args:
        value: from parsed JSON.
        older: take one without a checksum, as older versions wrote them.

    Raises:
        ValueError: says how it is damaged.
    """
    if not isinstance(value, dict):
        raise ValueError("holds no JSON object")
    content = {key: entry for key, entry in value.items() if key != _SEAL}
    if _SEAL not in value and not older:
        raise ValueError("carries no checksum")
    if _SEAL in value and value != seal(content):
        raise ValueError("was altered")
    return content


def sealed(value: Mapping[str, Any]) -> str:
    """JSON that carries the checksum of its own content, as :func:`unsealed` takes it."""
    return canonical_json(seal(value))


def unsealed(path: Path, *, older: bool = True) -> dict[str, Any]:
    """What was given to :func:`sealed`; ``older`` as for :func:`unseal`.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: says how it is damaged.
    """
    return unseal(read_json(path), older=older)


def sealed_lines(values: Iterable[Mapping[str, Any]]) -> str:
    """JSON lines, each with its own checksum."""
    return "".join(f"{json.dumps(seal(v), ensure_ascii=False, allow_nan=False)}\n" for v in values)


def unsealed_lines(path: Path) -> list[dict[str, Any]]:
    """What was given to :func:`sealed_lines`.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: says which line is damaged, and how.
    """
    found = []
    for number, line in enumerate(read_text(path).removesuffix("\n").split("\n"), 1):
        try:
            found.append(unseal(json.loads(line), older=False))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is damaged in line {number} ({first_line(error)})") from error
    return found


def made_once(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What ``make`` gave, now or in an earlier run, as the file holds it; a damaged one is made again.

    Args:
        path: of the file, which carries its own checksum.
        make: plain containers.
    """
    try:
        return unsealed(path, older=False)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        print(f"{path} {first_line(error)}: it is made again", flush=True)
    write_text(path, sealed(make()))
    return unsealed(path, older=False)


def take(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Size and checksum of files in a folder, as :func:`check` takes them: ``bytes`` and ``sha256``."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names
    }


def check(
    folder: Path, files: Mapping[str, Mapping[str, Any]], *, contents: bool = True, anew: bool = False
) -> tuple[str, str] | None:
    """The first file that is not as it was written, with what is wrong with it; None where all are.

    A file's bytes are read once for each size and times that it has. What was found is remembered in
    ``.<folder>.checked.json`` beside the folder, or not at all where nothing can be written there.

    Args:
        folder: where the files are.
        files: size and checksum by name, as :func:`take` gives them.
        contents: False compares sizes alone.
        anew: read every file, whatever is remembered.
    """
    memory = folder.parent / f".{folder.name}.checked.json"
    known = _remembered(memory)
    fresh = dict(known)
    unread = {}
    for name, file in files.items():
        try:
            stat = regular(folder / name)
        except FileNotFoundError:
            return name, "is missing"
        except ValueError as error:
            return name, str(error)
        if stat.st_size != file["bytes"]:
            return name, f"has {stat.st_size} bytes instead of {file['bytes']}"
        mark = [stat.st_mtime_ns, stat.st_ctime_ns, file["sha256"]]
        if contents and (anew or known.get(name) != mark):
            unread[name] = mark
        fresh[name] = mark
    if (total := sum(files[name]["bytes"] for name in unread)) > _MANY:
        print(f"comparing {total / 1e9:.1f} GB in {folder} with their checksums, once", file=sys.stderr)
    started = time.time_ns()
    for name, (*times, expected) in unread.items():
        if sha256(folder / name) != expected:
            return name, "was altered"
        if not settled(started, *times):
            fresh.pop(name)
    if contents and fresh != known:
        with suppress(OSError, RunError):
            write_text(memory, canonical_json(fresh))
    return None


def _remembered(memory: Path) -> dict[str, Any]:
    try:
        known = json.loads(memory.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
