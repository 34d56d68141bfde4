"""Filling of a feature store: shard by shard, with the unfinished shard kept in parts.

What a shard holds is decided by its pieces of work alone, and so are the batches they go
through the model in. Time decides only when the part made since the last one is written
into the folder ``unfinished`` of the store, which is a feature store of its own. A run that
was killed reads the parts and makes the rest; the whole shard is then written at once, in
the order of its work, and the parts are removed. The bytes are those of a run that was
never interrupted and wrote no parts.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from probers.progress import tell
from probers.store.files import MANIFEST, written_shards
from probers.store.store import FeatureStore
from probers.types import UserError

if TYPE_CHECKING:
    from probers.data.splits import Partition

    from .labelled_parts import LabelledParts
    from .labels.base import Examples, LabelBuilder, Quotas

#: Seconds after which what was made is written: what a kill loses, and one batch more.
PART = 30.0
_FOLDER = "unfinished"
#: Characters of a prompt's end and of a text that are shown.
_SHOWN = 160

Clock = Callable[[], float]


class Unfinished:
    """The shard of a store that is being made.

    Args:
        store: the store it will be of.
        names: ids of all spans that may be in it, in its order.
        clock: seconds, from any moment on.
    """

    def __init__(self, store: FeatureStore, names: Sequence[str], clock: Clock) -> None:
        from .labels.base import Examples

        self._store, self._names, self._clock = store, names, clock
        self._path = store.path / _FOLDER / "parts"
        self._config = {"shard_of": store.config, "names": list(names)}
        self._parts: FeatureStore | None = None
        self._all, self._new = Examples(), Examples()
        if (self._path / MANIFEST).exists():
            self._resume()
        else:  # the rest of one that was being removed
            _remove(self._store)
        self._begun = clock()

    def _resume(self) -> None:
        """Read the parts that an interrupted run left of this shard; those of another are removed."""
        try:
            self._parts = self._create()
        except UserError:
            _remove(self._store)
            return
        for index in written_shards(self._path):
            rows, states, _, left_out = self._parts.read_shard(index)
            self._all.rows += rows
            self._all.states += list(zip(*states, strict=True))
            self._all.left_out += left_out

    def _create(self) -> FeatureStore:
        return FeatureStore.create(self._path, self._store.features, config=self._config)

    @property
    def labels(self) -> dict[str, int | None]:
        """Labels of the spans so far, None for those left out."""
        return self._all.labels()

    def add(self, examples: Examples) -> None:
        """Take what was made, and write a part when it is time."""
        self._all.extend(examples)
        self._new.extend(examples)
        if self._clock() - self._begun >= PART:
            self._write_part()

    def _write_part(self) -> None:
        from .labels.base import Examples

        if self._parts is None:
            self._parts = self._create()
        _write(self._parts, self._new, [])
        self._new, self._begun = Examples(), self._clock()

    def finish(self, units: Sequence[str]) -> None:
        """Write the shard, which covers the units of these ids."""
        self._all.sort(self._names)
        _write(self._store, self._all, units)
        _remove(self._store)


def _remove(store: FeatureStore) -> None:
    """Remove the parts in the folder of a store, with what is remembered of their checksums beside them."""
    folder = store.path / _FOLDER
    if folder.exists():
        shutil.rmtree(folder)


def _write(store: FeatureStore, examples: Examples, units: Sequence[str]) -> None:
    import numpy as np

    states = [
        np.stack([of_row[number] for of_row in examples.states])
        if examples.rows
        else np.zeros((0, len(spec.layers), spec.width), dtype=np.float32)
        for number, spec in enumerate(store.features)
    ]
    store.write_shard(store.next_shard, examples.rows, *states, units=units, left_out=examples.left_out)


class _Progress:
    """The bar over a builder's items, and the first example.

    An item counts by the share of its shard that is made. What an earlier run made is no part
    of the rates and of the time left.
    """

    def __init__(self, builder: LabelBuilder, bar: tqdm[Any], clock: Clock) -> None:
        self._builder, self._bar, self._clock = builder, bar, clock
        self._begun = clock()
        self._tokens, self._labels = 0, Counter[int]()
        self._before = self._earlier = self._units = self._made = self._told = 0

    def begin(self, before: int, units: int, known: int) -> None:
        """A shard begins.

        Args:
            before: items that the shards before it hold.
            units: pieces of work in it.
            known: spans of it that an earlier run made.
        """
        self._earlier += self._units
        self._before, self._units, self._made = before, units, known
        if not self._tokens:  # this run has made nothing yet
            self._bar.initial = self._bar.n = self._bar.last_print_n = self._reached
            self._bar.refresh()

    def add(self, examples: Examples) -> None:
        """A batch is made."""
        labels = examples.labels()
        if examples.rows and not self._labels.total():
            self._bar.write("\n".join(first_example(examples.rows[0], self._builder.wrong_name)), sys.stdout)
        self._made += len(labels)
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
        tell(units - self._told, unit, self._bar.n / self._bar.total if self._bar.total else 0.0)
        self._told = units

    def end(self) -> None:
        """The shard is written."""
        self._made = self._units * self._builder.parts
        self._bar.update(self._reached - self._bar.n)

    @property
    def _reached(self) -> int:
        """Items made; those of a shard count as made one after the other."""
        return self._before + self._of(self._builder.items - self._before)

    def _of(self, count: int) -> int:
        """The part of ``count`` that is made of this shard."""
        whole = self._units * self._builder.parts
        return count * min(self._made, whole) // whole


def first_example(row: Mapping[str, Any], wrong: str) -> list[str]:
    """The lines that show an example while the others are made; ``wrong`` is what a label of 0 is called."""
    prompt, text, answer, gold = (_line(row[name]) for name in ("question", "text", "answer", "gold"))
    return [
        "the first example:",
        f"  prompt: {'.. ' if len(prompt) > _SHOWN else ''}{prompt[-_SHOWN:]}",
        f"  model:  {text[:_SHOWN]}{' ..' if len(text) > _SHOWN else ''}",
        f"  label:  {'right' if row['correct'] else wrong} "
        f"({answer[:_SHOWN] or 'no final answer'}; expected: {gold[:_SHOWN]})",
    ]


def _line(text: str) -> str:
    """Text on one line, without what steers a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def fill(
    store: FeatureStore,
    builder: LabelBuilder,
    *,
    shard_size: int,
    quotas: Quotas | None = None,
    part: Partition | None = None,
    made: LabelledParts | None = None,
    clock: Clock = time.monotonic,
) -> None:
    """Do the work that no shard covers yet, ``shard_size`` pieces at a time; one of them is held at once.

    Nothing more is made for a split whose quota is full, which is asked between two shards. A bar shows
    what this run makes, batch by batch: items, units, labels and tokens per second, and how
    many labels are wrong; the first example is printed.

    Args:
        store: the store, not finished.
        builder: of the examples.
        shard_size: pieces of work in a shard.
        quotas: how many examples some splits are to have; None is none.
        part: do only the work of this part; None does all of it.
        made: where the examples are taken from; None has the builder make them.
        clock: seconds; every :data:`PART` of them what was made of a shard is kept for a resumed run.
    """
    with tqdm(total=builder.total, unit=f" {builder.item_name}s", dynamic_ncols=True) as bar:
        progress = _Progress(builder, bar, clock)
        for before, units in _shards(store, builder, shard_size, quotas, part):
            shard = Unfinished(store, builder.names(units), clock)
            known = shard.labels
            progress.begin(before, len(units), len(known))
            for examples in (
                builder.build(units, known) if made is None else made.build(builder, units, known)
            ):
                shard.add(examples)
                progress.add(examples)
            shard.finish([unit.id for unit in units])
            progress.end()
        bar.update(builder.items - bar.n)
    _remove(store)  # what a kill right after the last shard left


def _shards(
    store: FeatureStore, builder: LabelBuilder, size: int, quotas: Quotas | None, part: Partition | None
) -> Iterator[tuple[int, list[Any]]]:
    """The work of each shard that is missing, and how many items were read for those before it."""
    from .labels.base import Quotas

    quotas = quotas or Quotas({}, by=builder.balance_by, parts=builder.parts)
    done = store.units
    counted = before = 0
    units_left = takewhile(lambda _: not quotas.all_full, builder.units())
    own = units_left if part is None else (unit for unit in units_left if part.owns(unit.group))
    waiting = (unit for unit in own if unit.id not in done and not quotas.full(unit.split))
    while True:
        # The shards before the next one alone: what is made again ends as it was made at first.
        while quotas and counted < store.next_shard:
            quotas.count(store.shard_rows(counted))
            counted += 1
        first = list(islice(waiting, 1))
        if not first:
            return
        before = max(before, builder.items - 1)
        yield before, [*first, *islice(waiting, size - 1)]
        before = builder.items
