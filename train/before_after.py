"""Detectors available before the first token of a text, and after its last, next to the heads.

A state or signal of the position that predicts the first token is available before that token is
kept; anything computed over the written tokens is available afterwards. Only detectors of the same
moment can be compared: a trigger that reads the former can stop the model before it writes. So each
moment has a table, over all test texts and within strata of length and kind, because length alone
predicts much of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from probers.bank.calibration import fit_logistic
from probers.evaluation import metrics
from probers.evaluation.baselines import numbers
from probers.evaluation.bootstrap import Bootstrap, Sample
from probers.evaluation.stratified import Strata, pooled_auroc
from probers.store.spec import FeatureSpec
from probers.uncertainty import BEFORE, SIGNALS

from .controls import ENSEMBLE, Detector
from .data import Examples

if TYPE_CHECKING:
    from .assemble import Trained

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

COMBINED, WITH_SIGNALS = "signals combined", "head + signals"
_LENGTH, _TYPE, _BOTH = "length", "type", "length and type"

#: Signals of the position that predicts the first token: name -> column, and 1 where more is likelier wrong.
_BEFORE = {
    "entropy before": ("entropy_before", 1),
    "probability before": ("max_prob_before", -1),
    "margin before": ("margin_before", -1),
}
#: Controls that are taken over the written tokens, and the columns of what is combined.
_AFTER = (
    "mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum",
    "length",
)  # fmt: skip
_COLUMNS = (*SIGNALS, "rind_max")


def moment_of(spec: FeatureSpec) -> Moment:
    """Moment at which the states of the heads are available."""
    return "before" if spec.pool == "predicting" else "after"


@dataclass(frozen=True, slots=True)
class Known:
    """Detectors of one moment.

    Attributes:
        heads: the prober's score first; empty if the states are not available yet.
        signals: each alone, and all combined.
        joined: the prober's score combined with all signals, or None.
    """

    heads: Sequence[Detector]
    signals: Sequence[Detector]
    joined: Detector | None


def known(moment: Moment, trained: Trained, examples: Examples) -> Known:
    """Collect the detectors of a moment; those of "before" remain available "after".

    A logistic model combines the signals, fitted on training texts; with the prober's score it is
    fitted on validation texts, where that score is not overconfident.
    """
    heads: list[Detector] = []
    if MOMENTS.index(moment_of(trained.bank.spec)) <= MOMENTS.index(moment):
        best = trained.layers[trained.best]
        heads = [replace(trained.saved, name=best.name if len(trained.layers) == 1 else ENSEMBLE)]
        if len(trained.layers) > 1:
            heads.append(replace(best, name=f"best layer ({best.name.removeprefix('layer ')})"))
    table = examples.table
    signals: list[Detector] = []
    if set(BEFORE) <= set(table):
        if moment == "before":
            signals = [
                Detector(name, sign * table[column].to_numpy(dtype=float), f"{column}, not trained")
                for name, (column, sign) in _BEFORE.items()
            ]
        elif not _greedy(examples):
            first = -table["logprob_before"].to_numpy(dtype=float)
            signals = [Detector("first log-prob", first, "minus logprob_before, not trained")]
    if moment == "after":
        signals += [control for control in trained.controls if control.name in _AFTER]
    inputs = _inputs(moment, examples)
    if inputs is None:
        return Known(heads, signals, None)
    about = f"{inputs.shape[1]} signals, logistic regression"
    signals.append(Detector(COMBINED, numbers(inputs, examples.wrong, examples.rows["train"]), about))
    if not heads:
        return Known(heads, signals, None)
    inputs = np.hstack([heads[0].scores[:, None], inputs])
    rows = examples.rows["validation"]
    weights, mean, scale, intercept = fit_logistic(inputs[rows], examples.wrong[rows])
    scores = (inputs - mean) / scale @ weights + intercept
    about = f"logistic model of {heads[0].name} and {inputs.shape[1] - 1} signals, fitted on validation"
    return Known(heads, signals, Detector(WITH_SIGNALS, scores, about))


def _greedy(examples: Examples) -> bool:
    """True if every text begins with the likeliest token, whose probability is known before it."""
    table = examples.table
    return bool(np.allclose(np.exp(table["logprob_before"]), table["max_prob_before"], atol=1e-5))


def _inputs(moment: Moment, examples: Examples) -> np.ndarray | None:
    """(N, signals) all signals of a moment; None if the store lacks some."""
    before = [column for column, _ in _BEFORE.values()]
    table = examples.table
    # Signals of attention are missing in the stores of engines without it.
    after = [c for c in _COLUMNS if c not in table or not table[c].isna().any()]
    columns = before if moment == "before" else [*(c for c in before if c in table), *after]
    if not {*columns, "n_tokens"} <= set(table):
        return None
    found = [table[column].to_numpy(dtype=float) for column in columns]
    if moment == "after":
        found.append(found[columns.index("mean_logprob")] * table["n_tokens"].to_numpy(dtype=float))
    return np.stack(found, axis=1)


def strata_of(examples: Examples, spec: FeatureSpec) -> dict[str, Strata]:
    """Divide the test texts by length, type (kind of answer) and both; a single stratum is left out."""
    found: dict[str, Strata] = {}
    if "n_tokens" in examples.table:
        lengths = examples.column("n_tokens", "test")
        found[_LENGTH] = Strata.by_length(lengths, short=spec.position == "entity")
    if "answer_kind" in examples.table:
        found[_TYPE] = Strata.by(examples.column("answer_kind", "test"))
    found = {name: strata for name, strata in found.items() if len(strata.names) > 1}
    if len(found) == 2:
        found[_BOTH] = found[_LENGTH].and_by(found[_TYPE])
    return found


def moment_figures(trained: Trained, examples: Examples, bootstrap: Bootstrap) -> dict[str, Any]:
    """Both tables, as ``metrics.json`` holds them.

    ``position``: before and after what. ``strata``: how the test texts are divided, each
    ``{"compared", "strata": {name: {"n", "wrong"}}}``; "compared" are the texts of strata with both
    classes. ``before`` and ``after``: ``head`` names the prober's score or is null; ``detectors``
    have ``kind`` (head, signal or joined), ``about``, and AUROC with its interval over ``all`` and
    within each division; ``pairs`` are paired differences, of the head and of the head with
    signals, each minus the others.

    Args:
        trained: the prober and everything it is compared with.
        examples: it was made from.
        bootstrap: of the test examples.
    """
    test = examples.rows["test"]
    wrong = examples.wrong[test]
    spec = trained.bank.spec
    strata = strata_of(examples, spec)
    figures: dict[str, Any] = {
        "position": "entity" if spec.position == "entity" else "answer",
        "strata": {name: _division(of, wrong) for name, of in strata.items()},
    }
    measures: dict[str, Callable[..., Any]] = {"all": partial(metrics.auroc, wrong)}
    for name, of in strata.items():
        measures[name] = partial(_within, wrong, of.of)
    for moment in MOMENTS:
        found = known(moment, trained, examples)
        joined = [] if found.joined is None else [found.joined]
        kinds = {d.name: "head" for d in found.heads} | {d.name: "signal" for d in found.signals}
        samples = {
            d.name: _samples(d.scores[test], measures, bootstrap)
            for d in (*found.heads, *found.signals, *joined)
            if np.ptp(d.scores[test]) > 0  # a constant ranks nothing
        }
        about = {d.name: d.about for d in (*found.heads, *found.signals, *joined)}
        ours = [d.name for d in (*found.heads[:1], *joined) if d.name in samples]
        figures[moment] = {
            "head": found.heads[0].name if found.heads else None,
            "detectors": {
                name: {"kind": kinds.get(name, "joined"), "about": about[name]}
                | {key: _plain("auroc", one) for key, one in of.items()}
                for name, of in samples.items()
            },
            "pairs": {
                f"{a} vs {b}": {
                    key: _plain("diff", samples[a][key].minus(samples[b][key])) for key in measures
                }
                for a in ours
                for b in samples
                if a != b and kinds.get(b) is not None and (a != ours[0] or kinds[b] == "signal")
            },
        }
    figures["notes"] = _notes(examples, spec)
    return figures


def _within(wrong: np.ndarray, strata: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> Any:
    return pooled_auroc(wrong, scores, strata, weights)


def _samples(
    scores: np.ndarray, measures: Mapping[str, Callable[..., Any]], bootstrap: Bootstrap
) -> dict[str, Sample]:
    """Every measure of the scores of the test texts, with its resamples."""
    values, drawn = bootstrap.samples(scores, lambda s, w: [measure(s, w) for measure in measures.values()])
    each = zip(measures, values, drawn, strict=True)
    return {name: Sample(value, resampled) for name, value, resampled in each}


def _plain(name: str, sample: Sample) -> dict[str, Any]:
    interval = sample.interval
    value = None if np.isnan(interval.value) else interval.value
    return {name: value, "ci95": interval.limits}


def _division(strata: Strata, wrong: np.ndarray) -> dict[str, Any]:
    n, events = strata.counts(wrong)
    mixed = (events > 0) & (events < n)
    each = zip(strata.names, n.tolist(), events.tolist(), strict=True)
    return {
        "compared": int(n[mixed].sum()),
        "strata": {name: {"n": count, "wrong": bad} for name, count, bad in each},
    }


def _notes(examples: Examples, spec: FeatureSpec) -> list[str]:
    found = []
    lacking = [column for column in BEFORE if column not in examples.table]
    if lacking:
        found.append(f"no signals from before a text: the store has no column {lacking[0]}, make it again")
    if moment_of(spec) == "before":
        found.append("after the entity the prober's score is that of the state before it, still known then")
    elif spec.position == "entity":
        found.append("no head reads the state before the entity: that is a store of pool=predicting")
    return found
