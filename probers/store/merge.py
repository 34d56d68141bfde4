"""Several workers' feature stores made into one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..files import canonical_json, write_bytes, writing
from ..types import UserError
from .files import MANIFEST, read_manifest, read_sidecar, shard_file
from .store import FeatureStore, read_rows

_THEN = "the stores to be merged are as they were, and the same merge starts anew once that is mended"
_KEYS = ("id", "group", "split")


def merge(stores: Sequence[FeatureStore], out: Path) -> FeatureStore:
    """Join finished stores into a new one; see :meth:`FeatureStore.merge`.

    The store is made in a hidden folder beside ``out`` and renamed when it is whole, so
    that a merge killed at any moment leaves no ``out``.
    """
    if not stores:
        raise UserError("there is nothing to merge: give at least one feature store")
    if out.exists() or out.is_symlink():
        raise UserError(f"out={out} exists: choose another out or remove it")
    for store in stores[1:]:
        _check_features(stores[0], store)
    counts = [read_manifest(store.path)["rows"] for store in stores]
    _check_rows(stores, counts)
    folder = out.with_name(f".{out.name}.merging")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _build(stores, counts, folder)
        with writing(out, _THEN):
            os.rename(folder, out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FeatureStore.open(out)


def _build(stores: Sequence[FeatureStore], counts: Sequence[Sequence[int]], folder: Path) -> None:
    """Write the merged store; empty shards are left out."""
    rows: list[int] = []
    files: dict[str, Any] = {}
    with writing(folder, _THEN):
        (folder / shard_file(0, "json")).parent.mkdir(parents=True)
    for store, sizes in zip(stores, counts, strict=True):
        listed = read_manifest(store.path)["files"]
        for index in (i for i, n in enumerate(sizes) if n):
            here = {}
            for suffix in ("parquet", "safetensors"):
                old, new = shard_file(index, suffix), shard_file(len(rows), suffix)
                with writing(folder / new, _THEN):
                    _link_or_copy(store.path / old, folder / new)
                files[new] = here[Path(new).name] = listed[old]
            about = read_sidecar(store.path, index) | {"files": here}
            _write(folder / shard_file(len(rows), "json"), about)
            rows.append(sizes[index])
    config, apart = _configs([store.config for store in stores])
    sources = [_source(*parts) for parts in zip(stores, counts, apart, strict=True)]
    manifest = read_manifest(stores[0].path) | {
        "shards": len(rows), "rows": rows, "files": files, "config": config, "summary": {"merged": sources},
    }  # fmt: skip
    _write(folder / MANIFEST, manifest)  # last: before it there is no store


def _link_or_copy(old: Path, new: Path) -> None:
    try:
        os.link(old, new)
    except OSError:  # another file system, or one without hard links
        write_bytes(new, old.read_bytes())


def _write(path: Path, content: Any) -> None:
    with writing(path, _THEN):
        write_bytes(path, canonical_json(content).encode())


def _configs(configs: Sequence[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all configurations have in common, and what each has apart from that."""
    first = json.loads(json.dumps(dict(configs[0])))
    common = {k: v for k, v in first.items() if all(k in c and c[k] == v for c in configs)}
    return common, [{k: v for k, v in c.items() if k not in common} for c in configs]


def _source(store: FeatureStore, counts: Sequence[int], config: dict[str, Any]) -> dict[str, Any]:
    """Where a merged store's rows come from: the name and content of one store, not its place."""
    return {
        "store": store.path.resolve().name,
        "manifest": hashlib.sha256((store.path / MANIFEST).read_bytes()).hexdigest(),
        "rows": sum(counts), "shards": sum(n > 0 for n in counts),
        "model": store.spec.model.to_dict(), "config": config, "summary": store.summary,
    }  # fmt: skip


def _check_features(first: FeatureStore, other: FeatureStore) -> None:
    """Refuse vectors of another model or read in another way, and other layers or number formats."""
    ours, others = first.spec.model, other.spec.model
    if not ours.same_as(others):
        raise UserError(
            f"{first.path} was made by {ours} and {other.path} by {others}: "
            "only stores of the same model can be merged"
        )
    first.spec.check(other.spec, what=f"the features of {first.path}", against=f"those of {other.path}")
    for name in ("layers", "dtype"):
        mine, theirs = getattr(first.spec, name), getattr(other.spec, name)
        if mine != theirs:
            raise UserError(
                f"{first.path} has {name}={mine!r}, {other.path} {name}={theirs!r}: "
                f"only stores of the same {name} can be merged"
            )


def _check_rows(stores: Sequence[FeatureStore], counts: Sequence[Sequence[int]]) -> None:
    """Refuse other columns, an id that occurs twice, and a group on two sides of a split."""
    schema = None
    ids: dict[str, Path] = {}
    sides: dict[str, tuple[str, Path]] = {}
    for store, sizes in zip(stores, counts, strict=True):
        for index in (i for i, n in enumerate(sizes) if n):
            rows = read_rows(store.path, index)
            schema = schema or rows.schema
            if not rows.schema.equals(schema):
                fields = [{f"{f.name}: {f.type}" for f in s} for s in (rows.schema, schema)]
                odd = sorted(fields[0] ^ fields[1])
                raise UserError(f"{store.path} has other columns than {stores[0].path} ({', '.join(odd)})")
            for name, group, split in zip(*(rows[c].to_pylist() for c in _KEYS), strict=True):
                if name in ids:
                    raise UserError(
                        f"the id {name} is in {ids[name]} and again in {store.path}: "
                        "give every worker its own part of the work"
                    )
                ids[name] = store.path
                side, where = sides.setdefault(group, (split, store.path))
                if side != split:
                    raise UserError(
                        f"merging leaks: the group {group!r} is in {side} of {where} and in {split} of "
                        f"{store.path}; deal the splits by group before the work is shared out"
                    )
