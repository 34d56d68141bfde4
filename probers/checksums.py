"""Digests that name content, and checksums that reveal damage in files and journals."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import cache_folder, canonical_json, digest, impostor, read_json, regular, write_text, writing
from .types import RunError, UserError, first_line, shortlist

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

#: Larger inputs are read again only after they have changed.
_SMALL = 1 << 21
#: Bytes read at each sampled place of a file, and the number of places.
_SAMPLE, _PLACES = 4096, 64
_RACY = 2_000_000_000  # nanoseconds: clocks of file systems may be this coarse
#: Key of the checksum that JSON carries of itself.
_SEAL = "sha256"
_MANY = 2_000_000_000  # bytes: reading more is announced


def read_tensors(file: Path, checksum: str, fix: str) -> dict[str, Tensor]:
    """Read safetensors with a known SHA-256; UserError with the ``fix`` where they are missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        regular(file)
        if sha256(file) != checksum:
            raise ValueError(impostor(file) or "was altered")
        return load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{file} is missing or damaged ({first_line(error)}): {fix}", "damaged") from error


def draw_key(purpose: str, seed: int, text: str) -> int:
    """Draw a number below 2**64, the same on every machine and in every order; each purpose has its own."""
    blob = f"{purpose}:{seed}:{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(blob, digest_size=8).digest(), "big")


def sha256(path: Path) -> str:
    """Hash the whole file with SHA-256, in hexadecimal digits."""
    return _hashed(path, hashlib.sha256)


def file_digest(path: Path, cache: Path | None = None) -> str:
    """Hash the whole file (BLAKE2b, 32 hexadecimal digits), again only after it has changed."""
    stat = path.stat()
    memory = (cache / "files" if cache else cache_folder("files")) / f"{digest(str(path.resolve()), 24)}.json"
    name = f"{stat.st_size} {stat.st_ino}"
    return dict(_digests({name: path}, memory, lambda: hashlib.blake2b(digest_size=16)))[name]


def inputs(*sources: str | Path) -> dict[str, str]:
    """Name the content of each file or folder that a run reads by 16 hexadecimal digits; "" if it is missing.

    A folder stands for the files in it, not hidden ones, and a dataset saved by splits for those below too.
    """
    names = {}
    for source in map(str, sources):
        path = Path(source)
        find = path.rglob if (path / "dataset_dict.json").is_file() else path.glob
        files = sorted(find("[!.]*")) if path.is_dir() else [path]
        content = hashlib.sha256()
        for file in (f for f in files if f.is_file()):
            size = file.stat().st_size
            content.update(f"{file.name} {size} ".encode())
            content.update((sha256 if size <= _SMALL else file_digest)(file).encode())
        names[source] = content.hexdigest()[:16] if path.exists() else ""
    return names


def _hashed(path: Path, kind: Callable[[], Any]) -> str:
    hasher = kind()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def _digests(
    files: Mapping[str, Path], memory: Path, kind: Callable[[], Any] = hashlib.sha256, *, anew: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield the digest of each file, from ``memory`` if the file's times are those noted there."""
    known = _remembered(memory)
    fresh, started = dict(known), time.time_ns()
    try:
        for name, path in files.items():
            stat = path.stat()
            times = [stat.st_mtime_ns, stat.st_ctime_ns]
            if anew or known.get(name, [])[:-1] != times:
                fresh.pop(name, None)
                hashed = _hashed(path, kind)
                if started - max(times) > _RACY:  # else it could change without a change of its times
                    fresh[name] = [*times, hashed]
                yield name, hashed
            else:
                yield name, known[name][-1]
    finally:
        if fresh != known:
            with suppress(OSError, RunError):
                write_text(memory, sealed(fresh))


def _remembered(memory: Path) -> dict[str, list[Any]]:
    try:
        return {name: entry for name, entry in unsealed(memory).items() if isinstance(entry, list)}
    except (OSError, ValueError):
        return {}


def sampled(files: Iterable[Path], *, about: bytes = b"", named: bool = True) -> str:
    """Fingerprint weights by size and by samples spread over each file, in 12 hexadecimal digits.

    ``about`` is further content that counts; ``named`` includes the files' names.
    """
    hasher = hashlib.sha256(about)
    for path in files:
        size = path.stat().st_size
        hasher.update(f"{path.name if named else ''}:{size}".encode())
        with path.open("rb") as file:
            for place in range(_PLACES):
                file.seek(max(0, size - _SAMPLE) * place // (_PLACES - 1))
                hasher.update(file.read(_SAMPLE))
    return hasher.hexdigest()[:12]


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum of the content to plain containers."""
    return {**value, _SEAL: digest(canonical_json(dict(value)), 64)}


def unseal(value: Any) -> dict[str, Any]:
    """Check and remove the checksum of :func:`seal` (ValueError: altered, or without one)."""
    if not isinstance(value, dict):
        raise ValueError("holds no JSON object")
    content = {key: entry for key, entry in value.items() if key != _SEAL}
    if _SEAL not in value:
        raise ValueError("carries no checksum")
    if value != seal(content):
        raise ValueError("was altered")
    return content


def sealed(value: Mapping[str, Any]) -> str:
    """Format as JSON with a checksum of its own content, for :func:`unsealed`."""
    return canonical_json(seal(value))


def unsealed(path: Path) -> dict[str, Any]:
    """Read a file written with :func:`sealed`: OSError if unreadable, else errors of :func:`unseal`."""
    return unseal(read_json(path))


def made_once(path: Path, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Read the plain containers that ``make`` returned in an earlier run, or make and write them."""
    try:
        return unsealed(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        log.info("%s %s: making it again", path, first_line(error))
    write_text(path, sealed(make()))
    return unsealed(path)


def take(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Record ``bytes`` and ``sha256`` of files in a folder for :func:`check`."""
    paths = {name: folder / name for name in names}
    return {name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for name, path in paths.items()}


def check(
    folder: Path, files: Mapping[str, Mapping[str, Any]], *, contents: bool = True, anew: bool = False
) -> tuple[str, str] | None:
    """Find the first of the ``files`` (of :func:`take`) that has changed, with the problem.

    Without ``contents`` only sizes are compared. A file is read again only after its times have changed, or
    with ``anew``: digests are remembered in ``.<folder>.checked.json`` beside the folder, if possible.
    """
    for name, file in files.items():
        try:
            size = regular(folder / name).st_size
        except FileNotFoundError:
            return name, "is missing"
        except ValueError as error:
            return name, str(error)
        if size != file["bytes"]:
            return name, f"has {size} bytes instead of {file['bytes']}"
    if not contents:
        return None
    memory = folder.parent / f".{folder.name}.checked.json"
    known = {} if anew else _remembered(memory)
    if (total := sum(file["bytes"] for name, file in files.items() if name not in known)) > _MANY:
        log.warning("comparing %.1f GB in %s with their checksums, once", total / 1e9, folder)
    for name, hashed in _digests({name: folder / name for name in files}, memory, anew=anew):
        if hashed != files[name]["sha256"]:
            return name, "was altered"
    return None


@dataclass(frozen=True, slots=True)
class Lines:
    """Sound lines of a journal by number, from 1, damaged ones, and whether a last one is ``cut`` off."""

    records: dict[int, dict[str, Any]]
    damaged: tuple[int, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class Journal:
    """Append-only JSON lines, each with its own checksum, which survive a kill at any byte."""

    path: Path

    def read(self) -> Lines:
        """Read all sound lines, none if there is no file; UserError for a broken link, folder or pipe."""
        try:
            regular(self.path)
        except FileNotFoundError:
            return Lines({})
        except ValueError as error:
            raise UserError(f"{self.path} {error}: remove it", "bad-file") from error
        *lines, rest = self.path.read_bytes().split(b"\n")
        records: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(lines, 1):
            with suppress(ValueError, RecursionError):
                records[number] = unseal(json.loads(line))
        damaged = {*range(1, len(lines) + 1)} - records.keys()
        return Lines(records, tuple(sorted(damaged)), bool(rest))

    def resume(self) -> list[dict[str, Any]]:
        """Read all sound records, and drop the other lines, so that more can be appended."""
        lines = self.read()
        if lines.damaged:
            log.warning("%s is damaged in line %s: that is made again", self.path, shortlist(lines.damaged))
        if lines.damaged or lines.cut:
            self.rewrite(lines.records.values())
        return [*lines.records.values()]

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records and flush them to disk before returning; a kill leaves all of them or none.

        UserError for a link: its file may belong to a version control such as DVC or git-annex.
        """
        if self.path.is_symlink():
            message = f"{self.path} is a link, and this run appends to it: put the file itself there"
            raise UserError(f"{message}, as dvc unprotect and git annex unlock do", "bad-file")
        with writing(self.path), self.path.open("ab") as file:
            file.write(sealed_lines(records).encode())
            file.flush()
            os.fsync(file.fileno())

    def rewrite(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Replace the file, whole or not at all."""
        write_text(self.path, sealed_lines(records))


def sealed_lines(records: Iterable[Mapping[str, Any]]) -> str:
    """Format records as JSON lines, each with its own checksum."""
    return "".join(f"{json.dumps(seal(r), ensure_ascii=False, allow_nan=False)}\n" for r in records)
