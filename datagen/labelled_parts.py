"""Labelled examples of the parts of a run, in the order of the whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probers.checksums import sha256
from probers.commands.merge import PartRuns
from probers.files import writing
from probers.store.files import read_rows, read_sidecar, shard_file, state_suffixes
from probers.store.reader import StateReader
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.types import UserError

from .labels.base import Examples, LabelBuilder, span_of


@dataclass
class LabelledParts:
    """The finished stores of all parts, read once and in order.

    Of each part one shard's rows are held; states are copied from the mapped files as they are asked for.

    Attributes:
        parts: of one run.
        features: what the vectors are, in the order in which they are stored.

    Raises:
        UserError: a part that is damaged; parts of other features.
    """

    parts: PartRuns
    features: tuple[FeatureSpec, ...] = field(init=False)
    _read: dict[Path, _Part] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for run in self.parts.runs:
            self._read[run.path] = _Part(run.path, FeatureStore.open(run.path))
        self.features = self.parts.of_one("features", lambda run: self._read[run.path].store.features)

    def build(
        self, builder: LabelBuilder, units: Sequence[Any], known: Mapping[str, Any]
    ) -> Iterator[Examples]:
        """Build as :meth:`LabelBuilder.build`, from the parts; units come in the order of the whole.

        Raises:
            UserError: a part lacks one of its units.
        """
        examples = Examples()
        for unit in units:
            part = self._read[self.parts.owner(unit.group).path]
            part.take(unit.id, [name for name in builder.names([unit]) if name not in known], examples)
        yield examples

    def take_vectors(self, names: Sequence[str], folder: Path) -> None:
        """Copy the word vectors that every part was labelled with, where there are any.

        Raises:
            UserError: parts with other vectors.
            RunError: they cannot be written.
        """
        for name in names:
            paths = {run.path: run.path / name for run in self.parts.runs}
            sums = {run: sha256(path) for run, path in paths.items() if path.exists()}
            self.parts.of_one(f"word vectors ({name})", lambda run, sums=sums: sums.get(run.path))  # type: ignore[misc]
            if sums and not (folder / name).exists():
                beside = folder / f".{name}.tmp"
                with writing(folder / name):
                    shutil.copyfile(paths[self.parts.runs[0].path], beside)
                    os.replace(beside, folder / name)


@dataclass
class _Part:
    """One part's store, from shard to shard."""

    path: Path
    store: FeatureStore
    _shard: int = field(default=-1, init=False)
    _units: frozenset[str] = field(default=frozenset(), init=False)
    _rows: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict, init=False)
    _left_out: dict[str, list[dict[str, Any]]] = field(default_factory=dict, init=False)
    _states: list[StateReader] = field(default_factory=list, init=False)

    def take(self, unit: str, names: Sequence[str], examples: Examples) -> None:
        """Add what was made of a unit, as far as its spans are wanted."""
        while unit not in self._units:
            self._next(unit)
        for name in names:
            rows = self._rows.get(name, [])
            if rows:
                numbers = np.array([number for number, _ in rows])
                states = [reader[numbers] for reader in self._states]
                for place, (_, row) in enumerate(rows):
                    examples.add(row, [each[place] for each in states])
            examples.left_out += self._left_out.get(name, [])

    def _next(self, unit: str) -> None:
        """Go to the next shard."""
        self._shard += 1
        if self._shard == self.store.shards:
            raise UserError(
                f"{self.path} lacks {unit}, which its part of the run has: its inputs were others; make it "
                "again",
                "parts",
            )
        about = read_sidecar(self.path, self._shard, self.store.features)
        self._units = frozenset(about["units"])
        self._rows, self._left_out, self._states = {}, {}, []
        for found in about["left_out"]:
            self._left_out.setdefault(found["id"], []).append(found)
        if not about["rows"]:
            return
        for number, row in enumerate(read_rows(self.path, self._shard, rows=about["rows"]).to_pylist()):
            self._rows.setdefault(span_of(row), []).append((number, row))
        for spec, end in zip(self.store.features, state_suffixes(self.store.features), strict=True):
            file = self.path / shard_file(self._shard, end)
            self._states.append(StateReader([file], [about["rows"]], spec, spec.layers))
