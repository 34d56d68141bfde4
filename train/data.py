"""Training data of a prober: labelled texts with their splits, and their hidden states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probers.capture.recorder import as_places
from probers.checksums import draw_key
from probers.data.splits import Seen, deal
from probers.heads import ProbeHead, head_name
from probers.options import shown
from probers.store.joined import Stored
from probers.store.spec import FP8, BesideSpec, FeatureSpec, parse_layers, places_for, ranges
from probers.types import SPLITS, Beside, Site, UserError

#: Rows read at once where their number does not matter to the result.
CHUNK = 1024
#: Values of the states that are copied to single precision at once, where rows are wide.
_VALUES = 4 << 20
#: Split of the texts on which a stack's weights are fitted.
WEIGHTS = "weights"

#: How a signal of a span's tokens becomes the span's; every other column is the same for all of them.
_OVER_TOKENS = {
    "mean_entropy": "mean", "max_entropy": "max", "min_prob": "min", "mean_logprob": "mean",
    "rind_max": "max",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled texts of a store, one row of ``table`` each, in its order; ``rows`` of each split.

    ``members`` are the rows in the store of each text's tokens, in order; None for pooled states. A stack's
    weights are fitted on a split of their own; ``known`` is what its probers have seen.
    """

    table: pd.DataFrame
    rows: dict[str, np.ndarray]
    members: tuple[np.ndarray, ...] | None = None
    known: Seen = Seen({})  # noqa: RUF009 (frozen)

    @property
    def inside(self) -> np.ndarray | None:
        """(N,) true for marked spans, false for what lies outside of them; None for other stores."""
        return self.table["inside"].to_numpy() == 1 if "inside" in self.table else None

    @property
    def wrong(self) -> np.ndarray:
        """Labels (N,): 1 where the text is wrong or hallucinated."""
        return 1 - self.table["correct"].to_numpy()

    @property
    def read(self) -> bool:
        """True for texts of others, which the model has read and not written."""
        return "condition" in self.table and bool((self.table["condition"] == "read").all())

    @property
    def text_of(self) -> np.ndarray:
        """Number of the text of each row of the store."""
        if self.members is None:
            return np.arange(len(self.table))
        found = np.empty(sum(map(len, self.members)), dtype=np.int64)
        for text, rows in enumerate(self.members):
            found[rows] = text
        return found

    def windows(self, before: int) -> list[np.ndarray]:
        """Rows of the store from up to ``before`` tokens ahead of each text to its end, for stores of tokens.

        A marked span reads on in the text that it lies in.
        """
        assert self.members is not None
        if "mark" not in self.table:
            return list(self.members)
        places = self.table.groupby("text_id", sort=False).indices
        found: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(self.members)
        for spans in places.values():
            rows = np.sort(np.concatenate([self.members[span] for span in spans]))
            for span in spans:
                first, last = np.searchsorted(rows, self.members[span][[0, -1]])
                found[span] = rows[max(0, first - before) : last + 1]
        return found

    def column(self, name: str, split: str) -> np.ndarray:
        return self.table[name].to_numpy()[self.rows[split]]

    def groups(self, split: str) -> np.ndarray:
        """Groups of a split, each once, in the order of the store."""
        return np.asarray(pd.unique(self.table["group"].iloc[self.rows[split]]))

    def training_part(self, texts: int, seed: int) -> Examples:
        """Limit the training texts to ``texts`` at most, and one group at least.

        Whole groups are drawn by ``seed``, and parts are nested. Groups alike in data set and in numbers of
        right and wrong texts are spread evenly over the draw: every part is as balanced as the whole.
        """
        of = self.column("group", "train").astype(str)
        dataset = self.column("dataset", "train") if "dataset" in self.table else ""
        table = pd.DataFrame({"group": of, "dataset": dataset, "correct": self.column("correct", "train")})
        groups = table.groupby("group").agg(
            dataset=("dataset", "first"), right=("correct", "sum"), texts=("correct", "size")
        )
        places: dict[str, float] = {}
        for kind, alike in groups.groupby(list(groups)):
            # Where its first group comes is drawn too: else the rare kinds would all come at once.
            start = draw_key("kind", seed, str(tuple(map(str, kind)))) / 2**64
            names = sorted(map(str, alike.index), key=lambda name: draw_key("share", seed, name))
            places |= {name: (start + i) / len(names) for i, name in enumerate(names)}
        order = sorted(places, key=lambda name: (places[name], name))
        fitting = np.searchsorted(np.cumsum(groups["texts"][order]), texts, side="right")
        kept = set(order[: max(1, int(fitting))])
        return replace(self, rows={**self.rows, "train": self.rows["train"][[g in kept for g in of]]})

    def seen(self) -> Seen:
        """Groups and questions of each split, for warnings about questions asked later."""
        found = {split: self._asked(rows) for split, rows in self.rows.items()}
        found["train"] += found.pop(WEIGHTS, [])
        return self.known | Seen.of(found)

    def sides(self, seen: Seen, split: str) -> list[str]:
        """Find on which side of what something has seen each text of a split is, "" for none."""
        return [seen.side(*asked) for asked in self._asked(self.rows[split])]

    def _asked(self, rows: np.ndarray) -> list[tuple[str, str, str]]:
        """Data set, group, and question or text of some texts."""
        part = self.table.iloc[rows]
        names = ("dataset", "group", "question", "text")
        columns = [part[name] if name in part else [""] * len(part) for name in names]
        return [(dataset, group, asked or text) for dataset, group, asked, text in zip(*columns, strict=True)]

    def split_record(self) -> dict[str, list[str]]:
        """Groups of each split, as ``splits.json`` has them."""
        return {split: sorted(map(str, self.groups(split))) for split in self.rows}


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """Choice of the training, validation and test texts, as of the settings of the same names.

    ``split`` is "store" for the store's own, or three shares, by which its groups are dealt anew.
    """

    split: str | Sequence[float] = "store"
    train_on: Sequence[str] = ()
    test_on: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        shares = () if isinstance(self.split, str) else self.split
        if self.split == "store" or (len(shares) == 3 and min(shares) > 0 and abs(sum(shares) - 1) <= 1e-6):
            return
        shown = "the shares of train, validation and test, like [0.6,0.2,0.2]"
        raise UserError(f"split={self.split} is not understood: give store, or {shown}")

    def assign(self, texts: pd.DataFrame, what: str) -> np.ndarray:
        """Name the split (N,) of each text; "" for one that is left out."""
        split = texts["split"].to_numpy(dtype=object)
        if not isinstance(self.split, str):
            split = self._deal(texts["group"].to_numpy(), self.split, what)
        if not self.train_on and not self.test_on:
            return split
        if "dataset" not in texts:
            why = "has no column dataset: leave out train_on and test_on"
            raise UserError(f"{what} {why}", code="unsupported")
        sets = texts["dataset"].to_numpy(dtype=object)
        known = sorted(set(sets))
        for key, names in (("train_on", self.train_on), ("test_on", self.test_on)):
            if odd := [name for name in names if name not in known]:
                raise UserError(f"{key} names {odd[0]!r}, and {what} has {', '.join(map(repr, known))}")
        train_on = set(self.train_on) or set(known) - set(self.test_on)
        test_on = set(self.test_on) or train_on
        kept = np.where(split == "test", np.isin(sets, list(test_on)), np.isin(sets, list(train_on)))
        return np.where(kept, split, "")

    def _deal(self, groups: np.ndarray, given: Sequence[float], what: str) -> np.ndarray:
        shares = list(map(float, given))
        names = sorted(set(groups), key=lambda g: draw_key("split", self.seed, str(g)))
        of = deal(names, shares)
        if len(set(of.values())) < len(SPLITS):
            few = f"{len(names)} groups, too few for three splits"
            raise UserError(f"split={shares}: {what} has {few} of these shares", code="labels")
        return np.array([of[g] for g in groups], dtype=object)


def load_examples(stores: Sequence[Stored], request: SplitRequest | None = None) -> Examples:
    """Load the texts of finished stores, one per site; without a request, in the splits of the store.

    UserError for stores of other texts, a group in two splits, or a split that is empty or of one class.
    """
    first = stores[0]
    table, members = as_texts(first)
    for other in stores[1:]:
        texts, of = as_texts(other)
        same = table[["id", "correct", "text"]].equals(texts[["id", "correct", "text"]])
        if not same or (members is None) != (of is None):
            why = "stores of several sites must be made by the same command but for site"
            raise UserError(f"data={other.path} holds other texts than {first.path}: {why}", code="mismatch")
    what = f"data={first.path}"
    split = (request or SplitRequest()).assign(table, what)
    if "token_wrong" in table:  # undecided ones are of no use; what nobody judged is trained on as right
        unknown = (table["token_wrong"] < 0) | ((table["inside"] < 0) & (split != "train"))
        split = np.where(unknown, "", split)
    table = table.assign(split=split)
    rows = {name: np.flatnonzero(split == name) for name in SPLITS}
    _check_splits(table[split != ""], what)
    return Examples(table, rows, members)


def as_texts(store: Stored) -> tuple[pd.DataFrame, tuple[np.ndarray, ...] | None]:
    """Tabulate a store with one row per text, and its ``members``; with pool "tokens" a span is a text."""
    table = store.table()
    if store.spec.pool != "tokens":
        return table, None
    if "mark" in table:  # labelled tokens: a span is a mark, or a run of tokens outside of all marks
        spans = table["span"] + "#" + table["mark"].astype(str)
        table = table.assign(text_id=table["span"], span=spans, correct=1 - table["token_wrong"].abs())
    number = pd.factorize(table["span"])[0]
    order = np.lexsort((table["token"].to_numpy(), number))
    members = tuple(np.split(order, np.flatnonzero(np.diff(number[order])) + 1))
    whole = table.groupby(number, sort=False).agg({k: _OVER_TOKENS.get(str(k), "first") for k in table})
    return whole.assign(id=whole["span"]).drop(columns="token").reset_index(drop=True), members


def _check_splits(table: pd.DataFrame, what: str) -> None:
    """Refuse groups in two splits, and splits without both classes."""
    sides = table.groupby("group")["split"].unique()
    leaks = sides[sides.map(len) > 1]
    if len(leaks):
        more = f" (and {len(leaks) - 1} more groups are)" if len(leaks) > 1 else ""
        where = f"the group {leaks.index[0]!r} is in {' and '.join(sorted(leaks.iloc[0]))}{more}"
        anew = "deal the groups anew with split=[0.6,0.2,0.2]"
        raise UserError(f"{what} leaks: {where}; {anew}", code="overlap")
    for split in SPLITS:
        labels = table["correct"].to_numpy()[table["split"] == split]
        if not len(labels):
            fix = "deal its groups anew with split=[0.6,0.2,0.2], or make it with a higher limit"
            raise UserError(f"{what} has no {split} examples: {fix}", code="labels")
        if labels.min() == labels.max():
            few = f"only {'right' if labels[0] else 'wrong'} texts among its {len(labels)} {split} examples"
            fix = "a detector needs both kinds, make it with a higher limit or another label"
            raise UserError(f"{what} has {few}: {fix}", code="labels")


class Column(NamedTuple):
    """Source of what a head reads of a text: a site in the block, and the number of the block.

    For heads of several layers ``layer`` is the last of them, and ``below`` are the others. ``beside`` are
    the places of what they read beside the states, each a column of its site, which the layer numbers from 1.
    """

    site: Site
    layer: int
    below: tuple[int, ...] = ()
    beside: tuple[tuple[Beside, int], ...] = ()

    @classmethod
    def of(cls, site: Site, layers: Sequence[int], beside: Sequence[tuple[Beside, int]] = ()) -> Column:
        """Take several layers of a site as one column."""
        return cls(site, layers[-1], tuple(layers[:-1]), tuple(beside))

    @property
    def layers(self) -> tuple[int, ...]:
        return (*self.below, self.layer)

    @property
    def places(self) -> list[Column]:
        """Columns that a head reads: each layer alone, and what is beside them."""
        return [Column(site, k) for site, k in (*((self.site, k) for k in self.layers), *self.beside)]

    def __str__(self) -> str:
        named = f"layers {ranges(self.layers)}" if self.below else f"layer {self.layer}"
        named = named if self.site == "resid_post" else f"{self.site} {named.partition(' ')[2]}"
        return " + ".join([named, *dict.fromkeys(kind for kind, _ in self.beside)])


class Padded(NamedTuple):
    """States (n, T, columns, d) of n texts' tokens, padded with zeros; mask (n, T) is true at tokens.

    ``own`` (n, T) is true at the tokens that are judged; the others are read before them.
    """

    states: Tensor
    mask: Tensor
    own: Tensor


class StoreStates:
    """States of stores of the same rows, one per site, read row by row from their memory-mapped files.

    Columns are grouped in the order of the stores; after them come the places of all stores ``beside`` them.
    """

    def __init__(
        self, stores: Sequence[Stored], columns: Sequence[Column], beside: Sequence[Stored] = ()
    ) -> None:
        wanted = [(store, [c.layer for c in columns if c.site == store.spec.site]) for store in stores]
        self._readers = [store.reader(layers) for store, layers in wanted if layers]
        self._beside = [store.reader(store.spec.layers) for store in beside]
        rows, _, width = self._readers[0].shape
        places = sum(places_for(store.spec.width, width) for store in beside)
        self.shape = (rows, len(columns) + places, width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Tensor:
        numbers = rows.numpy() if isinstance(rows, Tensor) else rows
        parts = [reader[numbers] for reader in self._readers]
        parts += [as_places(reader[numbers], self.shape[-1]) for reader in self._beside]
        found = [torch.from_numpy(part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)


#: States (N, columns, d) that give some rows at a time, by a slice or by their numbers.
States: TypeAlias = Tensor | StoreStates


class TokenStates:
    """States of whole texts, token by token; ``members`` are the row numbers of each text in ``states``.

    ``windows`` are those of each text with what is read before it; None is nothing. ``shape`` is
    (texts, tokens of the longest window, columns, d).
    """

    def __init__(
        self, states: States, members: Sequence[np.ndarray], windows: Sequence[np.ndarray] | None = None
    ) -> None:
        self._states, self._members, self._windows = states, members, windows or members
        self.shape = (len(members), max(map(len, self._windows), default=0), *states.shape[1:])

    def __getitem__(self, rows: Any) -> Padded:
        # A tensor of one number would be taken for the number.
        chosen = np.arange(len(self._members))[rows.numpy() if isinstance(rows, Tensor) else rows]
        windows = [self._windows[i] for i in chosen]
        own = [np.isin(rows, self._members[i], kind="sort") for i, rows in zip(chosen, windows, strict=True)]
        sizes = list(map(len, windows))
        found = self._states[torch.from_numpy(np.concatenate(windows))]
        mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
        judged = pad_sequence(list(map(torch.from_numpy, own)), batch_first=True)
        return Padded(pad_sequence(found.split(sizes), batch_first=True), mask, judged)


class Inputs(NamedTuple):
    """N items that heads score: rows of the stores, or whole texts; text_of (N,) numbers the text of each."""

    states: States | TokenStates
    text_of: np.ndarray

    @property
    def at_once(self) -> int:
        """Number of items to score at once."""
        return at_once(self.states) if isinstance(self.states, TokenStates) else CHUNK


def at_once(states: States | TokenStates) -> int:
    """Number of items to read at once, so that their memory is bounded."""
    return max(1, min(CHUNK, _VALUES // math.prod(states.shape[1:])))


@dataclass(frozen=True, slots=True)
class Dataset:
    """Examples, and states (rows of the stores, columns, d) for training and measuring heads.

    Columns are the requested layers by site, and the embedding output as layer 0 if stored. After them the
    states have the places of what is ``beside`` them.
    """

    examples: Examples
    states: States
    columns: Sequence[Column]
    specs: Mapping[Site, FeatureSpec]
    beside: tuple[BesideSpec, ...] = ()

    @classmethod
    def load(
        cls, stores: Sequence[Stored], layer: object = "all", texts: SplitRequest | Examples | None = None,
        beside: Sequence[Stored] = (),
    ) -> Dataset:  # fmt: skip
        """Load texts with the states of layers, as :func:`load_examples` and :func:`layers_to_train`.

        ``texts`` are those of the stores if they are loaded already, or how these are split. Stores
        ``beside`` the others are of lookback ratios and the like, for heads of several layers.
        """
        examples = texts if isinstance(texts, Examples) else load_examples([*stores, *beside], texts)
        columns: list[Column] = []
        for store in stores:
            site, wanted = store.spec.site, layers_to_train(layer, store.spec)
            if 0 in store.spec.layers and not any(column.layer == 0 for column in columns):
                wanted = (0, *wanted)
            columns += [Column(site, k) for k in wanted]
        specs = {store.spec.site: store.spec for store in stores}
        formats = {store.spec.dtype for store in (*stores, *beside)}
        if beside and (len(formats) > 1 or FP8 in formats):
            told = f"beside: the states are stored as {' and '.join(sorted(formats))}"
            raise UserError(f"{told}: give stores of one format, and not fp8", "unsupported")
        read = tuple(BesideSpec(cast(Beside, store.spec.site), store.spec.width) for store in beside)
        return cls(examples, StoreStates(stores, columns, beside), columns, specs, read)

    @property
    def beside_places(self) -> list[tuple[Beside, int]]:
        """Each place of what is beside the states: its kind, and its number from 1."""
        width = self.states.shape[-1]
        return [(each.kind, n) for each in self.beside for n in range(1, places_for(each.width, width) + 1)]

    @property
    def sources(self) -> list[Column]:
        """Source of each place of the states."""
        return [*self.columns, *(Column(kind, number) for kind, number in self.beside_places)]

    def places(self, columns: Sequence[Column], *, joint: bool = False) -> Tensor:
        """Positions (H,) of the heads' columns in the states; (H, L) for ``joint`` heads."""
        sources = self.sources
        found = [[sources.index(place) for place in column.places] for column in columns]
        return torch.tensor(found if joint else [place for (place,) in found])

    def inputs(self, head: ProbeHead, loss: str = "ce") -> Inputs:
        """Select inputs of such heads.

        UserError where they need tokens and the states are pooled, or cannot read what is beside the states.
        """
        if self.beside and not head.beside:
            told = f"beside={shown([each.kind for each in self.beside])} is read by heads that join layers"
            raise UserError(f"{told}, as concat and sequence: head={head_name(head)} cannot", "unsupported")
        if not (head.tokens or head.causal) and loss != "span_max":
            return Inputs(self.states, self.examples.text_of)
        members = self.examples.members
        if members is None:
            what = f"head={head_name(head)}" if head.tokens or head.causal else f"loss={loss}"
            why = "reads the states of every token, and the store has pooled ones: make one with pool=tokens"
            raise UserError(f"{what} {why}", code="mismatch")
        windows = self.examples.windows(head.reach - 1) if head.causal else None
        return Inputs(TokenStates(self.states, members, windows), np.arange(len(members)))


def layers_to_train(value: Any, spec: FeatureSpec) -> tuple[int, ...]:
    """Parse the requested layers: "all" but 0, one number, a range "1-20", or a list of numbers."""
    if isinstance(value, str) and (ends := re.fullmatch(r"(\d+)-(\d+)", value)):
        if int(ends[1]) > int(ends[2]):
            raise UserError(f"layer={value} names no layer: give the smaller number first", code="layers")
        value = list(range(int(ends[1]), int(ends[2]) + 1))
    wanted = parse_layers(value, {"all": [k for k in spec.layers if k > 0]}, "layer")
    if not wanted and value == "all":
        why = "the store holds the embedding output only, make it with layers=all"
        raise UserError(f"layer=all: {why}", code="layers")
    if not wanted:
        raise UserError("layer=[] names no layer: give a number, a list like [6,8,10], or all", code="layers")
    if 0 in wanted:
        why = "the embedding output, which is trained as a control anyway"
        raise UserError(f"layer=0 is {why}: choose from 1 to {spec.model.layers}", code="layers")
    return spec.select(wanted).layers
