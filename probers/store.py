"""The feature store: labelled hidden states on disk, resumable and memory-mapped.

Layout of a store folder::

    manifest.json            FeatureSpec, configuration, counts, checksums, complete or not
    shards/00000.parquet     one row per example (labels, texts, signals)
    shards/00000.safetensors one tensor "layer.<k>" (rows, d) per layer
    shards/00000.json        sizes and checksums of the two; written last, so its
                             presence says that the shard is whole

Every file is written beside its place and then renamed, and holds neither times nor
machine names: a store that was killed and resumed is byte-identical to one that was
not. Concurrent writers of one folder are not supported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .features import FeatureSpec
from .runs import canonical_json, identity, write_atomic
from .shards import COLUMNS, encode_rows, encode_states, write_bytes
from .types import RunError, UserError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_FORMAT = "probers-features"
_SCHEMA = 1
_MANIFEST = "manifest.json"

__all__ = ["COLUMNS", "FeatureStore"]


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """A folder of labelled hidden states; make one with :meth:`create` or :meth:`open`.

    Attributes:
        path: the folder.
        spec: what the vectors are.
        config: the part of the configuration that decided what was computed.
        shards: number of shards it has when complete.
    """

    path: Path
    spec: FeatureSpec
    config: Mapping[str, Any]
    shards: int

    @classmethod
    def create(
        cls, path: str | Path, spec: FeatureSpec, *, config: Mapping[str, Any], shards: int
    ) -> FeatureStore:
        """A new store, or the unfinished one in ``path`` to go on with.

        Raises:
            UserError: ``path`` holds a store of another specification or configuration.
        """
        if shards < 1:
            raise ValueError(f"a store has at least one shard, got shards={shards}")
        store = cls(Path(path), spec, identity(config), shards)
        manifest = store.path / _MANIFEST
        if manifest.exists():
            store._check_same(_read_manifest(store.path))
        else:
            store._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(manifest, canonical_json(store._manifest()))
        for leftover in store._folder.glob(".*.tmp"):
            leftover.unlink()
        return store

    @classmethod
    def open(cls, path: str | Path) -> FeatureStore:
        """A finished store, with the presence and size of every file checked.

        Raises:
            UserError: no store, an unfinished one, or a file that is missing or cut short.
        """
        path = Path(path)
        manifest = _read_manifest(path)
        store = cls(path, FeatureSpec.from_dict(manifest["spec"]), manifest["config"], manifest["shards"])
        if not manifest["complete"]:
            done = store.shards - len(store.missing)
            raise UserError(
                f"the feature store {path} is incomplete ({done} of {store.shards} shards): run the command "
                "that made it once more, it goes on where it stopped"
            )
        for name, file in manifest["files"].items():
            size = (path / name).stat().st_size if (path / name).is_file() else None
            if size != file["bytes"]:
                state = "is missing" if size is None else f"has {size} bytes instead of {file['bytes']}"
                raise UserError(f"the feature store {path} is damaged: {name} {state}; make it again")
        return store

    @property
    def missing(self) -> list[int]:
        """Indices of the shards not yet written."""
        return [i for i in range(self.shards) if not self._file(i, "json").exists()]

    def write_shard(self, index: int, rows: Sequence[Mapping[str, Any]], states: np.ndarray) -> None:
        """Write one shard, all or nothing.

        Args:
            index: number of the shard, from 0; a shard that is there is replaced.
            rows: one mapping per example, with the keys of :data:`COLUMNS` (id, group,
                split and correct at least) and any further ones; the same keys in every row.
            states: (len(rows), layers, d) in the order of ``spec.layers``.

        Raises:
            RunError: states that are not finite in the store's number format.
            ValueError: shapes, columns or labels that do not fit.
        """
        expected = (len(rows), len(self.spec.layers), self.spec.width)
        if states.shape != expected:
            raise ValueError(f"states of shard {index} have shape {states.shape}, expected {expected}")
        if not 0 <= index < self.shards:
            raise ValueError(f"shard {index} is out of range for {self.shards} shards")
        blobs: dict[str, bytes] = {}
        if rows:
            blobs["parquet"] = encode_rows(rows)
            blobs["safetensors"] = encode_states(rows, states, self.spec)
        for suffix, blob in blobs.items():
            write_bytes(self._file(index, suffix), blob)
        files = {
            self._file(index, suffix).name: {
                "bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest(),
            }
            for suffix, blob in blobs.items()
        }  # fmt: skip
        write_atomic(self._file(index, "json"), canonical_json({"rows": len(rows), "files": files}))

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the store complete; ``summary`` is kept as plain figures.

        Raises:
            RunError: shards are missing, all are empty, ids repeat, or shards have different columns.
        """
        sidecars, rows = self._sidecars(), self._counts()
        files = {f"shards/{name}": file for s in sidecars for name, file in s["files"].items()}
        self._check_rows(rows)
        manifest = self._manifest() | {
            "complete": True, "rows": rows, "files": files, "summary": dict(summary or {}),
        }  # fmt: skip
        write_atomic(self.path / _MANIFEST, canonical_json(manifest))

    def verify(self) -> None:
        """Compare every file with its checksum.

        Raises:
            UserError: names the file that was altered.
        """
        for name, file in _read_manifest(self.path).get("files", {}).items():
            with (self.path / name).open("rb") as handle:
                digest = hashlib.sha256()
                while block := handle.read(1 << 20):
                    digest.update(block)
            if digest.hexdigest() != file["sha256"]:
                raise UserError(
                    f"the feature store {self.path} is damaged: {name} was altered; make it again"
                )

    @property
    def summary(self) -> dict[str, Any]:
        """Figures that :meth:`finish` was given; empty before."""
        return _read_manifest(self.path).get("summary", {})

    def __len__(self) -> int:
        return sum(self._counts())

    def table(self) -> pd.DataFrame:
        """All rows in the order of the states, with the columns that were written."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [pq.read_table(self._file(i, "parquet")) for i, n in enumerate(self._counts()) if n]
        return pa.concat_tables(tables).to_pandas()

    def layer(self, k: int) -> np.ndarray:
        """(N, d) states of one layer; only that layer's bytes are read.

        Raises:
            UserError: the store lacks the layer; lists those it has.
        """
        return self.states((k,))[:, 0]

    def states(self, layers: Sequence[int], rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """(n, len(layers), d) states, in the order of ``layers`` and ``rows``.

        Args:
            layers: numbers of the layers wanted.
            rows: row numbers; None takes all. Shards without one of them are not read.

        Raises:
            UserError: the store lacks a layer; lists those it has.
        """
        from safetensors import safe_open

        self.spec.select(layers)
        counts = self._counts()
        wanted = np.arange(sum(counts)) if rows is None else np.asarray(rows, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= sum(counts)):
            raise IndexError(f"rows from {wanted.min()} to {wanted.max()}, but the store has {sum(counts)}")
        result = np.empty((len(wanted), len(layers), self.spec.width), dtype=self.spec.dtype)
        start = 0
        for index, count in enumerate(counts):
            here = np.flatnonzero((wanted >= start) & (wanted < start + count))
            if here.size:
                with safe_open(self._file(index, "safetensors"), framework="numpy") as file:
                    for column, k in enumerate(layers):
                        result[here, column] = file.get_tensor(f"layer.{k}")[wanted[here] - start]
            start += count
        return result

    @property
    def _folder(self) -> Path:
        return self.path / "shards"

    def _file(self, index: int, suffix: str) -> Path:
        return self._folder / f"{index:05d}.{suffix}"

    def _counts(self) -> list[int]:
        """Rows per shard: from the manifest, or before it is finished from the shards themselves."""
        counts = _read_manifest(self.path)["rows"]
        if counts is None:
            counts = [sidecar["rows"] for sidecar in self._sidecars()]
        if not sum(counts):
            raise RunError(f"the feature store {self.path} is empty: no example was kept")
        return counts

    def _sidecars(self) -> list[dict[str, Any]]:
        if self.missing:
            raise RunError(f"the feature store {self.path} lacks shards {self.missing[:10]}")
        return [json.loads(self._file(i, "json").read_text("utf-8")) for i in range(self.shards)]

    def _manifest(self) -> dict[str, Any]:
        return {
            "format": _FORMAT, "schema": _SCHEMA, "complete": False, "shards": self.shards,
            "spec": self.spec.to_dict(), "config": dict(self.config),
            "rows": None, "files": {}, "summary": {},
        }  # fmt: skip

    def _check_same(self, manifest: Mapping[str, Any]) -> None:
        mine = self._manifest()
        for part, name in (("spec", "features"), ("config", "configuration"), ("shards", "number of shards")):
            if manifest[part] != mine[part]:
                there, here = manifest[part], mine[part]
                if isinstance(there, dict) and isinstance(here, dict):
                    key = next(k for k in sorted({*there, *here}) if there.get(k) != here.get(k))
                    there, here, name = there.get(key), here.get(key), f"{name}, {key}"
                raise UserError(
                    f"{self.path} holds a feature store of another {name} ({there} there, {here} now): "
                    "choose another out or remove the folder"
                )

    def _check_rows(self, counts: Sequence[int]) -> None:
        import pyarrow.parquet as pq

        schema: pa.Schema | None = None
        seen: set[str] = set()
        for index in (i for i, n in enumerate(counts) if n):
            table = pq.read_table(self._file(index, "parquet"))
            if schema is not None and not table.schema.equals(schema):
                raise RunError(f"shard {index} of {self.path} has other columns than the shards before it")
            schema = table.schema
            for name in table["id"].to_pylist():
                if name in seen:
                    raise RunError(f"the feature store {self.path} has the id {name} twice")
                seen.add(name)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path} is no feature store (no {_MANIFEST}): probers-datagen makes one") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path / _MANIFEST} is damaged ({error}): make the store again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise UserError(f"{path / _MANIFEST} does not describe a feature store")
    if manifest.get("schema") != _SCHEMA:
        raise UserError(f"the feature store {path} has schema {manifest.get('schema')}, this reads {_SCHEMA}")
    return manifest
