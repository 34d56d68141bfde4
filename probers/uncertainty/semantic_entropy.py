"""Semantic entropy: the entropy of the meanings of drawn answers (Kuhn et al. 2023; Farquhar et al. 2024).

H = -sum_c p(c) log p(c) over clusters c of answers with one meaning. p(c) is the share of samples in c
("discrete"), or the share of c in the sum of the samples' sequence probabilities ("weighted").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from ..types import UserError

Variant = Literal["discrete", "weighted"]


def semantic_entropy(
    of: Sequence[int], logprobs: Sequence[float] | np.ndarray | None = None, *, variant: Variant = "discrete"
) -> float:
    """Compute the entropy in nats of n samples' clusters; 0 if all mean the same.

    Args:
        of: number of each sample's cluster, from 0 (:func:`.meaning.clusters`).
        logprobs: (n,) log-probability of each sample's sequence in nats, for ``weighted``; NaN, for a sample
            without a token, counts with the mean weight of the others.
        variant: "discrete" or "weighted".

    Raises:
        UserError: no samples, an unknown variant, or no log-probabilities for "weighted".
    """
    if not len(of):
        raise UserError("semantic entropy needs samples: draw two or more", "missing-value")
    weights = np.ones(len(of))
    if variant == "weighted":
        if logprobs is None or len(logprobs) != len(of):
            told = "variant=weighted of semantic entropy needs the log-probability of each sample"
            raise UserError(told, "missing-value")
        weights = _weights(np.asarray(logprobs, dtype=np.float64))
    elif variant != "discrete":
        raise UserError(f"variant={variant} is unknown: choose {' or '.join(get_args(Variant))}")
    shares = np.bincount(of, weights=weights) / weights.sum()
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum()) + 0.0


def _weights(logprobs: np.ndarray) -> np.ndarray:
    known = ~np.isnan(logprobs)
    if not known.any():
        return np.ones(len(logprobs))
    # Relative to the likeliest, for sequences of very low probability.
    weights = np.exp(np.where(known, logprobs, 0.0) - logprobs[known].max())
    weights[~known] = weights[known].mean()
    return weights


def best_cut(entropies: np.ndarray) -> float:
    """Find the threshold that divides values (n,) into two groups with the least variance within.

    Kossen et al. (2024) make labels of semantic entropy by this rule, "high" above it. It lies midway
    between two neighbouring values, or at the value itself if all are equal.
    """
    values = np.sort(np.asarray(entropies, dtype=np.float64))
    if not len(values):
        raise UserError("no semantic entropy to divide into high and low", "empty")
    places = np.flatnonzero(np.diff(values)) + 1  # sizes of the lower group
    if not len(places):
        return float(values[0])
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    low = squares[places - 1] - sums[places - 1] ** 2 / places
    rest = len(values) - places
    high = squares[-1] - squares[places - 1] - (sums[-1] - sums[places - 1]) ** 2 / rest
    best = places[int(np.argmin(low + high))]
    return float((values[best - 1] + values[best]) / 2)
