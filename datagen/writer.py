"""Writer of a feature store, shard by shard: a shard is written at once, and a killed run makes it again.

The shards of finished parts are joined in the same way, and the store is balanced in the end.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from probers.checksums import draw_key, sha256
from probers.cli.merge import PartRuns
from probers.data.splits import Partition
from probers.files import write_bytes, write_text
from probers.progress import Bar
from probers.store.store import FeatureStore
from probers.types import SPLITS, UserError, count

from .audit.sampling import stored_columns
from .labels.base import Source
from .labels.rows import Examples, span_name

log = logging.getLogger(__name__)

#: Characters shown of a prompt's end and of a text.
_SHOWN = 160
_REASON = "balance: more of its label than of the other"
_ENOUGH = "balance: its split has enough of its label"

#: Makes the examples of the units of a shard, batch by batch.
Make = Callable[[Sequence[Any]], Iterable[Examples]]
#: Values of the columns that a span is balanced by, and its label.
_Kind = tuple[tuple[str, ...], int]


def fill(store: FeatureStore, source: Source, make: Make, part: Partition | None = None) -> None:
    """Make and write the units that no shard covers yet, one shard at a time.

    A split with a full quota gets no further units; quotas are checked between two shards. A ``part`` has its
    own units and no quotas, since it does not know the examples of the others. A bar shows rates and label
    shares of this run; the first example is logged.
    """
    quotas = quotas_of(source) if part is None else Quotas({}, by=source.balance_by, parts=source.parts)
    with Bar(total=source.total, unit=f" {source.item_name}s", dynamic_ncols=True) as bar:
        started, labels, tokens = time.monotonic(), Counter[int](), 0
        for before, units in _shards(store, source, quotas, part):
            if not bar.n:  # what an earlier run has made
                bar.initial = bar.n = bar.last_print_n = before
            whole = Examples()
            for batch in make(units):
                if batch.rows and not labels:
                    bar.clear()
                    for line in first_example(batch.rows, source.wrong_name):
                        log.info("%s", line)
                labels.update(batch.labels().values())
                tokens += batch.tokens
                seconds = max(1e-9, time.monotonic() - started)
                bar.set_postfix_str(_progress(labels, tokens, seconds, source.wrong_name))
                batch.states = [_rounded(states, store) for states in batch.states]
                whole.extend(batch)
            _write(store, source, whole, [unit.id for unit in units])
            bar.update(source.items - bar.n)
        bar.update(source.items - bar.n)


def _shards(
    store: FeatureStore, source: Source, quotas: Quotas, part: Partition | None
) -> Iterator[tuple[int, list[Any]]]:
    """Yield each missing shard's units, after the number of items read before it.

    A shard grows beyond its size, up to twofold, until a unit of another group comes: texts after one prompt
    are read together, so that what is known before them is the same number in all.
    """
    if done := store.units:
        log.info("resuming after %s", count(len(done), source.item_name))
    units = takewhile(lambda _: not all(map(quotas.full, SPLITS)), _counted(source))
    missing = (unit for unit in units if unit.id not in done and (part is None or part.owns(unit.group)))
    waiting = (unit for unit in missing if not quotas.full(unit.split))
    counted, size = 0, source.options.shard_size
    ahead: list[Any] = []
    while True:
        # Count only the shards before the next one: what is made again then ends as at first.
        while quotas and counted < store.next_shard:
            quotas.count(store.shard_rows(counted))
            counted += 1
        shard = [unit for unit in ahead if not quotas.full(unit.split)] or list(islice(waiting, 1))
        if not shard:
            return
        before, ahead = max(0, source.items - 1), []
        shard += islice(waiting, size - 1)
        for unit in islice(waiting, size):
            if unit.group != shard[-1].group:
                ahead = [unit]
                break
            shard.append(unit)
        yield before, shard


def _counted(source: Source) -> Iterator[Any]:
    number = 0
    for number, unit in enumerate(source.units(), 1):
        source.keep(items=source.items_of(number))
        yield unit
    source.keep(items=source.items_of(number))


def _rounded(states: Sequence[np.ndarray], store: FeatureStore) -> list[np.ndarray]:
    """Convert states to the store's number formats; values too large for them are refused on writing."""
    with np.errstate(over="ignore"):
        pairs = zip(states, store.features, strict=True)
        return [np.asarray(values, dtype=spec.read_as) for values, spec in pairs]


def _write(store: FeatureStore, source: Source, examples: Examples, units: Sequence[str]) -> None:
    number = {name: place for place, name in enumerate(units)}

    def place(span: str) -> tuple[int, int]:
        turn, unit = source.place(span)
        return turn, number[unit]

    order = sorted(range(len(examples.rows)), key=lambda row: place(span_name(examples.rows[row])))
    states = []
    for feature, spec in enumerate(store.features):
        # Layer by layer, like the file: a shard is large, and must not be copied again.
        layers = np.empty((len(spec.layers), len(order), spec.width), dtype=spec.read_as)
        for row, origin in enumerate(order):
            layers[:, row] = examples.states[origin][feature]
        states.append(layers.transpose(1, 0, 2))
    rows = [examples.rows[origin] for origin in order]
    left_out = sorted(examples.left_out, key=lambda record: place(record["id"]))
    store.write_shard(store.next_shard, rows, *states, units=units, left_out=left_out)


class LabelledParts:
    """Labelled examples of the finished ``parts`` of a run, in the order of the whole.

    The rows of one shard of each part are held.
    """

    def __init__(self, parts: PartRuns, source: Source) -> None:
        self._parts, self._source = parts, source
        stores = {run.path: FeatureStore.open(run.path) for run in parts.runs}
        self.features = parts.of_one("features", lambda run: stores[run.path].features)
        self._shards = {path: self._read(store) for path, store in stores.items()}
        self._current: dict[Path, dict[str, Examples]] = {}

    def __call__(self, units: Sequence[Any]) -> Iterator[Examples]:
        """Yield the examples of some units; UserError for a part that lacks one of its units."""
        for unit in units:
            path = self._parts.owner(unit.group).path
            while unit.id not in self._current.get(path, {}):
                if (shard := next(self._shards[path], None)) is None:
                    raise UserError(f"{path} lacks {unit.id}: its inputs differ; make it again", "parts")
                self._current[path] = shard
            yield self._current[path].pop(unit.id)

    def _read(self, store: FeatureStore) -> Iterator[dict[str, Examples]]:
        for index in range(store.next_shard):
            rows, states, units, left_out = store.read_shard(index)
            shard = {unit: Examples() for unit in units}
            for number, row in enumerate(rows):
                shard[self._source.place(span_name(row))[1]].add(row, [layers[number] for layers in states])
            for record in left_out:
                shard[self._source.place(record["id"])[1]].left_out.append(record)
            yield shard

    def take_vectors(self, names: Sequence[str], folder: Path) -> None:
        """Copy the word vectors of the parts, if they have any; UserError if they differ."""
        for name in names:
            files = {run.path: run.path / name for run in self._parts.runs}
            sums = {run: sha256(file) for run, file in files.items() if file.exists()}
            self._parts.of_one(f"word vectors ({name})", lambda run, sums=sums: sums.get(run.path))  # type: ignore[misc]
            if sums and not (folder / name).exists():
                write_bytes(folder / name, files[self._parts.runs[0].path].read_bytes())

    def join(self, name: str, folder: Path) -> None:
        """Concatenate the lines of a file of the parts, if they have it."""
        texts = [path.read_text("utf-8") for run in self._parts.runs if (path := run.path / name).exists()]
        if texts:
            write_text(folder / name, "".join(texts))


def _progress(labels: Counter[int], tokens: int, seconds: float, wrong: str) -> str:
    """Describe what a run has made so far, without what an earlier one made."""
    total = labels.total()
    share = f"{labels[0] / total:.2f} {wrong}" if total else "no label"
    return f"{total} labels, {total / seconds:.1f} labels/s, {tokens / seconds:.0f} tokens/s, {share}"


def first_example(rows: Sequence[Mapping[str, Any]], wrong: str) -> list[str]:
    """Describe an example in lines, of labelled tokens a marked one; ``wrong`` is the name of label 0."""
    row = next((row for row in rows if row.get("inside", 1) == 1), rows[0])
    label = {0: "right", 1: wrong}.get(row.get("token_wrong", 1 - row["correct"]), "undecided")
    values = (str(row.get(name, "")) for name in ("question", "text", "answer", "gold"))
    # Each on one line, without control characters.
    printable = ("".join(c if c.isprintable() else " " for c in value) for value in values)
    prompt, text, answer, gold = (" ".join(value.split()) for value in printable)
    return [
        "the first example:",
        f"  prompt: {'.. ' if len(prompt) > _SHOWN else ''}{prompt[-_SHOWN:]}",
        f"  model:  {text[:_SHOWN]}{' ..' if len(text) > _SHOWN else ''}",
        f"  label:  {label} "
        f"({answer[:_SHOWN] or 'no final answer'}{gold and f'; expected: {gold[:_SHOWN]}'})",
    ]


def _kinds(rows: Iterable[Mapping[str, Any]], by: Sequence[str]) -> dict[str, _Kind]:
    return {span_name(row): (tuple(row[column] for column in by), int(row["correct"])) for row in rows}


class Quotas:
    """Wanted and present numbers of examples of each label in every split.

    The argument ``wanted`` has the examples of each split, the attribute those of each label and part of it;
    UserError for a number that cannot be shared evenly. ``by`` and ``parts`` are as in :class:`.Source`.
    """

    def __init__(self, wanted: Mapping[str, int], *, by: Sequence[str], parts: int) -> None:
        self.by, self._kinds_of_split = tuple(by), 2 * parts
        self.wanted: dict[str, int] = {}
        for split, examples in wanted.items():
            if examples % self._kinds_of_split:
                message = f"balance_to.{split}={examples} must be a multiple of {self._kinds_of_split}"
                of_each = f" for each {by[-1]}" if parts > 1 else ""
                raise UserError(f"{message}, so that as many are right as wrong{of_each}")
            self.wanted[split] = examples // self._kinds_of_split
        self._found: Counter[_Kind] = Counter()

    def __bool__(self) -> bool:
        return bool(self.wanted)

    def count(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows of a shard."""
        self._found.update(_kinds(rows, self.by).values())

    def full(self, split: str) -> bool:
        """Tell whether a split has enough of each label in each part."""
        wanted = self.wanted.get(split, np.inf)
        enough = [n for (values, _), n in self._found.items() if values[0] == split and n >= wanted]
        return len(enough) == self._kinds_of_split


def balance(store: FeatureStore, *, by: Sequence[str], seed: int, quotas: Quotas | None = None) -> list[str]:
    """Drop examples until both labels are equally frequent, and no split exceeds its quota.

    Labels are balanced for each value of the columns ``by``. Rows of one span (pool "tokens") stay or go
    together, and dropped spans join those that the shards left out. Repeating changes nothing, so a killed
    run ends like an uninterrupted one. Of the more frequent label the spans with the smallest hashes stay. In
    a split with a quota the first spans stay, which are the same however many were made beyond them. Returns
    notes on labels that could not be balanced, and quotas that were not reached.
    """
    drawn: dict[tuple[str, ...], dict[int, array[int]]] = defaultdict(lambda: {0: array("Q"), 1: array("Q")})
    name = "span" if "span" in stored_columns(store) else "id"
    for table in store.tables([name, "correct", *by]):
        spans = table.drop_duplicates(name)[[name, "correct", *by]]
        for span, correct, *values in spans.itertuples(index=False):
            drawn[tuple(values)][correct].append(draw_key("balance", seed, span))
    below: dict[_Kind, int] = {}
    most: dict[_Kind, int] = {}
    notes = []
    for values, keys in sorted(drawn.items()):
        least = min(map(len, keys.values()))
        where = " ".join(values)
        if not least:
            kind = "right" if keys[1] else "wrong"
            notes.append(f"balance: all labels of {where} are {kind}, so they stay as they are")
            continue
        quota = quotas.wanted.get(values[0]) if quotas else None
        if quota is not None and least < quota:
            notes.append(f"balance_to: {where} has {least} of each label and not {quota}: raise the limit")
        for correct, hashes in keys.items():
            if quota is not None:
                most[values, correct] = min(least, quota)
            elif len(hashes) > least:
                below[values, correct] = int(np.sort(np.frombuffer(hashes, np.uint64))[least])
    taken: Counter[_Kind] = Counter()

    def reason(span: str, kind: _Kind) -> str:
        """Give the reason for dropping a span; called once for each, in the store's order."""
        taken[kind] += 1
        if kind in most:
            return _ENOUGH if taken[kind] > most[kind] else ""
        return _REASON if kind in below and draw_key("balance", seed, span) >= below[kind] else ""

    for index in range(store.next_shard if below or most else 0):
        rows, states, units, left_out = store.read_shard(index)
        reasons = {span: reason(span, kind) for span, kind in _kinds(rows, by).items()}
        if gone := [{"id": span, "reason": why} for span, why in reasons.items() if why]:
            keep = [number for number, row in enumerate(rows) if not reasons[span_name(row)]]
            left, thinned = [rows[i] for i in keep], [layers[keep] for layers in states]
            store.write_shard(index, left, *thinned, units=units, left_out=[*left_out, *gone])
    return notes


def quotas_of(source: Source) -> Quotas:
    """Make the quotas of the option ``balance_to`` (UserError: numbers that cannot be shared evenly)."""
    return Quotas(source.options.balance_to or {}, by=source.balance_by, parts=source.parts)
