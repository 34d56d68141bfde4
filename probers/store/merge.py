"""Merging of feature stores, and rules for stores that are read or written as one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..files import canonical_json, digest, write_bytes, writing
from ..types import UserError
from .files import MANIFEST, read_manifest, read_rows, read_sidecar, read_specs, shard_file, state_suffixes
from .spec import FeatureSpec

_THEN = "the stores to be merged are unchanged; run the same merge again once this is fixed"


class _Part:
    """A finished store to be merged; ``shards`` has the numbers of rows of its non-empty shards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.specs = read_specs(path, self.manifest)
        self.shards = {i: n for i, n in enumerate(self.manifest["rows"]) if n}


def merge(stores: Sequence[Path], out: Path) -> None:
    """Join finished stores into a new one; see :meth:`.store.FeatureStore.merge`.

    The result is made in a hidden folder beside ``out`` and renamed when whole: a killed merge leaves none.
    """
    if not stores:
        raise UserError("there is nothing to merge: give at least one feature store", "missing-value")
    if out.exists() or out.is_symlink():
        raise UserError(f"out={out} exists: choose another out or remove it", "out-taken")
    parts = [_Part(path) for path in stores]
    _check_features(parts)
    _check_rows(parts)
    folder = out.with_name(f".{out.name}.merging")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _build(parts, folder)
        with writing(out, _THEN):
            os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _build(parts: Sequence[_Part], folder: Path) -> None:
    """Write the merged store; empty shards are left out."""
    rows: list[int] = []
    files: dict[str, Any] = {}
    with writing(folder, _THEN):
        (folder / shard_file(0, "json")).parent.mkdir(parents=True)
    for part in parts:
        for index, count in part.shards.items():
            here = {}
            for suffix in ("parquet", *state_suffixes(part.specs)):
                old, new = shard_file(index, suffix), shard_file(len(rows), suffix)
                try:
                    os.link(part.path / old, folder / new)
                except OSError:  # another file system, or one without hard links
                    with writing(folder / new, _THEN):
                        blob = (part.path / old).read_bytes()
                    write_bytes(folder / new, blob, _THEN)
                files[new] = here[Path(new).name] = part.manifest["files"][old]
            about = read_sidecar(part.path, index, part.specs)
            _write(folder / shard_file(len(rows), "json"), about | {"files": here})
            rows.append(count)
    configs = [part.manifest["config"] for part in parts]
    common = {k: v for k, v in configs[0].items() if all(k in c and c[k] == v for c in configs)}
    apart = [{k: v for k, v in c.items() if k not in common} for c in configs]
    # The origin of the rows: name and content of each store, not its place.
    sources = [
        {
            "store": part.path.resolve().name, "manifest": digest((part.path / MANIFEST).read_bytes(), 64),
            "rows": sum(part.shards.values()), "shards": len(part.shards), "config": config,
            "model": part.manifest["spec"]["model"], "summary": part.manifest["summary"],
        }
        for part, config in zip(parts, apart, strict=True)
    ]  # fmt: skip
    manifest = parts[0].manifest | {
        "shards": len(rows), "rows": rows, "files": files, "config": common, "summary": {"merged": sources},
    }  # fmt: skip
    _write(folder / MANIFEST, manifest)  # last: before it there is no store


def _write(path: Path, content: Any) -> None:
    write_bytes(path, canonical_json(content).encode(), _THEN)


def _check_features(parts: Sequence[_Part]) -> None:
    """Refuse vectors of another model, of another kind, layers or number format."""
    first = parts[0]
    for other in parts[1:]:
        model, another = first.specs[0].model, other.specs[0].model
        if not model.same_as(another):
            told = f"{first.path} was made by {model} and {other.path} by {another}"
            raise UserError(f"{told}: only stores of the same model can be joined", "mismatch")
        ours, others = len(first.specs), len(other.specs)
        if ours != others:
            told = f"{first.path} has {ours} features of each row and {other.path} {others}"
            raise UserError(f"{told}: only stores of the same pools and sites can be joined", "mismatch")
        for mine, theirs in zip(first.specs, other.specs, strict=True):
            check_alike(mine, theirs, first.path, other.path)


def check_alike(one: FeatureSpec, another: FeatureSpec, path: Path, other: Path) -> None:
    """Refuse features of two stores that cannot be joined (UserError)."""
    one.check(another, what=f"the features of {path}", against=f"those of {other}")
    for name in ("layers", "dtype"):
        mine, theirs = getattr(one, name), getattr(another, name)
        if mine != theirs:
            told = f"{path} has {name}={mine!r}, {other} {name}={theirs!r}"
            raise UserError(f"{told}: only stores of the same {name} can be joined", "mismatch")


def check_ids(known: dict[str, Path], ids: Iterable[str], path: Path) -> None:
    """Add a store's ids to those of the stores before it; UserError if one repeats."""
    for name in ids:
        if name in known:
            told = f"the id {name} is in {known[name]} and again in {path}: give every text once"
            raise UserError(told, "overlap")
        known[name] = path


def _check_rows(parts: Sequence[_Part]) -> None:
    """Refuse other columns, an id that occurs twice, and a group in two splits."""
    schema = None
    ids: dict[str, Path] = {}
    sides: dict[str, tuple[str, Path]] = {}
    for part in parts:
        for index in part.shards:
            rows = read_rows(part.path, index)
            schema = schema or rows.schema
            if not rows.schema.equals(schema):
                fields = [{f"{f.name}: {f.type}" for f in s} for s in (rows.schema, schema)]
                odd = ", ".join(sorted(fields[0] ^ fields[1]))
                raise UserError(f"{part.path} has other columns than {parts[0].path} ({odd})", "mismatch")
            names, groups, splits = (rows[column].to_pylist() for column in ("id", "group", "split"))
            check_ids(ids, names, part.path)
            for group, split in zip(groups, splits, strict=True):
                side, where = sides.setdefault(group, (split, part.path))
                if side != split:
                    told = f"the group {group!r} is in {side} of {where} and in {split} of {part.path}"
                    raise UserError(f"merging leaks: {told}; split by group before sharing out", "overlap")
