"""The JSON file beside each shard of a feature store: what the shard holds, and what it covers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .manifest import damaged, shard_file
from .types import RunError


def sidecar(
    count: int, blobs: Mapping[str, bytes], units: Sequence[str], left_out: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What is written about a shard.

    Args:
        count: rows it has.
        blobs: content of its files by name.
        units: ids of the pieces of work it covers.
        left_out: what of them gave no row, and why.
    """
    files = {
        name: {"bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest()} for name, blob in blobs.items()
    }
    return {"rows": count, "files": files, "units": list(units), "left_out": list(left_out)}


def read_sidecar(store: Path, index: int) -> dict[str, Any]:
    """What was written about one shard.

    Raises:
        RunError: the file is damaged.
    """
    path = store / shard_file(index, "json")
    try:
        found = json.loads(path.read_text("utf-8"))
        lists = {name: list(found[name]) for name in ("units", "left_out")}
        return {"rows": int(found["rows"]), "files": dict(found["files"]), **lists}
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{path} is damaged ({error}): remove that file, and the command that "
            "made the store makes the shard again"
        ) from error


def written_shards(store: Path) -> list[int]:
    """Indices of the shards that are whole, ascending."""
    return sorted(int(p.stem) for p in store.glob("shards/*.json") if p.stem.isdecimal())


def verify_files(store: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare files with their checksums.

    Raises:
        UserError: names the file that is missing or was altered.
    """
    for name, file in files.items():
        digest = hashlib.sha256()
        try:
            with (store / name).open("rb") as handle:
                while block := handle.read(1 << 20):
                    digest.update(block)
        except (FileNotFoundError, NotADirectoryError):
            raise damaged(store, name, "is missing") from None
        if digest.hexdigest() != file["sha256"]:
            raise damaged(store, name, "was altered")
