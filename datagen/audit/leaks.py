"""Predictors of labels: detectors that read the text alone, and a linear probe on a stored layer."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from probers.evaluation import metrics
from probers.evaluation.baselines import OF_TEXT, logistic_regression
from probers.evaluation.bootstrap import Bootstrap, Interval, few_groups
from probers.store.store import FeatureStore
from probers.types import SPLITS

#: Inverse penalties tried; on standardised states the usual 1.0 fits noise if examples are few.
_STRENGTHS = (1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Probe:
    """Scores (n,) of the test rows, log-odds of "hallucinated", by a probe on the best layer of those tried.

    ``validation`` is the AUROC that chose layer and penalty; None if validation lacks one of the labels, so
    that the middle layer and penalty were taken.
    """

    layer: int
    tried: tuple[int, ...]
    validation: float | None
    scores: np.ndarray


def depths(layers: Sequence[int]) -> tuple[int, ...]:
    """Choose three of the stored layers, at a third, two thirds and the end; not the embedding output."""
    inner = [k for k in layers if k > 0] or list(layers)
    places = np.ceil(np.array([1, 2, 3]) * len(inner) / 3).astype(int) - 1
    return tuple(sorted({inner[i] for i in places}))


def linear_probe(
    store: FeatureStore, rows: np.ndarray, wrong: np.ndarray, splits: Mapping[str, np.ndarray]
) -> Probe:
    """Fit logistic regressions to standardised states; one layer and one split are in memory at a time.

    ``rows`` (n,) are row numbers in the store; ``wrong`` (n,) is 1 for a hallucinated text; ``splits`` are
    places in ``rows`` of "train" (both labels), "validation" and "test".
    """
    from sklearn.exceptions import ConvergenceWarning

    tried, labels = depths(store.spec.layers), wrong[splits["validation"]]
    chosen = len(set(labels)) > 1
    layers = tried if chosen else tried[len(tried) // 2 :][:1]
    strengths = _STRENGTHS if chosen else _STRENGTHS[1:2]

    def states(layer: int, split: str) -> np.ndarray:
        return store.states((layer,), rows[splits[split]])[:, 0].astype(np.float32)

    candidates: list[tuple[Any, int, np.ndarray, np.ndarray, Any]] = []
    for layer in layers:
        inputs = states(layer, "train")
        mean = inputs.mean(axis=0, dtype=np.float64).astype(np.float32)
        inputs -= mean
        scale = np.sqrt(np.einsum("ij,ij->j", inputs, inputs) / len(inputs))
        scale[scale == 0] = 1.0
        inputs /= scale
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a probe that stopped early is still usable
            models = [logistic_regression(inputs, wrong[splits["train"]], c=c, steps=300) for c in strengths]
        del inputs
        held = (states(layer, "validation") - mean) / scale if chosen else None
        for model in models:
            quality = None if held is None else float(metrics.auroc(labels, model.decision_function(held)))
            candidates.append((quality, layer, mean, scale, model))
    quality, layer, mean, scale, model = max(candidates, key=lambda candidate: candidate[0])
    scores = model.decision_function((states(layer, "test") - mean) / scale)
    return Probe(layer, tried, quality, np.asarray(scores, np.float64))


MAJORITY, PROBE = "majority", "linear probe"
#: Fewest held-out spans and groups; with fewer, intervals are too wide to tell anything.
LEAST_SPANS, LEAST_GROUPS = 20, 5


_NAMES = ("bag of words, answer", "bag of words, text", "bag of words, question", "length", "position")
#: Baselines, which never see a state; each reads those of its columns that the store has.
BASELINES = {name: OF_TEXT[name] for name in _NAMES}
BASELINES |= {"type": OF_TEXT["question type"], "condition": OF_TEXT["condition"]}


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures on held-out groups with 95% intervals; a constant ranks nothing and has no AUROC."""

    accuracy: Interval
    auroc: Interval | None


@dataclass(frozen=True, slots=True)
class Leaks:
    """Figures of detectors, :data:`MAJORITY` first and :data:`PROBE` last; empty if the splits allow none.

    ``splits`` have spans, groups and share of wrong texts; ``differences`` are the AUROC of the probe minus
    that of each baseline, paired.
    """

    splits: dict[str, dict[str, Any]]
    detectors: dict[str, Measured] = field(default_factory=dict)
    differences: dict[str, Interval] = field(default_factory=dict)
    probe: Probe | None = None
    notes: list[str] = field(default_factory=list)


def measure_leaks(store: FeatureStore, rows: np.ndarray, table: pd.DataFrame, *, seed: int) -> Leaks:
    """Fit every detector on the training groups and measure it on the test groups.

    ``rows`` (n,) are row numbers in the store. ``table`` has group, split, correct and the baselines' columns
    of these rows, if the store has them.
    """
    wrong = 1 - table["correct"].to_numpy()
    places = {split: np.flatnonzero(table["split"] == split) for split in SPLITS}
    splits = {split: _size(table.iloc[rows_], wrong[rows_]) for split, rows_ in places.items()}
    if problem := _problem(splits):
        return Leaks(splits, notes=[f"no leak check: {problem}"])
    train, test = places["train"], places["test"]
    bootstrap = Bootstrap(table["group"].to_numpy()[test], seed=seed)
    auroc = partial(metrics.auroc, wrong[test])

    def measured(scores: np.ndarray) -> Measured:
        accuracy = bootstrap.interval((scores > 0).astype(float), partial(metrics.accuracy, wrong[test]))
        return Measured(accuracy, bootstrap.interval(scores, auroc) if np.ptp(scores) else None)

    notes = list(filter(None, [few_groups(bootstrap.size, "test group")]))
    blind = {name: scores[test] for name, scores in _scores(table, wrong, train, notes).items()}
    usual = np.full(len(test), 1.0 if wrong[train].mean() > 0.5 else -1.0)
    probe = linear_probe(store, rows, wrong, places)
    if probe.validation is None:
        notes.append("validation lacks one of the labels: the probe's layer and penalty are the middle ones")
    detectors = {name: measured(s) for name, s in {MAJORITY: usual, **blind, PROBE: probe.scores}.items()}
    differences = {name: bootstrap.difference(probe.scores, s, auroc) for name, s in blind.items()}
    return Leaks(splits, detectors, differences, probe, notes)


def _size(table: pd.DataFrame, wrong: np.ndarray) -> dict[str, Any]:
    share = round(float(wrong.mean()), 4) if len(wrong) else None
    return {"n": len(table), "groups": int(table["group"].nunique()), "wrong": share}


def _problem(splits: Mapping[str, Mapping[str, Any]]) -> str | None:
    for split in ("train", "test"):
        n, wrong = splits[split]["n"], splits[split]["wrong"]
        if not n:
            return f"there are no {split} examples"
        if wrong in (0.0, 1.0):
            return f"all {n} {split} examples are {'wrong' if wrong else 'right'}"
    n, groups = splits["test"]["n"], splits["test"]["groups"]
    few = f"{n} test examples of {groups} groups are too few (at least {LEAST_SPANS} of {LEAST_GROUPS})"
    return few if n < LEAST_SPANS or groups < LEAST_GROUPS else None


def _scores(
    table: pd.DataFrame, wrong: np.ndarray, train: np.ndarray, notes: list[str]
) -> dict[str, np.ndarray]:
    """Score every baseline (n,) that has something to read; note the others."""
    scores, constant = {}, list[str]()
    for name, (_, score, *columns) in BASELINES.items():
        there = [c for c in columns if c in table]
        if not there:
            notes.append(f"{name} left out: the store has no column {' or '.join(columns)}")
        elif several := [c for c in there if table[c].iloc[train].nunique() > 1]:
            scores[name] = score(table[several], wrong, train)
        elif name != "condition":  # of which there is usually one
            constant.append(name)
    if constant:
        notes.append(f"{', '.join(constant)} left out: the same in all training examples")
    return scores
