"""Writer of a feature store: shard by shard, with the unfinished shard saved in pieces.

The units of work of a shard alone decide its content, and the batches in which they go through the model.
Time only decides when the examples since the last save go into the folder ``unfinished``, a feature store of
its own. A killed run resumes from it; the whole shard is then written at once, in the order of its work. Its
bytes are those of a run that was never interrupted.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from probers.checksums import sha256
from probers.commands.merge import PartRuns
from probers.data.splits import Partition
from probers.files import write_text, writing
from probers.store.files import MANIFEST, read_rows, read_sidecar, shard_file, state_suffixes, written_shards
from probers.store.reader import StateReader
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.types import UserError

from .labels.base import Examples, LabelBuilder, Quotas, span_of

#: Seconds between two saves of the unfinished shard; a kill loses these, and one batch more.
PART = 30.0
_FOLDER = "unfinished"
#: Characters shown of a prompt's end and of a text.
_SHOWN = 160

Clock = Callable[[], float]


class Unfinished:
    """Shard being made of the spans ``names``, in the order of the store."""

    def __init__(self, store: FeatureStore, names: Sequence[str], clock: Clock) -> None:
        self._store, self._names, self._clock = store, names, clock
        self._path = store.path / _FOLDER / "parts"
        self._parts: FeatureStore | None = None
        self._all, self._new = Examples(), Examples()
        if (self._path / MANIFEST).exists():
            self._resume()
        else:  # remains of a store that was being removed
            _remove(store)
        self._begun = clock()

    def _resume(self) -> None:
        """Read the pieces of this shard that an interrupted run saved; remove those of another shard."""
        try:
            self._parts = self._create()
        except UserError:
            _remove(self._store)
            return
        for index in written_shards(self._path):
            rows, states, _, left_out = self._parts.read_shard(index)
            self._all.extend(Examples(rows, list(zip(*states, strict=True)), left_out))

    def _create(self) -> FeatureStore:
        config = {"shard_of": self._store.config, "names": list(self._names)}
        return FeatureStore.create(self._path, self._store.features, config=config)

    @property
    def labels(self) -> dict[str, int | None]:
        """Map the spans so far to their labels, None for those left out."""
        return self._all.labels()

    def add(self, examples: Examples) -> None:
        """Add examples, rounded as they are stored, and save a piece when it is time."""
        examples.states = [
            [_rounded(each, spec) for each, spec in zip(of_row, self._store.features, strict=True)]
            for of_row in examples.states
        ]
        self._all.extend(examples)
        self._new.extend(examples)
        if self._clock() - self._begun >= PART:
            if self._parts is None:  # an empty store is false
                self._parts = self._create()
            _write(self._parts, self._new, [])
            self._new, self._begun = Examples(), self._clock()

    def finish(self, units: Sequence[str]) -> None:
        """Write the shard, which covers the units of these ids."""
        self._all.sort(self._names)
        _write(self._store, self._all, units)
        _remove(self._store)


def _remove(store: FeatureStore) -> None:
    """Remove the saved pieces, with the remembered checksums beside them."""
    if (folder := store.path / _FOLDER).exists():
        shutil.rmtree(folder)


def _rounded(states: np.ndarray, spec: FeatureSpec) -> np.ndarray:
    """Convert states to the store's number format; values too large for it are refused on writing."""
    with np.errstate(over="ignore"):
        return np.asarray(states, dtype=spec.read_as)


def _write(store: FeatureStore, examples: Examples, units: Sequence[str]) -> None:
    states = []
    for number, spec in enumerate(store.features):
        # Layer by layer, like the file: a shard is large, and must not be copied again.
        layers = np.empty((len(spec.layers), len(examples.rows), spec.width), dtype=spec.read_as)
        for row, of_row in enumerate(examples.states):
            layers[:, row] = of_row[number]
        states.append(layers.transpose(1, 0, 2))
    store.write_shard(store.next_shard, examples.rows, *states, units=units, left_out=examples.left_out)


class LabelledParts:
    """Labelled examples of the finished ``parts`` of a run, in the order of the whole.

    The rows of one shard of each part are held; states are copied from the mapped files when needed.
    """

    def __init__(self, parts: PartRuns) -> None:
        self._parts = parts
        stores = {run.path: FeatureStore.open(run.path) for run in parts.runs}
        self.features = parts.of_one("features", lambda run: stores[run.path].features)
        self._shards = {path: _read_shards(store) for path, store in stores.items()}
        self._current: dict[Path, _Shard] = {}

    def build(
        self, builder: LabelBuilder, units: Sequence[Any], known: Mapping[str, Any]
    ) -> Iterator[Examples]:
        """Build like :meth:`LabelBuilder.build`; UserError for a part that lacks one of its units."""
        examples = Examples()
        for unit in units:
            shard = self._shard_of(unit)
            for name in builder.names([unit]):
                if name not in known:
                    shard.copy(name, examples)
        yield examples

    def _shard_of(self, unit: Any) -> _Shard:
        path = self._parts.owner(unit.group).path
        while path not in self._current or unit.id not in self._current[path].units:
            shard = next(self._shards[path], None)
            if shard is None:
                lacks = f"{path} lacks {unit.id}, which its part of the run has"
                raise UserError(f"{lacks}: its inputs were others; make it again", "parts")
            self._current[path] = shard
        return self._current[path]

    def take_vectors(self, names: Sequence[str], folder: Path) -> None:
        """Copy the word vectors of the parts, if they have any; UserError if they differ."""
        for name in names:
            paths = {run.path: run.path / name for run in self._parts.runs}
            sums = {run: sha256(path) for run, path in paths.items() if path.exists()}
            self._parts.of_one(f"word vectors ({name})", lambda run, sums=sums: sums.get(run.path))  # type: ignore[misc]
            if sums and not (folder / name).exists():
                beside = folder / f".{name}.tmp"
                with writing(folder / name):
                    shutil.copyfile(paths[self._parts.runs[0].path], beside)
                    os.replace(beside, folder / name)

    def join(self, name: str, folder: Path) -> None:
        """Concatenate the lines of a file of the parts, if they have it."""
        found = [path.read_text("utf-8") for run in self._parts.runs if (path := run.path / name).exists()]
        if found:
            write_text(folder / name, "".join(found))


@dataclass
class _Shard:
    """Shard of a part: its units, and for each span its numbered rows and the work left out."""

    units: frozenset[str]
    rows: dict[str, list[tuple[int, dict[str, Any]]]]
    left_out: dict[str, list[dict[str, Any]]]
    states: list[StateReader]

    def copy(self, span: str, examples: Examples) -> None:
        if rows := self.rows.get(span):
            numbers = np.array([number for number, _ in rows])
            states = [reader[numbers] for reader in self.states]
            for place, (_, row) in enumerate(rows):
                examples.add(row, [each[place] for each in states])
        examples.left_out += self.left_out.get(span, [])


def _read_shards(store: FeatureStore) -> Iterator[_Shard]:
    assert store.shards is not None  # the store of a finished part
    for index in range(store.shards):
        about = read_sidecar(store.path, index, store.features)
        shard = _Shard(frozenset(about["units"]), defaultdict(list), defaultdict(list), [])
        for found in about["left_out"]:
            shard.left_out[found["id"]].append(found)
        if count := about["rows"]:
            for number, row in enumerate(read_rows(store.path, index, rows=count).to_pylist()):
                shard.rows[span_of(row)].append((number, row))
            for spec, end in zip(store.features, state_suffixes(store.features), strict=True):
                file = store.path / shard_file(index, end)
                shard.states.append(StateReader([file], [count], spec, spec.layers))
        yield shard


class _Progress:
    """Bar over a builder's items, by the finished share of their shard; rates are of this run alone."""

    def __init__(self, builder: LabelBuilder, bar: tqdm[Any], clock: Clock) -> None:
        self._builder, self._bar, self._clock = builder, bar, clock
        self._begun = clock()
        self._tokens, self._labels = 0, Counter[int]()
        self._before = self._earlier = self._units = self._made = 0

    def begin(self, before: int, units: int, known: int) -> None:
        """Begin a shard of so many units and known spans, after ``before`` items."""
        self._earlier += self._units
        self._before, self._units, self._made = before, units, known
        if not self._tokens:  # nothing made yet in this run
            self._bar.initial = self._bar.n = self._bar.last_print_n = self._reached
            self._bar.refresh()

    def add(self, examples: Examples) -> None:
        """Show a finished batch."""
        labels = examples.labels()
        if examples.rows and not self._labels.total():
            self._bar.write("\n".join(first_example(examples.rows, self._builder.wrong_name)), sys.stdout)
        self._made += len(set(map(self._builder.unit_of, labels)))
        self._tokens += examples.tokens
        self._labels.update(label for label in labels.values() if label is not None)
        seconds, total = max(1e-9, self._clock() - self._begun), self._labels.total()
        share = f"{self._labels[0] / total:.2f} {self._builder.wrong_name}" if total else "no label"
        units, unit = self._earlier + self._of(self._units), f"{self._builder.unit_name}s"
        self._bar.set_postfix_str(
            f"{units} {unit}, {total} labels, {total / seconds:.1f} labels/s, "
            f"{self._tokens / seconds:.0f} tokens/s, {share}"
        )
        self._bar.update(self._reached - self._bar.n)

    def end(self) -> None:
        """Count the written shard."""
        self._made = self._units * self._builder.parts
        self._bar.update(self._reached - self._bar.n)

    @property
    def _reached(self) -> int:
        """Number of items made, those of a shard one after the other."""
        return self._before + self._of(self._builder.items - self._before)

    def _of(self, count: int) -> int:
        """Scale ``count`` by the finished share of this shard."""
        whole = self._units * self._builder.parts
        return count * min(self._made, whole) // whole


def first_example(rows: Sequence[Mapping[str, Any]], wrong: str) -> list[str]:
    """Describe an example in lines, of labelled tokens a marked one; ``wrong`` is the name of label 0."""
    row = next((each for each in rows if each.get("inside", 1) == 1), rows[0])
    label = {0: "right", 1: wrong}.get(row.get("token_wrong", 1 - row["correct"]), "undecided")
    names = ("question", "text", "answer", "gold")
    prompt, text, answer, gold = (_line(str(row.get(name, ""))) for name in names)
    return [
        "the first example:",
        f"  prompt: {'.. ' if len(prompt) > _SHOWN else ''}{prompt[-_SHOWN:]}",
        f"  model:  {text[:_SHOWN]}{' ..' if len(text) > _SHOWN else ''}",
        f"  label:  {label} "
        f"({answer[:_SHOWN] or 'no final answer'}{gold and f'; expected: {gold[:_SHOWN]}'})",
    ]


def _line(text: str) -> str:
    """Put a text on one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def fill(
    store: FeatureStore, builder: LabelBuilder, *, shard_size: int, quotas: Quotas | None = None,
    part: Partition | None = None, made: LabelledParts | None = None, clock: Clock = time.monotonic,
) -> None:  # fmt: skip
    """Make and write the units that no shard covers yet, one shard of ``shard_size`` units at a time.

    A split with a full quota gets no further units; quotas are checked between two shards. With ``part`` only
    its units are made; with ``made`` their examples are taken from finished parts. A bar shows rates and
    label shares of this run after every batch; the first example is printed.
    """
    with tqdm(total=builder.total, unit=f" {builder.item_name}s", dynamic_ncols=True) as bar:
        progress = _Progress(builder, bar, clock)
        for before, units in _shards(store, builder, shard_size, quotas, part):
            shard = Unfinished(store, builder.names(units), clock)
            known = shard.labels
            progress.begin(before, len(units), len(set(map(builder.unit_of, known))))
            batches = made.build(builder, units, known) if made else builder.build(units, known)
            for examples in batches:
                shard.add(examples)
                progress.add(examples)
            shard.finish([unit.id for unit in units])
            progress.end()
        bar.update(builder.items - bar.n)
    _remove(store)  # remains of a kill right after the last shard


def _shards(
    store: FeatureStore, builder: LabelBuilder, size: int, quotas: Quotas | None, part: Partition | None
) -> Iterator[tuple[int, list[Any]]]:
    """Yield each missing shard's units, after the number of items read before it."""
    quotas = quotas or Quotas({}, by=builder.balance_by, parts=builder.parts)
    done = store.units
    counted = before = 0
    units_left = takewhile(lambda _: not quotas.all_full, builder.units())
    own = units_left if part is None else (unit for unit in units_left if part.owns(unit.group))
    waiting = (unit for unit in own if unit.id not in done and not quotas.full(unit.split))
    while True:
        # Count only the shards before the next one: what is made again then ends as at first.
        while quotas and counted < store.next_shard:
            quotas.count(store.shard_rows(counted))
            counted += 1
        if not (first := list(islice(waiting, 1))):
            return
        before = max(before, builder.items - 1)
        yield before, [*first, *islice(waiting, size - 1)]
        before = builder.items
