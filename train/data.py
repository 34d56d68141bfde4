"""Hidden states of labelled texts, as heads read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probers.evaluation.metrics import auroc
from probers.heads import ProbeHead, head_name
from probers.model.recorder import as_places
from probers.options import shown
from probers.prober.domain import Domain
from probers.signals.grounding import REMEMBERED, Pointer
from probers.store.joined import Stored
from probers.store.spec import BesideSpec, FeatureSpec, parse_layers, places_for, ranges
from probers.types import Beside, Site, UserError

from .examples import Examples, SplitRequest, load_examples
from .settings import SPAN_LOSSES

#: Rows read at once where their number does not matter to the result.
CHUNK = 1024
#: Values of the states that are copied to single precision at once, where rows are wide.
_VALUES = 4 << 20


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
        noun = self.site if self.site != "resid_post" else "layers" if self.below else "layer"
        named = f"{noun} {ranges(self.layers) if self.below else self.layer}"
        return " + ".join([named, *dict.fromkeys(kind for kind, _ in self.beside)])


class Padded(NamedTuple):
    """States (n, T, columns, d) of n texts' tokens, padded with zeros; mask (n, T) is true at tokens.

    ``judged`` (n, T) is true at the tokens that are judged; the others are read before them.
    """

    states: Tensor
    mask: Tensor
    judged: Tensor


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
        return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


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
        pairs = zip(chosen, windows, strict=True)
        masks = [np.isin(window, self._members[i], kind="sort") for i, window in pairs]
        sizes = list(map(len, windows))
        states = self._states[torch.from_numpy(np.concatenate(windows))].split(sizes)
        mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
        judged = pad_sequence(list(map(torch.from_numpy, masks)), batch_first=True)
        return Padded(pad_sequence(states, batch_first=True), mask, judged)


class Inputs(NamedTuple):
    """N items that heads score: rows of the stores, or whole texts; text_of (N,) numbers the text of each."""

    states: States | TokenStates
    text_of: np.ndarray


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
        if beside and len(formats := {store.spec.dtype for store in (*stores, *beside)}) > 1:
            kinds = " and ".join(sorted(formats))
            raise UserError(f"beside: states are stored as {kinds}: give stores of one format", "unsupported")
        read = tuple(BesideSpec(cast(Beside, store.spec.site), store.spec.width) for store in beside)
        return cls(examples, StoreStates(stores, columns, beside), columns, specs, read)

    @property
    def beside_places(self) -> list[tuple[Beside, int]]:
        """Each place of what is beside the states: its kind, and its number from 1."""
        width = self.states.shape[-1]
        return [(spec.kind, n) for spec in self.beside for n in range(1, places_for(spec.width, width) + 1)]

    @property
    def sources(self) -> list[Column]:
        """Source of each place of the states."""
        return [*self.columns, *(Column(kind, number) for kind, number in self.beside_places)]

    def places(self, columns: Sequence[Column], *, joint: bool = False) -> Tensor:
        """Positions (H,) of the heads' columns in the states; (H, L) for ``joint`` heads."""
        positions = [[self.sources.index(place) for place in column.places] for column in columns]
        return torch.tensor(positions if joint else [position for (position,) in positions])

    def inputs(self, head: ProbeHead, loss: str = "ce") -> Inputs:
        """Select inputs of such heads; UserError where the states are pooled, or ``beside`` is not read."""
        if self.beside and not head.beside:
            kinds, fix = shown([spec.kind for spec in self.beside]), "give one that joins layers, as concat"
            raise UserError(f"beside={kinds}: head={head_name(head)} cannot read it: {fix}", "unsupported")
        if not (head.tokens or head.causal) and loss not in SPAN_LOSSES:
            return Inputs(self.states, self.examples.text_of)
        if (members := self.examples.members) is None:
            what = f"head={head_name(head)}" if head.tokens or head.causal else f"loss={loss}"
            raise UserError(
                f"{what} reads the states of every token: give a store of pool=tokens", "mismatch"
            )
        windows = self.examples.windows(head.reach - 1) if head.causal else None
        return Inputs(TokenStates(self.states, members, windows), np.arange(len(members)))


def layers_to_train(value: Any, spec: FeatureSpec) -> tuple[int, ...]:
    """Parse the requested layers: "all" but 0, one number, a range "1-20", or a list of numbers."""
    layers = value
    if isinstance(value, str) and (ends := re.fullmatch(r"(\d+)-(\d+)", value)):
        layers = list(range(int(ends[1]), int(ends[2]) + 1))
    wanted = parse_layers(layers, {"all": [k for k in spec.layers if k > 0]}, "layer")
    if not wanted and value == "all":
        why = "the store holds the embedding output alone: make one with layers=all"
        raise UserError(f"layer=all: {why}", code="layers")
    if wanted and 0 not in wanted:
        return spec.select(wanted).layers
    problem = (
        "0 is the embedding output, which is trained as a control anyway" if wanted else "names no layer"
    )
    fix = f"give all, a number from 1 to {spec.model.layers}, a range like 6-10, or a list like [6,8,10]"
    raise UserError(f"layer={value}: {problem}; {fix}", code="layers")


#: Largest number of training rows used to fit a domain, evenly spaced.
_MOST_ROWS = 8192


def fit_domain(dataset: Dataset, columns: Sequence[Column], rate: float) -> tuple[Domain, np.ndarray]:
    """Fit the domain of the training states, with a limit that a ``rate`` of validation texts exceeds.

    Also returns the distance (texts,) of every text: the mean over its rows, which are tokens or one.
    """
    index = dataset.places([place for column in columns for place in column.places])
    text_of, splits = dataset.examples.text_of, dataset.examples.rows
    training = np.flatnonzero(np.isin(text_of, splits["train"]))
    training = training[np.linspace(0, len(training) - 1, min(len(training), _MOST_ROWS)).astype(int)]

    def states(rows: np.ndarray) -> Iterator[Tensor]:
        for part in torch.from_numpy(rows).split(CHUNK):
            yield dataset.states[part][:, index].float()

    domain = Domain.fit(lambda: states(training), rate)
    each = np.concatenate([domain(part).numpy() for part in states(np.arange(len(text_of)))])
    distances = np.bincount(text_of, each) / np.bincount(text_of)
    surprise, validation = dataset.examples.surprise, splits["validation"]
    return domain.within(distances[validation], None if surprise is None else surprise[validation]), distances


#: One head of so many points; a model of few heads has :data:`_LEAST`.
_ONE_OF, _LEAST = 32, 4


def fit_pointer(store: Stored, examples: Examples) -> tuple[Pointer, np.ndarray, str]:
    """Choose heads on the training texts; return them, minus their mean share (N,), and what that is.

    The share is that on the passages about the text's subject, and where no text has a known subject that on
    the passage with the most. ``store`` has the site "passages" (:mod:`probers.model.passages`), its four
    numbers of each head in a row.
    """
    values = np.asarray(store.reader(store.spec.layers)[np.arange(len(examples.table))], dtype=np.float64)
    if examples.members is not None:  # tokens of a text
        values = np.stack([values[rows].mean(axis=0) for rows in examples.members])
    subject, pointed, _, _ = np.split(values[:, 0], 4, axis=-1)
    shares = subject if np.ptp(subject) > 0 else pointed
    chosen = np.concatenate([examples.rows["train"], examples.rows["validation"]])
    ranks = np.array([auroc(examples.wrong[chosen], -column) for column in shares[chosen].T])
    count = max(_LEAST, shares.shape[1] // _ONE_OF)
    heads = tuple(sorted(np.argsort(-ranks, kind="stable")[:count].tolist()))
    scores = -shares[:, heads].mean(axis=1)
    what = "subject's passages" if shares is subject else "most attended passage"
    about = f"minus the share of attention on the {what}, mean of {len(heads)} heads chosen on training texts"
    return Pointer(heads, _remembered(examples, chosen)), scores, about


def _remembered(examples: Examples, rows: np.ndarray) -> float:
    """Choose the log-probability that best divides remembered from other unsupported texts, if known."""
    table = examples.table.iloc[rows]
    if "source" not in table or "context_gain" not in table:
        return REMEMBERED
    unsupported = table[table["correct"] == 0]
    known = (unsupported["source"] == "memory").to_numpy()
    alone = (unsupported["mean_logprob"] - unsupported["context_gain"]).to_numpy(dtype=float)
    if not known.any() or known.all():
        return REMEMBERED
    order = np.unique(alone)
    right = [float(((alone >= cut) == known).mean()) for cut in order]
    return float(order[int(np.argmax(right))])
