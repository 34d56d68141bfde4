"""Detectors available before the first token of a text, and after its last, next to the heads.

A state or signal of the position that predicts the first token is available before that token is kept: a
trigger that reads it can stop the model before it writes. Only detectors of the same moment are compared,
over all test texts and within strata of length and kind, because length alone predicts much of the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from probers.evaluation import metrics
from probers.evaluation.baselines import Strata, numbers, weighted_sums
from probers.evaluation.bootstrap import Bootstrap, Sample
from probers.prober import figures as schema
from probers.prober.calibration import fit_logistic
from probers.prober.figures import ENSEMBLE, Cost, Difference
from probers.signals import BEFORE, SIGNALS
from probers.store.spec import FeatureSpec

from .assemble import Detector, Trained
from .examples import Examples

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = get_args(Moment)

#: Pools of a state that is known before a text.
_KNOWN = ("prompt", "predicting")

COMBINED, WITH_SIGNALS = "signals combined", "head + signals"

#: Positions whose texts are a part of what the model wrote.
_PIECES = ("entity", "span", "sentence", "claim")
#: Controls over the written tokens, and the columns that are combined.
_AFTER = (
    "mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum",
    "length", "overlap", "without passages", "context gain", "pointer",
)  # fmt: skip
_COLUMNS = (*SIGNALS, "rind_max")
_DRAWN = ("sample_calls", "sample_tokens")
#: Column of a detector, -1 where more is likelier right, and calls and tokens: numbers, or their columns.
_Further = tuple[str, int, tuple[str | float, str | float]]
#: Signals of the position that predicts the first token.
_BEFORE: dict[str, _Further] = {
    "entropy before": ("entropy_before", 1, (0, 0)), "probability before": ("max_prob_before", -1, (0, 0)),
    "margin before": ("margin_before", -1, (0, 0)),
}  # fmt: skip
#: Detectors that draw or ask.
_SAMPLED: dict[str, _Further] = {
    "self-consistency": ("self_consistency", -1, _DRAWN),
    "semantic entropy": ("semantic_entropy", 1, _DRAWN),
    "semantic, weighted": ("semantic_entropy_weighted", 1, _DRAWN),
    "lexical similarity": ("lexical_similarity", -1, _DRAWN),
    "EigenScore": ("eigenscore", 1, _DRAWN),
    "P(True)": ("p_true", -1, (1, 1)),
    "stated confidence": ("verbalised", -1, (1, "verbalised_tokens")),
}
#: Detectors of the question alone.
_OF_QUESTION: dict[str, _Further] = {"rarity": ("question_frequency", -1, (0, 0))}


def known(moment: Moment, trained: Trained, examples: Examples) -> dict[str, list[Detector]]:
    """Collect the detectors of a moment by kind; those of "before" remain available "after".

    "head" has the prober's score first, or nothing; "signal" each, and all combined by a logistic model
    of training texts; "joined" the prober's score with all signals, fitted on validation texts, where that
    score is not overconfident.
    """
    heads: list[Detector] = []
    if moment == "after" or trained.bank.spec.pool in _KNOWN:
        best = trained.layers[trained.best]
        heads = [replace(trained.saved, name=best.name if len(trained.layers) == 1 else ENSEMBLE)]
        if len(trained.layers) > 1:
            heads.append(replace(best, name=f"best layer ({best.name.removeprefix('layer ')})"))
    signals = _signals(moment, examples)
    if moment == "after":
        signals += [control for control in trained.controls if control.name in _AFTER]
        signals += _further(_SAMPLED, examples)
    detectors = {"head": heads, "signal": signals, "joined": []}
    if (inputs := _inputs(moment, examples)) is None:
        return detectors
    combined = f"{inputs.shape[1]} signals"
    scores = numbers(inputs, examples.wrong, examples.rows["train"])
    signals.append(Detector(COMBINED, scores, f"{combined}, logistic regression"))
    if heads:
        inputs, rows = np.hstack([heads[0].scores[:, None], inputs]), examples.rows["validation"]
        weights, mean, scale, intercept = fit_logistic(inputs[rows], examples.wrong[rows])
        scores = weighted_sums((inputs - mean) / scale, weights) + intercept
        about = f"logistic model of {heads[0].name} and {combined}, fitted on validation"
        detectors["joined"] = [Detector(WITH_SIGNALS, scores, about)]
    return detectors


def _signals(moment: Moment, examples: Examples) -> list[Detector]:
    if not set(BEFORE) <= set(examples.table):
        return []
    if moment == "before":
        return _further(_BEFORE | _OF_QUESTION, examples)
    first, highest = examples.table[["logprob_before", "max_prob_before"]].to_numpy(dtype=float).T
    # A text that begins with the likeliest token: its probability was known before.
    if np.allclose(np.exp(first), highest, atol=1e-5):
        return []
    return [Detector("first log-prob", -first, "minus logprob_before, not trained")]


def _further(columns: Mapping[str, _Further], examples: Examples) -> list[Detector]:
    """Make detectors of further columns; a missing value counts as the training mean."""
    detectors, table = [], examples.table
    for name, (column, sign, cost) in columns.items():
        if column not in table or table[column].iloc[examples.rows["train"]].isna().all():
            continue
        values = table[column].to_numpy(dtype=float)
        scores = sign * np.where(np.isnan(values), np.nanmean(values[examples.rows["train"]]), values)
        calls, tokens = (float(table[c].mean() if isinstance(c, str) else c) for c in cost)
        price = Cost(calls=calls, tokens=tokens)
        detectors.append(Detector(name, scores, f"{column}, not trained", cost=price))
    return detectors


def _inputs(moment: Moment, examples: Examples) -> np.ndarray | None:
    """Tabulate all signals (N, signals) of a moment; None if the store lacks some."""
    columns, table = [column for column, *_ in _BEFORE.values()], examples.table
    if moment == "after":
        # Signals of attention are missing in the stores of engines without it.
        after = (c for c in _COLUMNS if c not in table or not table[c].isna().any())
        columns = [*filter(table.__contains__, columns), *after]
    if not {*columns, "n_tokens"} <= set(table):
        return None
    values = table[columns].to_numpy(dtype=float)
    if moment == "before":
        return values
    return np.column_stack([values, table["mean_logprob"] * table["n_tokens"]])


def strata_of(examples: Examples, spec: FeatureSpec) -> dict[str, Strata]:
    """Divide the test texts by length, type (kind of answer) and both; a single stratum is left out.

    Labelled texts are divided by length, writer (the model that wrote them) and question.
    """
    divisions: dict[str, Strata] = {}
    if "n_tokens" in examples.table:
        lengths = examples.column("n_tokens", "test")
        divisions["length"] = Strata.by_length(lengths, short=spec.position == "entity")
    if "writer" in examples.table:
        divisions["writer"] = Strata.by(examples.column("writer", "test"))
        questions = Strata.by(examples.column("question", "test"))
        n, bad = questions.counts(examples.wrong[examples.rows["test"]])
        if ((bad > 0) & (bad < n)).any():  # else no question has a right and a wrong answer
            divisions["question"] = questions
    elif "answer_kind" in examples.table:
        divisions["type"] = Strata.by(examples.column("answer_kind", "test"))
    divisions = {name: strata for name, strata in divisions.items() if len(strata.names) > 1}
    if set(divisions) == {"length", "type"}:
        divisions["length and type"] = divisions["length"].and_by(divisions["type"])
    return divisions


def moment_figures(trained: Trained, examples: Examples, bootstrap: Bootstrap) -> schema.Moments:
    """Compute the figures of both moments; ``bootstrap`` is of the test examples."""
    test, spec = examples.rows["test"], trained.bank.spec
    strata, gold = strata_of(examples, spec), None
    # Where the store's labels are made otherwise.
    if "gold_right" in examples.table and len(set(examples.column("gold_right", "test"))) > 1:
        gold = 1 - examples.table["gold_right"].to_numpy(dtype=int)
    moments = {}
    for moment in MOMENTS:
        kinds = known(moment, trained, examples)
        samples = auroc_samples([d for ds in kinds.values() for d in ds], examples, bootstrap, strata, gold)
        heads, signals, joined = ([d for d in ds if d.name in samples] for ds in kinds.values())
        moments[moment] = schema.Moment(
            head=kinds["head"][0].name if kinds["head"] else None,
            detectors={
                d.name: schema.Known(
                    kind=kind, about=d.about, cost=d.cost,
                    **{key: _limited("auroc", one) for key, one in samples[d.name].items()},
                )
                for kind, ds in kinds.items() for d in ds if d.name in samples
            },
            pairs=paired(samples, heads[:1], signals) | paired(samples, joined, [*heads, *signals]),
        )  # fmt: skip
    return schema.Moments(
        position=spec.position if spec.position in _PIECES else "answer",
        strata={name: _division(of, examples.wrong[test]) for name, of in strata.items()},
        gold=gold is not None, notes=_notes(examples, spec), **moments,
    )  # fmt: skip


def auroc_samples(
    detectors: Sequence[Detector], examples: Examples, bootstrap: Bootstrap, strata: Mapping[str, Strata],
    gold: np.ndarray | None = None,
) -> dict[str, dict[str, Sample]]:  # fmt: skip
    """Sample each AUROC over "all" test texts, in strata, and by ``gold`` (N,); a constant has none."""
    test = examples.rows["test"]
    wrong, names = examples.wrong[test], ["all", *strata, *([] if gold is None else ["gold"])]

    def every(scores: np.ndarray, weights: np.ndarray) -> list[Any]:
        within = [metrics.pooled_auroc(wrong, scores, of.of, weights) for of in strata.values()]
        by_gold = [] if gold is None else [metrics.auroc(gold[test], scores, weights)]
        return [metrics.auroc(wrong, scores, weights), *within, *by_gold]

    return {
        d.name: dict(zip(names, bootstrap.samples(d.scores[test], every), strict=True))
        for d in detectors if np.ptp(d.scores[test]) > 0
    }  # fmt: skip


def paired(
    samples: Mapping[str, Mapping[str, Sample]], ours: Sequence[Detector], others: Sequence[Detector]
) -> dict[str, dict[str, Difference]]:
    """Compute paired differences in AUROC, each of ``ours`` minus each of ``others``, by division."""
    return {
        f"{a.name} vs {b.name}": {
            key: Difference(**_limited("diff", one.minus(samples[b.name][key])))
            for key, one in samples[a.name].items()
        }
        for a in ours for b in others if {a.name, b.name} <= samples.keys()
    }  # fmt: skip


def _limited(name: str, sample: Sample) -> dict[str, Any]:
    return {name: None if np.isnan(sample.value) else sample.value, "ci95": sample.interval.limits}


def _division(strata: Strata, wrong: np.ndarray) -> schema.Division:
    n, events = strata.counts(wrong)
    rows = zip(strata.names, n.tolist(), events.tolist(), strict=True)
    counts = {name: schema.Count(n=count, wrong=bad) for name, count, bad in rows}
    return schema.Division(compared=int(n[(events > 0) & (events < n)].sum()), strata=counts)


def _notes(examples: Examples, spec: FeatureSpec) -> list[str]:
    notes, table = [], examples.table
    for name, (column, *_) in (_OF_QUESTION | _SAMPLED).items():
        if column in table and (missing := int(table[column].isna().sum())):
            of = f"{missing} of {len(table)} texts"
            notes.append(f"{name}: no value for {of}, which count as the mean of the training texts")
    if "sample_undecided" in table and (pairs := int(table["sample_undecided"].sum())):
        notes.append(f"{pairs} pairs of samples could not be compared; they stand in different clusters")
    if lacking := [column for column in BEFORE if column not in table]:
        notes.append(f"no signals from before a text: the store has no column {lacking[0]}, make it again")
    what, pool = ("entity", "predicting") if spec.position == "entity" else ("answer", "prompt")
    if spec.pool in _KNOWN:
        notes.append(f"after the {what} the prober's score is that of the state before it, still known then")
    elif what == "entity" or "condition" in table:  # labelled texts have no such store
        notes.append(f"no head reads the state before the {what}: that is a store of pool={pool}")
    return notes
