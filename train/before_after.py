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
from probers.evaluation.baselines import Strata, numbers, pooled_auroc
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
#: Signals of the position that predicts the first token: name -> column, and 1 where more is likelier wrong.
_BEFORE = {
    "entropy before": ("entropy_before", 1),
    "probability before": ("max_prob_before", -1),
    "margin before": ("margin_before", -1),
}
#: Controls over the written tokens, and the columns that are combined.
_AFTER = (
    "mean entropy", "max entropy", "min probability", "perplexity", "sequence log-prob", "RIND maximum",
    "length",
)  # fmt: skip
_COLUMNS = (*SIGNALS, "rind_max")
#: A cost: a number, or the column that has it.
_Told = str | float
_DRAWN = ("sample_calls", "sample_tokens")
#: Detectors that draw or ask: column, -1 where more is likelier right, and calls and tokens.
_SAMPLED: dict[str, tuple[str, int, tuple[_Told, _Told]]] = {
    "self-consistency": ("self_consistency", -1, _DRAWN),
    "semantic entropy": ("semantic_entropy", 1, _DRAWN),
    "semantic, weighted": ("semantic_entropy_weighted", 1, _DRAWN),
    "lexical similarity": ("lexical_similarity", -1, _DRAWN),
    "EigenScore": ("eigenscore", 1, _DRAWN),
    "P(True)": ("p_true", -1, (1, 1)),
    "stated confidence": ("verbalised", -1, (1, "verbalised_tokens")),
}
#: Detectors of the question alone.
_OF_QUESTION: dict[str, tuple[str, int, tuple[_Told, _Told]]] = {
    "rarity": ("question_frequency", -1, (0, 0)),
}


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
    found = {"head": heads, "signal": signals, "joined": []}
    inputs = _inputs(moment, examples)
    if inputs is None:
        return found
    about = f"{inputs.shape[1]} signals, logistic regression"
    signals.append(Detector(COMBINED, numbers(inputs, examples.wrong, examples.rows["train"]), about))
    if heads:
        about = f"logistic model of {heads[0].name} and {inputs.shape[1]} signals, fitted on validation"
        inputs = np.hstack([heads[0].scores[:, None], inputs])
        rows = examples.rows["validation"]
        weights, mean, scale, intercept = fit_logistic(inputs[rows], examples.wrong[rows])
        scores = (inputs - mean) / scale @ weights + intercept
        found["joined"] = [Detector(WITH_SIGNALS, scores, about)]
    return found


def _signals(moment: Moment, examples: Examples) -> list[Detector]:
    if not set(BEFORE) <= set(examples.table):
        return []
    table = {column: examples.table[column].to_numpy(dtype=float) for column in BEFORE}
    if moment == "before":
        found = [
            Detector(name, sign * table[column], f"{column}, not trained")
            for name, (column, sign) in _BEFORE.items()
        ]
        return found + _further(_OF_QUESTION, examples)
    # A text that begins with the likeliest token: its probability was known before.
    if np.allclose(np.exp(table["logprob_before"]), table["max_prob_before"], atol=1e-5):
        return []
    return [Detector("first log-prob", -table["logprob_before"], "minus logprob_before, not trained")]


def _further(
    columns: Mapping[str, tuple[str, int, tuple[_Told, _Told]]], examples: Examples
) -> list[Detector]:
    """Detectors of further columns; a missing value counts as the training mean."""
    found, train = [], examples.rows["train"]
    for name, (column, sign, cost) in columns.items():
        if column not in examples.table:
            continue
        values = examples.table[column].to_numpy(dtype=float)
        if np.isnan(values[train]).all():
            continue
        scores = sign * np.where(np.isnan(values), np.nanmean(values[train]), values)
        calls, tokens = (float(examples.table[c].mean() if isinstance(c, str) else c) for c in cost)
        found.append(Detector(name, scores, f"{column}, not trained", cost=Cost(calls=calls, tokens=tokens)))
    return found


def _gold(examples: Examples) -> np.ndarray | None:
    """Label answers (N,) by their gold answers, 1 for wrong, where the store's labels are made otherwise."""
    if "gold_right" not in examples.table:
        return None
    wrong = 1 - examples.table["gold_right"].to_numpy(dtype=int)
    return wrong if 0 < wrong[examples.rows["test"]].mean() < 1 else None


def _inputs(moment: Moment, examples: Examples) -> np.ndarray | None:
    """Tabulate all signals (N, signals) of a moment; None if the store lacks some."""
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
    """Divide the test texts by length, type (kind of answer) and both; a single stratum is left out.

    Labelled texts are divided by length, writer (the model that wrote them) and question.
    """
    found: dict[str, Strata] = {}
    if "n_tokens" in examples.table:
        lengths = examples.column("n_tokens", "test")
        found["length"] = Strata.by_length(lengths, short=spec.position == "entity")
    if "answer_kind" in examples.table:
        found["type"] = Strata.by(examples.column("answer_kind", "test"))
    if "writer" in examples.table:
        found.pop("type", None)
        found["writer"] = Strata.by(examples.column("writer", "test"))
        found["question"] = Strata.by(examples.column("question", "test"))
        wrong = examples.wrong[examples.rows["test"]]
        n, bad = found["question"].counts(wrong)
        if not ((bad > 0) & (bad < n)).any():  # no question has a right and a wrong answer
            del found["question"]
    found = {name: strata for name, strata in found.items() if len(strata.names) > 1}
    if set(found) == {"length", "type"}:
        found["length and type"] = found["length"].and_by(found["type"])
    return found


def moment_figures(trained: Trained, examples: Examples, bootstrap: Bootstrap) -> schema.Moments:
    """Compute the figures of both moments; ``bootstrap`` is of the test examples."""
    test = examples.rows["test"]
    wrong = examples.wrong[test]
    spec = trained.bank.spec
    strata, gold = strata_of(examples, spec), _gold(examples)
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
        strata={name: _division(of, wrong) for name, of in strata.items()},
        gold=gold is not None, notes=_notes(examples, spec), **moments,
    )  # fmt: skip


def auroc_samples(
    detectors: Sequence[Detector], examples: Examples, bootstrap: Bootstrap, strata: Mapping[str, Strata],
    gold: np.ndarray | None = None,
) -> dict[str, dict[str, Sample]]:  # fmt: skip
    """Sample each detector's AUROC over "all" test texts and within strata; a constant ranks nothing.

    With other labels ``gold`` (N,), also the AUROC by these.
    """
    test = examples.rows["test"]
    wrong = examples.wrong[test]
    others = {} if gold is None else {"gold": gold[test]}

    def every(scores: np.ndarray, weights: np.ndarray) -> list[Any]:
        within = [pooled_auroc(wrong, scores, of.of, weights) for of in strata.values()]
        more = [metrics.auroc(labels, scores, weights) for labels in others.values()]
        return [metrics.auroc(wrong, scores, weights), *within, *more]

    return {
        d.name: dict(zip(["all", *strata, *others], bootstrap.samples(d.scores[test], every), strict=True))
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
    each = zip(strata.names, n.tolist(), events.tolist(), strict=True)
    return schema.Division(
        compared=int(n[(events > 0) & (events < n)].sum()),
        strata={name: schema.Count(n=count, wrong=bad) for name, count, bad in each},
    )


def _notes(examples: Examples, spec: FeatureSpec) -> list[str]:
    found = []
    for name, (column, *_) in {**_OF_QUESTION, **_SAMPLED}.items():
        if column in examples.table and (missing := int(examples.table[column].isna().sum())):
            of = f"{missing} of {len(examples.table)} texts"
            found.append(f"{name}: no value for {of}, which count as the mean of the training texts")
    if "sample_undecided" in examples.table and (pairs := int(examples.table["sample_undecided"].sum())):
        found.append(f"{pairs} pairs of samples could not be compared; they stand in different clusters")
    lacking = [column for column in BEFORE if column not in examples.table]
    if lacking:
        found.append(f"no signals from before a text: the store has no column {lacking[0]}, make it again")
    what, pool = ("entity", "predicting") if spec.position == "entity" else ("answer", "prompt")
    if spec.pool in _KNOWN:
        found.append(f"after the {what} the prober's score is that of the state before it, still known then")
    elif what == "entity" or "condition" in examples.table:  # labelled texts have no such store
        found.append(f"no head reads the state before the {what}: that is a store of pool={pool}")
    return found
