"""Figures of a prober of labelled tokens at every level: tokens, spans, sentences and whole answers.

A prober is chosen and calibrated on spans by their highest token. Here the same token scores are measured
where users look: which token lights up, which sentence, which answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from probers.evaluation import metrics
from probers.evaluation.bootstrap import UNDEFINED, Bootstrap

from .examples import Examples

#: Name -> figure of the order of scores.
_RANKED: dict[str, Callable[..., Any]] = {
    "auroc": metrics.auroc, "auprc": metrics.auprc,
    "recall_at_fpr1": partial(metrics.recall_at_fpr, most=0.01), "recall_at_fpr10": metrics.recall_at_fpr,
}  # fmt: skip


def level_figures(
    examples: Examples, scores: np.ndarray, threshold: float, *, resamples: int, seed: int
) -> dict[str, Any]:
    """Compute figures of the test texts, as ``metrics.json`` holds them under ``levels``.

    Args:
        scores: (rows,) of every token, in the order of ``examples.members``.
        threshold: above which a token or span fires.

    Returns:
        By level ("token", "span", "sentence by max", "sentence by mean", "answer by max", ..): ``n``,
        ``wrong``, each figure with its 95% interval over groups, and for tokens and spans their ``f1`` at
        the threshold; ``false_alarms`` is per 1,000 tokens outside of marked spans.
    """
    assert examples.members is not None
    sizes = np.array([len(rows) for rows in examples.members])
    runs = examples.table[["text_id", "sentence", "group", "inside"]].assign(
        wrong=examples.table["token_wrong"], n=sizes,
        total=np.add.reduceat(scores, np.cumsum([0, *sizes[:-1]])),
        highest=np.maximum.reduceat(scores, np.cumsum([0, *sizes[:-1]])),
    )  # fmt: skip
    test = runs["group"].isin(examples.groups("test"))
    measure = partial(_measured, resamples=resamples, seed=seed)
    tokens = runs.loc[np.repeat(np.arange(len(runs)), sizes)].assign(score=scores)
    tokens = tokens[test.to_numpy()[np.repeat(np.arange(len(runs)), sizes)]]
    runs = runs[test]
    judged = runs[(runs["inside"] >= 0) & (runs["wrong"] >= 0)]
    known = tokens[(tokens["inside"] >= 0) & (tokens["wrong"] >= 0)]
    found = {"token": measure(known, "score", threshold)}
    found["span"] = measure(judged.assign(score=judged["highest"]), "score", threshold)
    for level, by in (("sentence", ["text_id", "sentence"]), ("answer", ["text_id"])):
        whole = _whole(runs, by)
        for how in ("max", "mean"):
            found[f"{level} by {how}"] = measure(whole, how, None)
    outside = tokens[tokens["inside"] < 1]
    if len(outside):
        alarms = 1000.0 * (outside["score"].to_numpy() > threshold)
        bootstrap = Bootstrap(outside["group"].to_numpy(), resamples=resamples, seed=seed)
        found["token"] |= bootstrap.interval(alarms).figures("false_alarms")
    return found


def _whole(runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Join runs to sentences or answers: wrong with any wrong one, else right if something in it is known.

    Those with undecided runs and no wrong one are left out.
    """
    known = runs.assign(
        bad=runs["wrong"] == 1, odd=runs["wrong"] < 0, good=(runs["inside"] >= 0) & (runs["wrong"] == 0)
    )
    whole = known.groupby(by, sort=False).agg(
        group=("group", "first"), bad=("bad", "any"), odd=("odd", "any"), good=("good", "any"),
        max=("highest", "max"), total=("total", "sum"), n=("n", "sum"),
    )  # fmt: skip
    kept = whole[whole["bad"] | (whole["good"] & ~whole["odd"])]
    return kept.assign(wrong=kept["bad"].astype(int), mean=kept["total"] / kept["n"])


def _measured(
    rows: pd.DataFrame, score: str, threshold: float | None, *, resamples: int, seed: int
) -> dict[str, Any]:
    wrong, scores = rows["wrong"].to_numpy(), rows[score].to_numpy(dtype=float)
    figures: dict[str, Any] = {"n": len(rows), "wrong": float(wrong.mean()) if len(rows) else None}
    both = len(set(wrong.tolist())) == 2
    bootstrap = Bootstrap(rows["group"].to_numpy(), resamples=resamples, seed=seed) if both else None

    def every(values: np.ndarray, weights: np.ndarray) -> list[Any]:
        return [figure(wrong, values, weights) for figure in _RANKED.values()]

    intervals = [UNDEFINED] * len(_RANKED) if bootstrap is None else bootstrap.intervals(scores, every)
    for name, interval in zip(_RANKED, intervals, strict=True):
        figures |= interval.figures(name)
    if bootstrap is not None and threshold is not None:
        fired = (scores > threshold).astype(float)
        figures |= bootstrap.interval(fired, partial(metrics.f1_detection, wrong)).figures("f1")
    return figures
