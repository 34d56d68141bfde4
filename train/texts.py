"""The rows of a feature store as texts: one row each, also where every token has a row of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from probers.store import FeatureStore

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
