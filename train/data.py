"""The labelled texts of feature stores: joined, dealt into splits, and refused where they prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from probers.data.splits import deal
from probers.seeding import draw_key
from probers.store.store import FeatureStore
from probers.types import SPLITS, UserError

#: How a signal of a span's tokens becomes the span's; every other column is the same for all of them.
_OVER_TOKENS = {
    "mean_entropy": "mean", "max_entropy": "max", "min_prob": "min", "mean_logprob": "mean",
    "rind_max": "max",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of a store.

    Attributes:
        table: one row per text, in the order of the store.
        members: which rows of the store each text has, in the order of its tokens; None where
            it has one row, of pooled states.
    """

    table: pd.DataFrame
    members: tuple[np.ndarray, ...] | None


def as_texts(store: FeatureStore) -> Texts:
    """The rows of a store, those of the tokens of one span (pool "tokens") taken together."""
    table = store.table()
    if store.spec.pool != "tokens":
        return Texts(table, None)
    number = pd.factorize(table["span"])[0]
    order = np.lexsort((table["token"].to_numpy(), number))
    members = tuple(np.split(order, np.flatnonzero(np.diff(number[order])) + 1))
    whole = table.groupby(number, sort=False).first()
    for column, how in _OVER_TOKENS.items():
        if column in table:
            whole[column] = table.groupby(number, sort=False)[column].agg(how)
    return Texts(whole.assign(id=whole["span"]).drop(columns="token").reset_index(drop=True), members)


@dataclass(frozen=True, slots=True)
class Examples:
    """The labelled texts of a store, in its order.

    Attributes:
        table: all columns, one row per text.
        rows: row numbers of each split.
        members: for a store of token states, which of its rows each text has; else None.
    """

    table: pd.DataFrame
    rows: dict[str, np.ndarray]
    members: tuple[np.ndarray, ...] | None = None

    @property
    def wrong(self) -> np.ndarray:
        """(N,) 1 where the text is wrong or hallucinated: what a detector is to find."""
        return 1 - self.table["correct"].to_numpy()

    @property
    def text_of(self) -> np.ndarray:
        """(rows of the store,) which text a row belongs to."""
        if self.members is None:
            return np.arange(len(self.table))
        found = np.empty(sum(map(len, self.members)), dtype=np.int64)
        for text, rows in enumerate(self.members):
            found[rows] = text
        return found

    def column(self, name: str, split: str) -> np.ndarray:
        """Values of a column in one split."""
        return self.table[name].to_numpy()[self.rows[split]]

    def groups(self, split: str) -> np.ndarray:
        """The groups of a split, each once, in the order of the store."""
        return np.asarray(pd.unique(self.table["group"].iloc[self.rows[split]]))


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """Which texts are trained, validated and tested on; the fields are keys of ``configs/train.yaml``.

    Attributes:
        split: "store" takes the store's own; three shares deal its groups anew.
        train_on: data sets to train and validate on; empty is all of them, or all but ``test_on``.
        test_on: data sets to test on; empty is those of ``train_on``.
        seed: of dealing.
    """

    split: Any = "store"
    train_on: Sequence[str] = ()
    test_on: Sequence[str] = ()
    seed: int = 0
    _shares: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shares: tuple[float, ...] = ()
        if self.split != "store":
            given = list(self.split) if isinstance(self.split, (list, tuple)) else []
            numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) and x > 0 for x in given)
            if len(given) != 3 or not numbers or abs(sum(given) - 1) > 1e-6:
                raise UserError(
                    f"split={self.split} is not understood: give store, or the shares of train, validation "
                    "and test, like [0.6,0.2,0.2]"
                )
            shares = tuple(map(float, given))
        object.__setattr__(self, "_shares", shares)

    @property
    def deals(self) -> bool:
        """Whether the splits are not simply the store's."""
        return bool(self._shares or self.train_on or self.test_on)

    def assign(self, texts: pd.DataFrame, what: str) -> np.ndarray:
        """(N,) "train", "validation", "test", or "" for a text that is left out."""
        split = texts["split"].to_numpy(dtype=object)
        if self._shares:
            split = _deal(texts["group"].to_numpy(), self._shares, self.seed, what)
        if not self.train_on and not self.test_on:
            return split
        if "dataset" not in texts:
            raise UserError(f"{what} does not say what data set a text is of: leave out train_on and test_on")
        sets = texts["dataset"].to_numpy(dtype=object)
        known = sorted(set(sets))
        for key, names in (("train_on", self.train_on), ("test_on", self.test_on)):
            for name in names:
                if name not in known:
                    raise UserError(f"{key} names {name!r}, and {what} has {', '.join(map(repr, known))}")
        train_on = set(self.train_on) or set(known) - set(self.test_on)
        test_on = set(self.test_on) or train_on
        kept = np.where(split == "test", np.isin(sets, list(test_on)), np.isin(sets, list(train_on)))
        return np.where(kept, split, "")


def load_examples(stores: Sequence[FeatureStore], request: SplitRequest | None = None) -> Examples:
    """The texts of stores of the same texts, refused where a training or its test would mean nothing.

    Args:
        stores: finished ones; more than one only where they hold states of other sites.
        request: splits; None takes the store's.

    Raises:
        UserError: stores of other texts, a group on two sides of a split, an empty split, a
            split of one class.
    """
    request = request or SplitRequest()
    first = stores[0]
    texts = as_texts(first)
    for other in stores[1:]:
        _check_same(texts, as_texts(other), first, other)
    what = f"data={first.path}"
    split = request.assign(texts.table, what)
    table = texts.table.assign(split=split)
    _check_leaks(table[split != ""], what)
    rows = {name: np.flatnonzero(split == name) for name in SPLITS}
    _check_splits(table, rows, what)
    return Examples(table, rows, texts.members)


def training_share(examples: Examples, share: float, seed: int) -> Examples:
    """The same examples with part of the training groups, drawn by ``seed``; shares are nested."""
    groups = sorted(examples.groups("train"), key=lambda g: draw_key("share", seed, str(g)))
    kept = set(groups[: max(1, round(share * len(groups)))])
    train = examples.rows["train"]
    chosen = train[[g in kept for g in examples.column("group", "train")]]
    return Examples(examples.table, {**examples.rows, "train": chosen}, examples.members)


def split_record(examples: Examples) -> Mapping[str, list[str]]:
    """The groups of each split, to be written beside what was trained on them."""
    return {name: sorted(map(str, examples.groups(name))) for name in SPLITS}


def _deal(groups: np.ndarray, shares: Sequence[float], seed: int, what: str) -> np.ndarray:
    names = sorted(set(groups), key=lambda g: draw_key("split", seed, str(g)))
    of = deal(names, shares)
    if len(set(of.values())) < len(SPLITS):
        raise UserError(
            f"split={list(shares)}: {what} has {len(names)} groups, too few for three splits of these shares"
        )
    return np.array([of[g] for g in groups], dtype=object)


def _check_same(texts: Texts, others: Texts, first: FeatureStore, other: FeatureStore) -> None:
    """Refuse a further store whose texts are not the first one's, or that has no site of its own."""
    same = texts.table[["id", "correct", "text"]].equals(others.table[["id", "correct", "text"]])
    if not same or (texts.members is None) != (others.members is None):
        raise UserError(
            f"data={other.path} holds other texts than {first.path}: stores of several sites must be made "
            "by the same command but for site"
        )


def _check_leaks(table: pd.DataFrame, what: str) -> None:
    sides = {group: sorted(set(found)) for group, found in table.groupby("group")["split"]}
    leaks = [group for group, found in sides.items() if len(found) > 1]
    if leaks:
        more = f" (and {len(leaks) - 1} more groups are)" if len(leaks) > 1 else ""
        raise UserError(
            f"{what} leaks: the group {leaks[0]!r} is in {' and '.join(sides[leaks[0]])}{more}; "
            "deal the groups anew with split=[0.6,0.2,0.2]"
        )


def _check_splits(table: pd.DataFrame, rows: Mapping[str, np.ndarray], what: str) -> None:
    for split, found in rows.items():
        labels = table["correct"].to_numpy()[found]
        if not len(found):
            raise UserError(
                f"{what} has no {split} examples: deal its groups anew with split=[0.6,0.2,0.2], or make it "
                "with a higher limit"
            )
        if labels.min() == labels.max():
            kind = "right" if labels[0] else "wrong"
            raise UserError(
                f"{what} has only {kind} texts among its {len(found)} {split} examples: "
                "a detector needs both kinds, make it with a higher limit or another label"
            )
