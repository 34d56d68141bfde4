"""The feature store: labelled hidden states on disk, resumable and memory-mapped.

Layout of a store folder::

    manifest.json            FeatureSpec, configuration, counts, checksums, complete or not
    shards/00000.parquet     one row per example (labels, texts, signals)
    shards/00000.safetensors one tensor "layer.<k>" (rows, d) per layer
    shards/00000.json        sizes and checksums of the two; written last, so its
                             presence says that the shard is whole

Every file is written beside its place and then renamed, and holds neither times nor
machine names: a store that was killed and resumed is byte-identical to one that was
not. Concurrent writers of one folder are not supported; several workers write a folder
each, and :meth:`FeatureStore.merge` joins them.
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
from .files import write_bytes, writing
from .manifest import MANIFEST, check_same, damaged, new_manifest, read_manifest, shard_file
from .reader import StateReader
from .rows import all_rows, check_rows, to_datasets
from .runs import canonical_json, identity
from .shards import COLUMNS, encode_rows, encode_states
from .types import RunError, UserError

if TYPE_CHECKING:
    import datasets
    import pandas as pd

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
            RunError: the folder cannot be written to.
        """
        if shards < 1:
            raise ValueError(f"a store has at least one shard, got shards={shards}")
        store = cls(Path(path), spec, identity(config), shards)
        if (store.path / MANIFEST).exists():
            check_same(store.path, read_manifest(store.path), store._manifest())
        else:
            with writing(store.path):
                store._file(0, "json").parent.mkdir(parents=True, exist_ok=True)
            store._write(MANIFEST, canonical_json(store._manifest()).encode())
        for leftover in store.path.glob("shards/.*.tmp"):
            leftover.unlink()
        return store

    @classmethod
    def open(cls, path: str | Path) -> FeatureStore:
        """A finished store, with the manifest and the presence and size of every file checked.

        Raises:
            UserError: no store, an unfinished one, or a file that is missing or cut short.
        """
        path = Path(path)
        manifest = read_manifest(path)
        try:
            spec = FeatureSpec.from_dict(manifest["spec"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path / MANIFEST} is damaged ({error}): make the store again") from error
        store = cls(path, spec, manifest["config"], manifest["shards"])
        if not manifest["complete"]:
            done = store.shards - len(store.missing)
            raise UserError(
                f"the feature store {path} is incomplete ({done} of {store.shards} shards): run the command "
                "that made it once more, it goes on where it stopped"
            )
        for name, file in manifest["files"].items():
            try:
                size = (path / name).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                raise damaged(path, name, "is missing") from None
            if size != file["bytes"]:
                raise damaged(path, name, f"has {size} bytes instead of {file['bytes']}")
        return store

    @classmethod
    def merge(cls, stores: Sequence[FeatureStore | str | Path], out: str | Path) -> FeatureStore:
        """Join finished stores of the same features, as several workers made them, into a new one.

        Shard files are hard-linked where the file system allows it and copied otherwise,
        with their checksums carried over; ``summary["merged"]`` says which rows came from
        which store. The new folder appears whole or not at all, and the same stores in the
        same order give the same bytes.

        Raises:
            UserError: stores of other features, models or columns; an id that occurs twice;
                a group on two sides of a split; an ``out`` that exists; see also :meth:`open`.
            RunError: ``out`` cannot be written.
        """
        from .merging import merge

        return merge([cls.open(s.path if isinstance(s, FeatureStore) else s) for s in stores], Path(out))

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
            RunError: states that are not finite in the store's number format; a full disk.
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
            self._write(shard_file(index, suffix), blob)
        files = {
            self._file(index, suffix).name: {
                "bytes": len(blob), "sha256": hashlib.sha256(blob).hexdigest(),
            }
            for suffix, blob in blobs.items()
        }  # fmt: skip
        self._write(shard_file(index, "json"), canonical_json({"rows": len(rows), "files": files}).encode())

    def finish(self, summary: Mapping[str, Any] | None = None) -> None:
        """Mark the store complete; ``summary`` is kept as plain figures.

        Raises:
            RunError: shards are missing, all are empty, ids repeat, shards have different
                columns, or the disk is full.
        """
        sidecars, rows = self._sidecars(), self._counts()
        files = {f"shards/{name}": file for s in sidecars for name, file in s["files"].items()}
        check_rows(self.path, [i for i, n in enumerate(rows) if n])
        manifest = self._manifest() | {
            "complete": True, "rows": rows, "files": files, "summary": dict(summary or {}),
        }  # fmt: skip
        self._write(MANIFEST, canonical_json(manifest).encode())

    def verify(self) -> None:
        """Compare every file with its checksum; of an unfinished store, those of its shards so far.

        Raises:
            UserError: names the file that is missing or was altered.
        """
        files = read_manifest(self.path)["files"]
        for index in set(range(self.shards)) - set(self.missing) if not files else ():
            files |= {f"shards/{name}": file for name, file in self._sidecar(index)["files"].items()}
        for name, file in files.items():
            digest = hashlib.sha256()
            try:
                with (self.path / name).open("rb") as handle:
                    while block := handle.read(1 << 20):
                        digest.update(block)
            except (FileNotFoundError, NotADirectoryError):
                raise damaged(self.path, name, "is missing") from None
            if digest.hexdigest() != file["sha256"]:
                raise damaged(self.path, name, "was altered")

    @property
    def summary(self) -> dict[str, Any]:
        """Figures that :meth:`finish` was given; empty before."""
        return read_manifest(self.path)["summary"]

    def __len__(self) -> int:
        return sum(self._counts())

    def table(self) -> pd.DataFrame:
        """All rows in the order of the states, with the columns that were written."""
        return all_rows(self.path, self._counts()).to_pandas()

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
            UserError: the store lacks a layer (lists those it has), or a shard is damaged.
        """
        return self.reader(layers)[slice(None) if rows is None else rows]

    def reader(self, layers: Sequence[int]) -> StateReader:
        """The states of some layers, for reading rows on demand; see :class:`StateReader`.

        Raises:
            UserError: the store lacks a layer; lists those it has.
        """
        counts = self._counts()
        files = [self._file(i, "safetensors") for i in range(len(counts))]
        return StateReader(files, counts, self.spec, layers)

    def to_datasets(self, layers: Sequence[int] | None = None) -> datasets.Dataset:
        """All rows as a Hugging Face ``Dataset``, with a column ``layer.<k>`` of vectors per layer asked for.

        The states of those layers are read into memory; without layers none are.

        Raises:
            UserError: the store lacks a layer; lists those it has.
        """
        layers = tuple(layers or ())
        self.spec.select(layers or self.spec.layers)
        return to_datasets(self, all_rows(self.path, self._counts()), layers)

    def _file(self, index: int, suffix: str) -> Path:
        return self.path / shard_file(index, suffix)

    def _write(self, name: str, blob: bytes) -> None:
        with writing(self.path / name):
            write_bytes(self.path / name, blob)

    def _counts(self) -> list[int]:
        """Rows per shard: from the manifest, or before it is finished from the shards themselves."""
        counts = read_manifest(self.path)["rows"]
        if counts is None:
            counts = [sidecar["rows"] for sidecar in self._sidecars()]
        if not sum(counts):
            raise RunError(f"the feature store {self.path} is empty: no example was kept")
        return counts

    def _sidecars(self) -> list[dict[str, Any]]:
        if self.missing:
            raise RunError(f"the feature store {self.path} lacks shards {self.missing[:10]}")
        return [self._sidecar(i) for i in range(self.shards)]

    def _sidecar(self, index: int) -> dict[str, Any]:
        """Rows and files of one shard that was written."""
        try:
            found = json.loads(self._file(index, "json").read_text("utf-8"))
            return {"rows": int(found["rows"]), "files": dict(found["files"])}
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(
                f"{self._file(index, 'json')} is damaged ({error}): remove that file, and the command that "
                "made the store makes the shard again"
            ) from error

    def _manifest(self) -> dict[str, Any]:
        return new_manifest(self.spec.to_dict(), self.config, self.shards)
