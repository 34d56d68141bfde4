"""Interface of a source of labelled examples, and the balancing of labels in a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from probers.capture.pooling import pool_tokens, token_pool
from probers.capture.pooling import span_of as span_of_tokens
from probers.checksums import draw_key
from probers.engine.model import CausalLM
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import SPLITS, Feature, Generation, Needs, Pool, UserError
from probers.uncertainty import rind_scores, signals, signals_before, surprise

from ..audit import draw, draw_undecided, sample_html
from ..audit.sampling import stored_columns
from ..settings import Datagen


@dataclass(slots=True)
class Examples:
    """Rows for the store with their states, a (layers, width) array of each feature, and work without rows.

    ``tokens`` counts the tokens that the model wrote for them.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    states: list[Sequence[np.ndarray]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0

    def add(self, row: dict[str, Any], states: Sequence[np.ndarray]) -> None:
        self.rows.append(row)
        self.states.append(states)

    def leave_out(self, id: str, reason: str, **evidence: str) -> None:
        """Note work that gave no row; reasons are counted by their words before a colon."""
        self.left_out.append({"id": id, "reason": reason, **evidence})

    def extend(self, more: Examples) -> None:
        self.rows += more.rows
        self.states += more.states
        self.left_out += more.left_out
        self.tokens += more.tokens

    def labels(self) -> dict[str, int | None]:
        """Map the id of each span to its label, None for spans left out."""
        return {span_of(row): row["correct"] for row in self.rows} | {o["id"]: None for o in self.left_out}

    def sort(self, names: Sequence[str]) -> None:
        """Sort rows by the place of their spans' ids in ``names``."""
        place = {name: i for i, name in enumerate(names)}
        order = sorted(range(len(self.rows)), key=lambda i: place[span_of(self.rows[i])])
        self.rows = [self.rows[i] for i in order]
        self.states = [self.states[i] for i in order]
        self.left_out.sort(key=lambda found: place[found["id"]])


#: Files of word vectors trained on the run's articles, and of their checksum.
VECTORS = ("vectors.bin", "vectors.json")
#: Journal of the judged answers of ``--source judged``, in the order in which they are made.
JOURNAL = "judged.unfinished.jsonl"
#: Makes the builder from the model (None for a merge, which has the examples), needs and the run's folder.
Make = Callable[[CausalLM | None, Needs, Path], "LabelBuilder"]


class Prepared(NamedTuple):
    """Source with its inputs read; its builder is still to be made.

    ``files`` are its inputs and ``record`` is further data; a resumed run must find both unchanged.
    """

    make: Make
    files: Sequence[str]
    record: Mapping[str, Any] = {}


#: Reasons for leaving out a prompt that the model skipped, and a question without a passage that fits.
TOO_LONG = "too long: the prompt exceeds the model's context"
NO_ROOM = "no passage fits: the context is too short for any that was found"


def span_of(row: Mapping[str, Any]) -> str:
    """Name the unit in which a row is counted: its span, which rows of pool "tokens" share, or itself."""
    return str(row.get("span", row["id"]))


class LabelBuilder(ABC):
    """Source of labelled examples.

    Attributes:
        item_name, unit_name: names of an item of the progress bar, and of a piece of work: "article", "cut".
        wrong_name: name of the label 0.
        pools: poolings for which it has states.
        speaks: True if its texts may be in another language than English (option ``language``).
        position: tokens that are read, for the FeatureSpec.
        balance_by: columns; labels are balanced for each of their values, "split" first.
        parts: number of values of the other columns within a split.
        lm: None if the examples exist already and :meth:`build` is not called.
        prompt: prompt template; a chat prompt is bound to the model's own template.
    """

    item_name: ClassVar[str]
    unit_name: ClassVar[str]
    wrong_name: ClassVar[str]
    pools: ClassVar[tuple[str, ...]]
    speaks: ClassVar[bool] = False
    position: str
    balance_by: ClassVar[tuple[str, ...]]
    parts: ClassVar[int]
    lm: CausalLM | None
    prompt: PromptTemplate
    _read = 0

    def __post_init__(self) -> None:
        if self.lm is not None:
            self.prompt = self.prompt.bind(self.lm.tokenizer)

    @classmethod
    @abstractmethod
    def prepare(cls, settings: Datagen) -> Prepared:
        """Check the settings and read the inputs, before any model is loaded (UserError)."""

    @property
    def items(self) -> int:
        """Number of items read so far, which :meth:`units` counts."""
        return self._read

    @property
    @abstractmethod
    def total(self) -> int | None:
        """Largest possible number of items, None if unknown."""

    def rows(self) -> int | None:
        """Estimate the rows of the store; None if only the model's texts show their number."""
        return None

    @abstractmethod
    def units(self) -> Iterator[Any]:
        """Yield the pieces of work once, in an order that depends on the configuration only.

        Each has ``group``, ``split``, and an ``id`` by which finished work is known.
        """

    @abstractmethod
    def names(self, units: Sequence[Any]) -> list[str]:
        """List the ids of all spans that may come from some units, in the order of the store."""

    def unit_of(self, name: str) -> str:
        """Name the piece of work that a span of :meth:`names` comes from, for the progress bar."""
        return name

    @abstractmethod
    def build(self, units: Sequence[Any], known: Mapping[str, int | None]) -> Iterator[Examples]:
        """Generate for some units and label the results, batch by batch as the model makes them.

        Spans with labels in ``known`` (:meth:`Examples.labels`) are not made again; the others come out the
        same.
        """

    def conclude(self, store: FeatureStore) -> list[str]:
        """Set labels that depend on all examples, once these are made; return notes. Repeating is safe."""
        return []

    def page(self, store: FeatureStore, about: Mapping[str, str], seed: int) -> str:
        """Make the page of cases to read before the labels are used."""
        undecided = draw_undecided(store.left_out(), seed=seed)
        return sample_html(draw(store, seed=seed), about=about, undecided=undecided)

    @abstractmethod
    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Make figures for the manifest and lines to print, from all rows and the work left out."""


def span_needs(needs: Needs, *, attention: bool = True) -> Needs:
    """Choose needs of a generation from which the features of ``needs`` can be computed for any span."""
    features = tuple(dict.fromkeys(_kept(needs).values()))
    return recorded_needs(replace(needs, features=features), attention=attention)


def _kept(needs: Needs) -> dict[Feature, Feature]:
    """Map each feature to the recorded one; features read at the same places are recorded once for all."""

    def places(feature: Feature) -> tuple[Any, ...]:
        return feature.layers, feature.site, feature.of_mind

    alike: dict[tuple[Any, ...], list[Pool]] = {}
    for feature in needs.features:
        alike.setdefault(places(feature), []).append(feature.pool)
    return {f: replace(f, pool=token_pool(*alike[places(f)])) for f in needs.features}


def span_rows(
    generation: Generation, tokens: Sequence[int], needs: Needs
) -> Iterator[tuple[int, dict[str, Any], list[np.ndarray]]]:
    """Yield one row for ascending ``tokens``, or with pool "tokens" (of all features or none) one for each.

    A row is the token's index in the span (-1 when pooled), its columns with ``n_tokens`` and the signals of
    the whole span and of the moment before it, and for each feature states (layers, d), or (1, 2 d) for
    "mind". The generation was recorded with :func:`span_needs`.
    """
    spans = [
        (feature.pool, span_of_tokens(generation.states[kept], tokens, kept.pool, feature.pool))
        for feature, kept in _kept(needs).items()
    ]
    if needs.features[0].pool != "tokens":
        yield -1, recorded(generation, tokens), [pool_tokens(span, pool) for pool, span in spans]
        return
    for index, token in enumerate(tokens):
        columns = recorded(generation, [token], first=tokens[0]) | {"n_tokens": len(tokens)}
        yield index, columns, [span[index] for _, span in spans]


def token_states(generation: Generation, needs: Needs) -> list[np.ndarray]:
    """Return states (n, layers, d) of every token, for each feature of pool "tokens"."""
    everything = range(len(generation.token_ids))
    return [
        span_of_tokens(generation.states[kept], everything, kept.pool, feature.pool)
        for feature, kept in _kept(needs).items()
    ]


def recorded_needs(needs: Needs, *, attention: bool = True) -> Needs:
    """Choose the needs of :func:`recorded`; without ``attention`` its signals are missing."""
    return replace(needs, attention=attention, top=True)


def recorded(
    generation: Generation, tokens: Sequence[int] | None = None, *, first: int | None = None
) -> dict[str, Any]:
    """Make the columns that describe a generation itself: its text, length and token signals.

    The signals are those of the ascending ``tokens``, by default of all, and of the moment before ``first``,
    by default the first of them. ``surprise`` is of the whole text. The generation was recorded with
    :func:`recorded_needs`.
    """
    part = list(range(len(generation.token_ids)) if tokens is None else tokens)
    if first is None:
        first = part[0] if part else 0
    ids, offsets = tuple(generation.token_ids[i] for i in part), tuple(generation.offsets[i] for i in part)
    logprobs, entropies = generation.logprobs[part], generation.entropies[part]
    span = replace(generation, token_ids=ids, offsets=offsets, logprobs=logprobs, entropies=entropies)
    rind = None
    if generation.needs.attention:
        scores = rind_scores(generation, variant="paper").scores
        rind = float(max(scores[i] for i in part))
    return {
        "text": generation.text, "n_tokens": len(span.token_ids), **signals(span), "rind_max": rind,
        **signals_before(generation, first),
        "surprise": surprise(generation.logprobs, generation.entropies),
    }  # fmt: skip


_REASON = "balance: more of its label than of the other"
_ENOUGH = "balance: its split has enough of its label"

#: Values of the columns that a span is balanced by, and its label.
_Kind = tuple[tuple[str, ...], int]


def _kinds(rows: Iterable[Mapping[str, Any]], by: Sequence[str]) -> dict[str, _Kind]:
    return {span_of(row): (tuple(row[column] for column in by), int(row["correct"])) for row in rows}


class Quotas:
    """Wanted and present numbers of examples of each label in every split.

    ``wanted`` has examples by split, of both labels and all parts together; UserError for a number that
    cannot be shared evenly. ``by`` and ``parts`` are as in :class:`LabelBuilder`.
    """

    def __init__(self, wanted: Mapping[str, int], *, by: Sequence[str], parts: int) -> None:
        self.by, self._kinds_of_split = tuple(by), 2 * parts
        self._wanted: dict[str, int] = {}
        for split, examples in wanted.items():
            if examples % self._kinds_of_split:
                why = f"so that as many are right as wrong{f' for each {by[-1]}' if parts > 1 else ''}"
                what = f"balance_to.{split}={examples} must be a multiple of {self._kinds_of_split}"
                raise UserError(f"{what}, {why}")
            self._wanted[split] = examples // self._kinds_of_split
        self._found: Counter[_Kind] = Counter()

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def of(self, split: str) -> int | None:
        """Return the examples wanted of each label and part of a split; None without a quota."""
        return self._wanted.get(split)

    def count(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Count the rows of a shard."""
        self._found.update(_kinds(rows, self.by).values())

    def full(self, split: str) -> bool:
        """Tell whether a split has enough of each label in each part."""
        wanted = self._wanted.get(split, np.inf)
        enough = [n for (values, _), n in self._found.items() if values[0] == split and n >= wanted]
        return len(enough) == self._kinds_of_split

    @property
    def all_full(self) -> bool:
        """Tell whether no split wants more examples."""
        return all(map(self.full, SPLITS))


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
        quota = quotas.of(values[0]) if quotas else None
        if quota is not None and least < quota:
            notes.append(f"balance_to: {where} has {least} of each label and not {quota}: raise the limit")
        for correct, found in keys.items():
            if quota is not None:
                most[values, correct] = min(least, quota)
            elif len(found) > least:
                below[values, correct] = int(np.sort(np.frombuffer(found, np.uint64))[least])
    taken: Counter[_Kind] = Counter()

    def reason(span: str, kind: _Kind) -> str:
        """Give the reason for dropping a span; called once for each, in the store's order."""
        taken[kind] += 1
        if kind in most:
            return _ENOUGH if taken[kind] > most[kind] else ""
        return _REASON if kind in below and draw_key("balance", seed, span) >= below[kind] else ""

    for index in range(store.next_shard if below or most else 0):
        _thin(store, index, by, reason)
    return notes


def _thin(store: FeatureStore, index: int, by: Sequence[str], reason: Callable[[str, _Kind], str]) -> None:
    """Write one shard without the spans that have a reason to go."""
    rows, states, units, left_out = store.read_shard(index)
    reasons = {span: reason(span, kind) for span, kind in _kinds(rows, by).items()}
    if gone := [{"id": span, "reason": why} for span, why in reasons.items() if why]:
        keep = [number for number, row in enumerate(rows) if not reasons[span_of(row)]]
        kept, thinned = [rows[i] for i in keep], [each[keep] for each in states]
        store.write_shard(index, kept, *thinned, units=units, left_out=[*left_out, *gone])
