"""Detectors within strata: is a wrong text ranked above a right one of the same length and kind?

What can be told from length or kind alone raises every figure that compares unlike texts.
Here a wrong text is compared with the right ones of its own stratum only, and the
comparisons of all strata are counted together, so that large strata weigh more (the AROC of
Janes and Pepe 2009, for strata, with pairs as weights). Conventions are those of
:mod:`probers.evaluation.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..types import RunError

#: Tokens from which on entities count as equally long, and ranges of longer texts.
LONG, RANGES = 5, 5


def pooled_auroc(
    labels: np.ndarray, scores: np.ndarray, strata: np.ndarray, weights: np.ndarray | None = None
) -> Any:
    """P(score of an event > score of a non-event of its stratum), ties count half.

    Mann-Whitney counts summed over strata, divided by the pairs there are; a stratum of one
    class has none. With one stratum it is the AUROC.

    Args:
        labels: (n,) 1 for the event.
        scores: (n,).
        strata: (n,) whole numbers from 0.
        weights: None, (n,), or (n, r) for r resamples.

    Returns:
        A number, or (r,); NaN where no stratum has both classes.
    """
    if not len(labels) == len(scores) == len(strata) > 0:
        raise ValueError(
            f"{len(labels)} labels, {len(scores)} scores and {len(strata)} strata; all must be n"
        )
    if np.isnan(scores).any():
        raise RunError(f"{int(np.isnan(scores).sum())} of {len(scores)} scores are not numbers")
    order = np.lexsort((scores, strata))
    stratum, ranked = strata[order], scores[order]
    begins = np.r_[True, stratum[1:] != stratum[:-1]]
    levels = np.flatnonzero(begins | np.r_[True, ranked[1:] != ranked[:-1]])
    w = np.ones(len(labels)) if weights is None else np.asarray(weights)
    w = w[order] if w.dtype.kind == "f" else w[order].astype(np.float64)
    event = labels[order].astype(w.dtype).reshape(-1, *[1] * (w.ndim - 1))
    events = w * event
    others = w - events
    if len(levels) < len(order):  # ties
        events, others = (np.add.reduceat(x, levels, axis=0) for x in (events, others))
    starts = np.flatnonzero(begins[levels])  # the first level of each stratum
    below = np.cumsum(others, axis=0)
    below -= others
    below -= np.repeat(below[starts], np.diff(np.r_[starts, len(levels)]), axis=0)
    below += others / 2
    wins = (events * below).sum(axis=0)
    pairs = (np.add.reduceat(events, starts, axis=0) * np.add.reduceat(others, starts, axis=0)).sum(axis=0)
    out = np.full(np.shape(pairs), np.nan, dtype=w.dtype)
    return np.divide(wins, pairs, out=out, where=pairs > 0)[()]


@dataclass(frozen=True, slots=True)
class Strata:
    """Texts that are alike.

    Attributes:
        names: of the strata, k of them.
        of: (n,) each text's, from 0 to k - 1.
    """

    names: tuple[str, ...]
    of: np.ndarray

    @classmethod
    def by(cls, values: Sequence[Any] | np.ndarray) -> Strata:
        """One stratum for each value, in their order."""
        names, of = np.unique(np.asarray(values).astype(str), return_inverse=True)
        return cls(tuple(map(str, names)), of.reshape(-1))

    @classmethod
    def by_length(cls, lengths: np.ndarray, *, short: bool) -> Strata:
        """Stratify by numbers of tokens (n,).

        Args:
            lengths: of the texts.
            short: whether they are names rather than sentences: 1, 2, 3, 4, 5 and more. Others are cut
                into five ranges that hold about as many each.
        """
        if short:
            return cls.by([f"{n}" if n < LONG else f"{LONG}+" for n in lengths])
        borders = np.unique(np.quantile(lengths, np.arange(1, RANGES) / RANGES))
        found, of = np.unique(np.searchsorted(borders, lengths, side="left"), return_inverse=True)
        of = of.reshape(-1)
        ends = [(int(x.min()), int(x.max())) for x in (lengths[of == k] for k in range(len(found)))]
        return cls(tuple(f"{low}" if low == high else f"{low}-{high}" for low, high in ends), of)

    def and_by(self, other: Strata) -> Strata:
        """Texts that are alike in both."""
        pairs, of = np.unique(self.of * len(other.names) + other.of, return_inverse=True)
        rows, columns = np.divmod(pairs, len(other.names))
        names = (f"{self.names[a]} {other.names[b]}" for a, b in zip(rows, columns, strict=True))
        return Strata(tuple(names), of.reshape(-1))

    def counts(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(k,) texts of each stratum, and events among them."""
        n = len(self.names)
        return np.bincount(self.of, minlength=n), np.bincount(self.of[labels == 1], minlength=n)
