"""The manifest of a feature store: read with every field checked, and compared with another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .types import UserError

MANIFEST = "manifest.json"
FORMAT, SCHEMA = "probers-features", 1
_FIELDS: dict[str, Any] = {
    "complete": bool, "shards": (int, type(None)), "spec": dict, "config": dict,
    "rows": (list, type(None)), "files": dict, "summary": dict,
}  # fmt: skip


def new_manifest(spec: Mapping[str, Any], config: Mapping[str, Any], shards: int | None) -> dict[str, Any]:
    """The manifest of a store whose shards are still to be written; None: nobody knows how many."""
    return {
        "format": FORMAT, "schema": SCHEMA, "complete": False, "shards": shards,
        "spec": dict(spec), "config": dict(config), "rows": None, "files": {}, "summary": {},
    }  # fmt: skip


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the store in ``path``.

    Raises:
        UserError: no store, another schema, or a manifest that was cut short or altered.
    """
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is no feature store (no {MANIFEST}): probers-datagen makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is damaged ({error}): make the store again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{file} does not describe a feature store")
    if manifest.get("schema") != SCHEMA:
        raise UserError(f"the feature store {path} has schema {manifest.get('schema')}, this reads {SCHEMA}")
    problem = _problem(manifest)
    if problem:
        raise UserError(f"{file} is damaged ({problem}): make the store again")
    return manifest


def fingerprint(path: Path) -> str:
    """Names the store in ``path`` by content: its manifest holds the checksums of all its files."""
    return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]


def shard_file(index: int, suffix: str) -> str:
    """Name of a shard's file, relative to the store's folder."""
    return f"shards/{index:05d}.{suffix}"


def damaged(store: Path, file: str, problem: str) -> UserError:
    """The error for a file of a store that is not as it was written."""
    return UserError(f"the feature store {store} is damaged: {file} {problem}; make it again")


def check_same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to go on with the store in ``path`` when its manifest is of another computation.

    Raises:
        UserError: names what differs, and both values.
    """
    for part, name in (("spec", "features"), ("config", "configuration"), ("shards", "number of shards")):
        old, new = there[part], here[part]
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            key = next(k for k in sorted({*old, *new}) if old.get(k) != new.get(k))
            old, new, name = old.get(key), new.get(key), f"{name}, {key}"
        raise UserError(
            f"{path} holds a feature store of another {name} ({old} there, {new} now): "
            "choose another out or remove the folder"
        )


def _problem(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest's fields, or None."""
    for name, kind in _FIELDS.items():
        if name not in manifest:
            return f"it lacks {name}"
        if not isinstance(manifest[name], kind):
            return f"{name} is {manifest[name]!r}"
    if not manifest["complete"]:
        return None
    rows = manifest["rows"]
    if rows is None or len(rows) != manifest["shards"] or not all(type(n) is int and n >= 0 for n in rows):
        return f"it has not one number of rows for each of its {manifest['shards']} shards"
    wanted = {shard_file(i, s) for i, n in enumerate(rows) if n for s in ("parquet", "safetensors")}
    files = manifest["files"]
    if set(files) != wanted:
        return f"{min(set(files) ^ wanted)} is listed as a file or has rows, but not both"
    for name, file in files.items():
        if not isinstance(file, dict) or set(file) != {"bytes", "sha256"}:
            return f"{name} is listed without its size and checksum"
    return None
