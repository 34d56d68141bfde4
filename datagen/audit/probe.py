"""A plain linear probe on one stored layer: what a head on these states could claim at least."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probers.metrics import auroc
from probers.store import FeatureStore

#: Inverse penalties tried; on standardised states the usual 1.0 fits noise where examples are few.
_STRENGTHS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Probe:
    """A fitted probe's scores.

    Attributes:
        layer: the layer it reads.
        tried: the layers it was chosen from.
        validation: AUROC on validation that chose layer and penalty; None where validation
            has not both labels, and the middle ones were taken.
        scores: (n,) of the test rows, log-odds of "hallucinated".
    """

    layer: int
    tried: tuple[int, ...]
    validation: float | None
    scores: np.ndarray


def depths(layers: Sequence[int]) -> tuple[int, ...]:
    """About three of the stored layers, at a third, two thirds and the end; not the embedding output."""
    inner = [k for k in layers if k > 0] or list(layers)
    places = np.ceil(np.array([1, 2, 3]) * len(inner) / 3).astype(int) - 1
    return tuple(sorted({inner[i] for i in places}))


def linear_probe(
    store: FeatureStore,
    rows: np.ndarray,
    wrong: np.ndarray,
    splits: dict[str, np.ndarray],
) -> Probe:
    """Standardised states, logistic regression; one layer and one split are in memory at a time.

    Args:
        store: with the states.
        rows: (n,) row numbers in the store.
        wrong: (n,) 1 where the text is hallucinated.
        splits: places in ``rows`` of "train" (both labels), "validation" and "test".

    Raises:
        UserError: a shard that cannot be read.
    """
    tried = depths(store.spec.layers)
    train, validation, test = (splits[name] for name in ("train", "validation", "test"))
    if len(set(wrong[validation])) < 2:
        layer = tried[len(tried) // 2]
        probe = _Fitted.on(store, layer, rows[train], wrong[train], _STRENGTHS[1:2])
        return Probe(layer, tried, None, probe.scores(0, store, rows[test]))
    best: Probe | None = None
    for layer in tried:
        probe = _Fitted.on(store, layer, rows[train], wrong[train], _STRENGTHS)
        quality = [
            float(auroc(wrong[validation], probe.scores(i, store, rows[validation])))
            for i in range(len(_STRENGTHS))
        ]
        place = int(np.argmax(quality))
        if best is None or best.validation is None or quality[place] > best.validation:
            best = Probe(layer, tried, quality[place], probe.scores(place, store, rows[test]))
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Models of one layer, one per penalty, on states that are standardised as the training ones."""

    layer: int
    mean: np.ndarray
    scale: np.ndarray
    models: list[Any]

    @classmethod
    def on(
        cls, store: FeatureStore, layer: int, rows: np.ndarray, wrong: np.ndarray, strengths: Sequence[float]
    ) -> _Fitted:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression

        states = store.states((layer,), rows)[:, 0].astype(np.float32)
        mean = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        states -= mean
        scale = np.sqrt(np.einsum("ij,ij->j", states, states) / len(states))
        scale[scale == 0] = 1.0
        states /= scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a probe that stopped early still is one
            models = [LogisticRegression(C=c, max_iter=300).fit(states, wrong) for c in strengths]
        return cls(layer, mean, scale, models)

    def scores(self, place: int, store: FeatureStore, rows: np.ndarray) -> np.ndarray:
        """(n,) log-odds of some rows by one of the models."""
        states = store.states((self.layer,), rows)[:, 0].astype(np.float32)
        found: np.ndarray = self.models[place].decision_function((states - self.mean) / self.scale)
        return found.astype(np.float64)
