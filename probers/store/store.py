"""The feature store: labelled hidden states on disk, resumable and memory-mapped.

docs/formats.md describes the files. Each is written under another name and then renamed, a shard's JSON
record last: it marks a whole shard. No file holds times or machine names: a store that was killed and resumed
is byte-identical to one that was not. One process writes a folder; several workers write a folder each, which
:class:`.joined.JoinedStores` reads as one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checksums import check, sealed
from ..files import canonical_json, digest, write_bytes, writing
from ..types import RunError, UserError, count
from . import files
from .reader import StateReader
from .spec import FeatureSpec

if TYPE_CHECKING:
    import datasets
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FeatureStore:
    """A folder of labelled hidden states; make one with :meth:`create` or :meth:`open`.

    States are read from one of its ``features``, of index ``read``: the first unless :meth:`feature` chose
    another. ``config`` is the part of the configuration that decided the results. ``shards`` is None
    until the last one is known.
    """

    path: Path
    features: tuple[FeatureSpec, ...]
    config: Mapping[str, Any]
    shards: int | None
    read: int = 0

    def __repr__(self) -> str:
        kinds = (f"pool={s.pool} site={s.site} of {count(len(s.layers), 'layer')}" for s in self.features)
        return f"{type(self).__name__}({str(self.path)!r}, {', '.join(kinds)})"

    @property
    def called(self) -> str:
        """Name of the store in messages."""
        return f"data={self.path}"

    @classmethod
    def create(
        cls,
        path: str | Path,
        features: Sequence[FeatureSpec],
        *,
        config: Mapping[str, Any],
        shards: int | None = None,
    ) -> FeatureStore:
        """Make a new store, or continue the unfinished one in ``path``.

        Each feature has another pool or site. UserError where ``path`` holds a store of other
        specifications or another configuration, ValueError for features that cannot share rows.
        """
        if shards is not None and shards < 1:
            raise ValueError(f"a store has at least one shard, got shards={shards}")
        files.check_features(features)
        store = cls(Path(path), tuple(features), config, shards)
        if (store.path / files.MANIFEST).exists():
            there = files.read_manifest(store.path)
            there |= {"shards": None} if shards is None else {}
            files.check_same(store.path, there, store._manifest())
        else:
            with writing(store.path):
                store._file(0, "json").parent.mkdir(parents=True, exist_ok=True)
            write_bytes(store.path / files.MANIFEST, canonical_json(store._manifest()).encode())
        for index in files.written_shards(store.path):
            try:
                if (problem := check(store.path, store._sidecar(index)["files"])) is None:
                    continue
                log.info(f"{store.path / problem[0]} {problem[1]}: making its shard again")
            except RunError as error:
                log.info(str(error))
            store._file(index, "json").unlink()
        for leftover in store.path.glob("shards/.*.tmp"):
            leftover.unlink()
        return store

    @classmethod
    def open(cls, path: str | Path, *, checksums: bool = True) -> FeatureStore:
        """Open a finished store; compare its files with their ``checksums`` (once), or else by size alone.

        UserError for no store, an unfinished one, or a file that is missing, truncated or altered.
        """
        path = Path(path)
        manifest = files.read_manifest(path)
        store = cls(path, files.read_specs(path, manifest), manifest["config"], manifest["shards"])
        if not manifest["complete"]:
            written = f"{len(files.written_shards(path))} of {store.shards or 'an unknown number of'} shards"
            message = f"the feature store {path} is incomplete ({written}): run its command again"
            raise UserError(message, "no-artifact")
        if (problem := check(path, manifest["files"], contents=checksums)) is not None:
            raise files.damaged(path, *problem)
        return store

    @property
    def spec(self) -> FeatureSpec:
        return self.features[self.read]

    def feature(self, *, pool: str | None = None, site: str | None = None) -> FeatureStore:
        """Read the store as its first feature of some pool and site; UserError if there is none."""
        for index, spec in enumerate(self.features):
            if pool in (None, spec.pool) and site in (None, spec.site):
                return replace(self, read=index)
        wanted = " ".join(f"{k}={v}" for k, v in (("pool", pool), ("site", site)) if v is not None)
        there = ", ".join(f"pool={spec.pool} site={spec.site}" for spec in self.features)
        raise UserError(f"{wanted} is not in the store {self.path}: it holds {there}", "missing-value")

    @property
    def missing(self) -> list[int]:
        """Indices of the shards not yet written; with an open number, the gaps before the last one."""
        written = files.written_shards(self.path)
        upto = self.shards if self.shards is not None else max(written, default=-1) + 1
        return sorted(set(range(upto)) - set(written))

    @property
    def next_shard(self) -> int:
        return next(iter(self.missing), len(files.written_shards(self.path)))

    @property
    def units(self) -> set[str]:
        """The pieces of work that the written shards cover."""
        return {unit for about in self._sidecars() for unit in about["units"]}

    def left_out(self) -> Iterator[dict[str, Any]]:
        """List records of texts left out of the shards, in their order."""
        return chain.from_iterable(about["left_out"] for about in self._sidecars())

    def write_shard(
        self,
        index: int,
        rows: Sequence[Mapping[str, Any]],
        *states: np.ndarray,
        units: Sequence[str] = (),
        left_out: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Write the shard ``index`` (from 0), all or nothing; an existing one is replaced.

        ``rows`` have the keys of :data:`probers.store.files.COLUMNS` (id, group, split and correct at least)
        and any further ones, ``states`` the shape (len(rows), layers, width) for each feature. ``units`` are
        ids of the pieces of work it covers, and ``left_out`` lists those without a row, with id and reason.

        Raises:
            RunError: states that are not finite in the store's number format.
            ValueError: shapes, columns or labels that do not fit.
        """
        expected = [(len(rows), len(spec.layers), spec.width) for spec in self.features]
        if (shapes := [array.shape for array in states]) != expected:
            raise ValueError(f"states of shard {index} have the shapes {shapes}, expected {expected}")
        if index < 0 or (self.shards is not None and index >= self.shards):
            raise ValueError(f"shard {index} is out of range for {self.shards} shards")
        ends = files.state_suffixes(self.features)
        blobs = dict.fromkeys(["parquet", *ends], b"")
        if rows:
            blobs["parquet"] = files.encode_rows(rows)
            for end, array, spec in zip(ends, states, self.features, strict=True):
                blobs[end] = files.encode_states(rows, array, spec)
        self._file(index, "json").unlink(missing_ok=True)  # until it is written again there is no shard
        written = {}
        for suffix, blob in blobs.items():
            file = self._file(index, suffix)
            if blob:
                write_bytes(file, blob)
                written[file.name] = {"bytes": len(blob), "sha256": digest(blob, 64)}
            else:
                file.unlink(missing_ok=True)
        about = {"rows": len(rows), "files": written, "units": list(units), "left_out": list(left_out)}
        write_bytes(self._file(index, "json"), sealed(about).encode())

    def read_shard(
        self, index: int
    ) -> tuple[list[dict[str, Any]], list[np.ndarray], list[str], list[dict[str, Any]]]:
        """Read a whole shard: rows, states, units, left out, as given to :meth:`write_shard`."""
        about, rows = self._sidecar(index), self.shard_rows(index)
        states = [
            StateReader([self._file(index, end)], [len(rows)], spec, spec.layers)[:]
            for spec, end in zip(self.features, files.state_suffixes(self.features), strict=True)
        ]
        return rows, states, about["units"], about["left_out"]

    def shard_rows(self, index: int) -> list[dict[str, Any]]:
        return files.read_rows(self.path, index).to_pylist() if self._sidecar(index)["rows"] else []

    def finish(self, summary: Mapping[str, Any] | None = None, *, empty: bool = False) -> None:
        """Mark the store complete and keep plain figures as its ``summary``.

        RunError where shards are missing, ids repeat, columns differ, or all shards are empty, which
        ``empty`` allows for a small part.
        """
        rows = self._written_counts() if empty else self._counts()
        files.check_rows(self.path, [i for i, n in enumerate(rows) if n])
        manifest = self._manifest() | {
            "complete": True, "shards": len(rows), "rows": rows, "files": self._shard_files(),
            "summary": dict(summary or {}),
        }  # fmt: skip
        write_bytes(self.path / files.MANIFEST, canonical_json(manifest).encode())

    def verify(self) -> None:
        """Compare every file with its checksum, in an unfinished store too; UserError names a damaged one."""
        listed = files.read_manifest(self.path)["files"] or self._shard_files()
        if (problem := check(self.path, listed, anew=True)) is not None:
            raise files.damaged(self.path, *problem)

    @property
    def summary(self) -> dict[str, Any]:
        return files.read_manifest(self.path)["summary"]

    def __len__(self) -> int:
        return sum(self._counts())

    def table(self) -> pd.DataFrame:
        return files.all_rows(self.path, self._counts()).to_pandas()

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows of each shard, all columns by default."""
        for index, rows in enumerate(self._counts()):
            if rows:
                yield files.read_rows(self.path, index, columns, rows=rows).to_pandas()

    def layer(self, k: int) -> np.ndarray:
        """Read (N, d) states of one layer, and only that layer's bytes."""
        return self.states((k,))[:, 0]

    def states(self, layers: Sequence[int], rows: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Read (n, len(layers), d) states in the order of ``layers`` and ``rows``, from those shards only.

        UserError where the store lacks a layer, or a shard is damaged.
        """
        return self.reader(layers)[slice(None) if rows is None else rows]

    def reader(self, layers: Sequence[int]) -> StateReader:
        counts, end = self._counts(), files.state_suffixes(self.features)[self.read]
        return StateReader([self._file(i, end) for i in range(len(counts))], counts, self.spec, layers)

    def to_datasets(self, layers: Sequence[int] | None = None) -> datasets.Dataset:
        """Make a Hugging Face ``Dataset`` of all rows, with a column ``layer.<k>`` for each layer."""
        import datasets
        import pyarrow as pa

        chosen = self.spec.select(layers).layers if layers else ()
        rows = files.all_rows(self.path, self._counts())
        for k in chosen:
            # Without Python objects in between: the array becomes Arrow's own memory.
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.layer(k).reshape(-1)), self.spec.width)
            rows = rows.append_column(f"layer.{k}", vectors)
        # Caches name the content by this; the library would hash every vector for it.
        read = f"{self.spec.pool} {self.spec.site} " if self.read else ""
        content = f"{(self.path / files.MANIFEST).read_text('utf-8')}{read}{list(chosen)}"
        return datasets.Dataset(rows, fingerprint=digest(content))

    def _file(self, index: int, suffix: str) -> Path:
        return self.path / files.shard_file(index, suffix)

    def _counts(self) -> list[int]:
        """Count rows per shard; before the store is finished, from the shards themselves."""
        counts = files.read_manifest(self.path)["rows"] or self._written_counts()
        if not sum(counts):
            raise RunError(f"the feature store {self.path} is empty: no example was kept", "empty")
        return counts

    def _written_counts(self) -> list[int]:
        if self.missing:
            raise RunError(f"the feature store {self.path} lacks shards {self.missing[:10]}", "no-artifact")
        return [about["rows"] for about in self._sidecars()]

    def _sidecar(self, index: int) -> dict[str, Any]:
        return files.read_sidecar(self.path, index, self.features)

    def _sidecars(self) -> Iterator[dict[str, Any]]:
        return map(self._sidecar, files.written_shards(self.path))

    def _shard_files(self) -> dict[str, dict[str, Any]]:
        return {name: file for about in self._sidecars() for name, file in about["files"].items()}

    def _manifest(self) -> dict[str, Any]:
        first, *more = (spec.to_dict() for spec in self.features)
        return {
            "format": files.FORMAT, "schema": files.SCHEMA, "complete": False, "shards": self.shards,
            "spec": first, "config": dict(self.config), "rows": None, "files": {}, "summary": {},
            **({"more": more} if more else {}),
        }  # fmt: skip
