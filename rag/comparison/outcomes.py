"""Figures of methods on common questions, in the form of results.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from probers.evaluation.answers import (
    MATCH,
    accuracy_contains,
    exact_match,
    f1_score,
    precision_recall_max,
    right_by,
    same_meaning,
)
from probers.evaluation.bootstrap import Bootstrap, Interval, Sample, few_groups, holm, mean
from probers.evaluation.metrics import Ranking, auroc, ece_interval, ranking
from probers.types import Decision, Question
from probers.words import EntityMatcher

from ..traces import Answer

#: Figures of an answer that need a gold answer. With several gold answers, ``precision`` and ``recall``
#: belong to the one with the highest F1; ``precision_max`` and ``recall_max`` are each the highest of any, as
#: in DRAGIN's released code. ``acc`` compares whole words, ``acc_substring`` characters, as in the released
#: code of Probing-RAG.
OUTCOMES = ("em", "f1", "precision", "recall", "precision_max", "recall_max", "acc", "acc_substring")
#: Figures by which two methods are compared.
_COMPARED = ("em", "f1", "acc", "acc_substring", MATCH)
#: The figure that ranks methods for a rule of wrong answers, where that is not the exact match.
_HEADLINES = {"acc": "acc", "acc_substring": "acc", MATCH: MATCH}
#: Counters averaged over all questions. ``alarms`` are RaDIO's Hc, ``kept_tokens`` those of the final text.
COSTS = (
    "retrievals", "generations", "alarms", "tokens", "read_tokens", "kept_tokens", "sentences", "seconds",
)  # fmt: skip
#: Costs that add up to all tokens: written tokens and those of prompts.
TOKENS = ("tokens", "read_tokens")
#: Figures against the closed-book answers. ``consistency``: share still right of the questions right there;
#: ``agreement``: share of all questions that are right on both sides or wrong on both, called consistency in
#: the released code of Probing-RAG.
_AGAINST = ("consistency", "agreement")
#: Figures of a method that abstains: share of questions answered, and of these the share right by the rule.
ABSTAINING = ("answered", "right_of_answered")
_TRIGGER = ("auroc", "auprc", "base_rate", "ece", "prr", "recall_at_fpr")

#: Whole text, final answer and gold answers.
Judged = tuple[str, str, Sequence[str]]


def figures_of(answers: Iterable[Judged], matcher: EntityMatcher | None) -> dict[str, np.ndarray]:
    """Compute each of :data:`OUTCOMES` (n,); with a matcher also whether answer and gold mean the same."""
    rows = [
        (
            exact_match(answer, gold),
            *f1_score(answer, gold),
            *precision_recall_max(answer, gold),
            accuracy_contains(text, gold),
            accuracy_contains(text, gold, mode="substring"),
            *(() if matcher is None else (same_meaning(answer, gold, matcher),)),
        )
        for text, answer, gold in answers
    ]
    names = OUTCOMES if matcher is None else (*OUTCOMES, MATCH)
    return dict(zip(names, np.array(rows, dtype=float).reshape(-1, len(names)).T, strict=True))


@dataclass(frozen=True)
class Outcomes:
    """Answers of one method to the questions, with their figures.

    ``calibration`` maps the trigger's scores (n,) to P(wrong). ``matcher`` judges the figure ``match``;
    without one the figure is left out.
    """

    questions: Sequence[Question]
    answers: Sequence[Answer]
    calibration: Callable[[np.ndarray], np.ndarray] | None = None
    matcher: EntityMatcher | None = None

    @cached_property
    def scored(self) -> np.ndarray:
        """Indices of the questions that have gold answers."""
        return np.array([i for i, q in enumerate(self.questions) if q.answers], dtype=int)

    @property
    def _judged(self) -> list[Judged]:
        each = [(self.answers[i], self.questions[i].answers) for i in self.scored]
        return [(answer.text, answer.answer, gold) for answer, gold in each]

    @cached_property
    def table(self) -> Mapping[str, np.ndarray]:
        """Figures of the answers to the questions with gold answers, as of :func:`figures_of`."""
        return figures_of(self._judged, self.matcher)

    def right(self, rule: str) -> np.ndarray:
        """Judge the answers to the questions with gold answers by a rule, 1 for right and 0 for wrong."""
        right = right_by(rule, self.matcher)
        assert right is not None, rule  # the command refuses other rules
        return np.array([right(*each) for each in self._judged], dtype=float)

    def cost(self, name: str) -> np.ndarray:
        """Look up one of :data:`COSTS` for every question."""
        return np.array([float(getattr(a.counters, name)) for a in self.answers])

    @cached_property
    def answered(self) -> np.ndarray:
        """Tell of the questions with gold answers, 1 or 0, which the method did not abstain from."""
        return np.array([float(not self.answers[i].abstained) for i in self.scored])

    @cached_property
    def read_known(self) -> bool:
        """Tell whether ``read_tokens`` are known of every answer."""
        return all(answer.counters.read_known for answer in self.answers)

    @cached_property
    def mean_retrievals(self) -> float:
        """Mean over the questions with gold answers."""
        return float(self.cost("retrievals")[self.scored].mean())

    @cached_property
    def decisions(self) -> Sequence[Sequence[Decision]]:
        """Decisions on each question, in order."""
        return [[r.decision for r in a.rounds if r.decision is not None] for a in self.answers]

    @cached_property
    def scores(self) -> np.ndarray | None:
        """(n,) the score of each question's first decision; None where there is none or all are equal."""
        scores = [decisions[0].score for decisions in self.decisions if decisions]
        return np.array(scores) if len(scores) == len(self.answers) and len(set(scores)) > 1 else None


class Evaluation:
    """Figures with intervals of several methods, from the same bootstrap resamples of groups of questions.

    ``reference`` is the closed-book run, whose wrong answers the triggers should find; None leaves out the
    figures that depend on it. An answer that fails the rule ``wrong`` is wrong, for triggers and consistency
    (:func:`probers.evaluation.answers.right_by`).
    """

    def __init__(
        self, questions: Sequence[Question], reference: Outcomes | None, *, wrong: str = "em",
        resamples: int = 1000, seed: int = 0,
    ) -> None:  # fmt: skip
        groups = [q.group or q.id for q in questions]
        answered = [q.group or q.id for q in questions if q.answers]
        self.rule, self._answered, units = wrong, len(answered), len({*groups})
        unit = "question" if units == len(groups) else "group"
        self.unit = {"unit": unit, "units": units, "resamples": resamples}
        self.few = few_groups(units, unit)
        self._all = Bootstrap(np.array(groups), resamples=resamples, seed=seed)
        self._scored = Bootstrap(np.array(answered), resamples=resamples, seed=seed) if answered else None
        #: 1 for each scored question whose closed-book answer is wrong, else 0.
        self.wrong = None if reference is None or not answered else 1.0 - reference.right(wrong)
        #: The figure that methods are ranked by.
        self.headline = _HEADLINES.get(wrong, "em")

    def figures(self, run: Outcomes) -> dict[str, Any]:
        """Compute one method's entry in results.json; figures that do not apply are null."""
        known = [name for name in COSTS if name != "read_tokens" or run.read_known]
        intervals = {name: self._all.interval(run.cost(name)) for name in known}
        if (scored := self._scored) is not None:
            right = run.right(self.rule)
            intervals |= {name: scored.interval(values) for name, values in run.table.items()}
            if not run.answered.all():
                intervals["answered"] = scored.interval(run.answered)
                intervals["right_of_answered"] = scored.interval(right, partial(_share_of, run.answered))
            if self.wrong is not None:
                intervals["consistency"] = scored.interval(right, partial(_share_of, 1.0 - self.wrong))
                intervals["agreement"] = scored.interval((right != self.wrong).astype(float))
                intervals["trigger.base_rate"] = scored.interval(self.wrong)
            if self.wrong is not None and run.scores is not None:
                ranked = scored.intervals(run.scores[run.scored], partial(ranking, self.wrong))
                intervals |= {f"trigger.{n}": i for n, i in zip(Ranking._fields, ranked, strict=True)}
                if run.calibration is not None:
                    chances = run.calibration(run.scores)[run.scored]
                    intervals["trigger.ece"] = ece_interval(scored, self.wrong, chances)
        retrievals = run.cost("retrievals")
        named = (*OUTCOMES, *(() if run.matcher is None else (MATCH,)), *COSTS, *_AGAINST)
        named += tuple(name for name in ABSTAINING if name in intervals)
        entry: dict[str, Any] = {name: _value(intervals.get(name)) for name in named}
        shares = {"none": retrievals == 0, "single": retrievals == 1, "multi": retrievals > 1}
        entry["retrieval_share"] = {name: float(such.mean()) for name, such in shares.items()}
        entry["trigger"] = {name: _value(intervals.get(f"trigger.{name}")) for name in _TRIGGER}
        entry["ci95"] = {name: i.limits for name, i in intervals.items() if i.limits is not None}
        return entry

    def samples(self, figures: Callable[[np.ndarray], Sequence[np.ndarray]]) -> list[Sample]:
        """Compute figures (r,) of weights (n, r) of the questions with gold answers, with their resamples."""
        assert self._scored is not None

        def every(_: np.ndarray, weights: np.ndarray) -> Sequence[Any]:
            return figures(weights) if weights.ndim > 1 else [of[0] for of in figures(weights[:, None])]

        return self._scored.samples(np.zeros(self._answered), every)

    def pairs(
        self, runs: Mapping[str, Outcomes], more: Mapping[str, Mapping[str, Sample]] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Compare each method with each earlier one, paired; Holm's correction is over a figure's pairs.

        ``more`` are further figures of methods, of this evaluation's resamples.
        """
        samples = {name: {**self._samples(run), **(more or {}).get(name, {})} for name, run in runs.items()}
        differences: dict[str, dict[str, Any]] = {}
        for i, (later, ones) in enumerate(samples.items()):
            for earlier, others in list(samples.items())[:i]:
                tested = {f: _tested(one.minus(others[f])) for f, one in ones.items() if f in others}
                known = {figure: entry for figure, entry in tested.items() if entry["diff"] is not None}
                differences[f"{later} vs {earlier}"] = known
        for figure in {figure for entry in differences.values() for figure in entry}:
            correct([entry[figure] for entry in differences.values() if figure in entry])
        return differences

    def _samples(self, run: Outcomes) -> dict[str, Sample]:
        samples = {"retrievals": self._all.sample(run.cost("retrievals"))}
        if (scored := self._scored) is not None:
            samples |= {n: scored.sample(run.table[n]) for n in _COMPARED if n in run.table}
            if self.wrong is not None and run.scores is not None:
                rank = partial(auroc, self.wrong)
                samples["trigger.auroc"] = scored.sample(run.scores[run.scored], rank)
        return samples

    def against_random(self, run: Outcomes, expected: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Compare a method with random retrieval at its budget, paired, for results.json.

        ``expected`` are costs and figures of random retrieval, (n,) each, for the questions with gold
        answers (:meth:`.trajectories.RetrievalTrajectory.at_random`). ``times_tokens`` is the method's number
        of all tokens divided by that of random retrieval, where both are known.
        """
        assert self._scored is not None
        entry: dict[str, Any] = {n: float(values.mean()) for n, values in expected.items() if n in COSTS}
        if run.read_known and entry.keys() >= {*TOKENS}:
            tokens = sum(run.cost(name)[run.scored].mean() for name in TOKENS)
            entry["times_tokens"] = float(tokens / max(1.0, sum(entry[name] for name in TOKENS)))
        for name in [name for name in expected if name not in COSTS]:
            sample = self._scored.sample(run.table[name]).minus(self._scored.sample(expected[name]))
            entry[name] = {"value": float(expected[name].mean())} | _tested(sample)
        return entry


def _share_of(members: np.ndarray, values: np.ndarray, weights: np.ndarray) -> Any:
    """Compute the weighted mean of the values of some members; NaN without any."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return mean(values, (weights.T * members).T)


def _value(interval: Interval | None) -> float | None:
    return None if interval is None or math.isnan(interval.value) else float(interval.value)


def _tested(difference: Sample) -> dict[str, Any]:
    interval, p = difference.interval, difference.p
    return {"diff": _value(interval), "ci95": interval.limits, "p": None if math.isnan(p) else p}


def correct(family: Sequence[dict[str, Any]]) -> None:
    """Add Holm's corrected p-values to a family of differences."""
    known = [entry for entry in family if entry["p"] is not None]
    for entry, p in zip(known, holm([entry["p"] for entry in known]), strict=True):
        entry["p_holm"] = p


#: Columns of a text table: title, figure and digits; and the figure from which it must differ for some method
#: to be shown, "" for one that must be known of some method.
_COLUMNS = [
    ("saved", "retrievals_saved", 2, ""), ("gained", "accuracy_gained", 3, ""), ("EM", "em", 3, None),
    ("F1", "f1", 3, None), ("match", MATCH, 3, ""), ("ACC", "acc", 3, "em"),
    ("ACC chars", "acc_substring", 3, "acc"), ("answered", "answered", 2, ""),
    ("right of answered", "right_of_answered", 3, ""), ("retrievals", "retrievals", 2, None),
    ("calls", "generations", 2, None), ("tokens", "tokens", 1, None), ("kept", "kept_tokens", 1, "tokens"),
    ("read", "read_tokens", 0, None), ("s/question", "seconds", 3, None),
    ("consistency", "consistency", 3, None), ("agreement", "agreement", 3, None),
    ("AUROC", "trigger.auroc", 3, None),
]  # fmt: skip


def table_lines(
    methods: Mapping[str, Mapping[str, Any]], at_random: Mapping[str, Mapping[str, Any]] | None = None,
    headline: str = "em", *, wide: bool = True,
) -> list[str]:  # fmt: skip
    """Format results.json, with ``random_at_budget`` if it has that, as lines of a text table.

    The table has every column, or (``wide`` false) those that fit into 80 characters.
    """
    few = (headline, "retrievals", "trigger.auroc")
    columns = [
        (title, key, digits)
        for title, key, digits, beside in _COLUMNS
        if key in few
        or (wide and beside is None)
        or (wide and any(e.get(key) != (e[beside] if beside else None) for e in methods.values()))
    ]
    width = max(map(len, [*methods, "method"]))
    short = next(title for title, key, _ in columns if key == headline)
    shares = wide and any(entry.get("gain_share") is not None for entry in methods.values())
    heads = [f"{'share of gain':>22}"] if shares else []
    for title, key, _ in columns:
        heads += [f"{title:>{max(6, len(title))}}", *([f"{'95%':>13}"] if key == headline else [])]
    heads += [f"{f'{short} vs random':>23}"] if at_random else []
    lines = [" ".join([" " * width, *heads])]
    for name, entry in methods.items():
        cells = [f"{_bounded(entry, 'gain_share'):>22}"] if shares else []
        for title, key, digits in columns:
            value = entry["trigger"]["auroc"] if key == "trigger.auroc" else entry.get(key)
            cells.append(f"{'-' if value is None else f'{value:.{digits}f}':>{max(6, len(title))}}")
            if key == headline:
                ci = entry["ci95"].get(key)
                cells.append(f"{f'({ci[0]:.3f} {ci[1]:.3f})' if ci else '-':>13}")
        if at_random:
            cells.append(f"{_compared(at_random.get(name), headline):>23}")
        lines.append(" ".join([f"{name:<{width}}", *cells]))
    return lines


def _bounded(entry: Mapping[str, Any], figure: str) -> str:
    value, ci = entry.get(figure), entry["ci95"].get(figure)
    if value is None:
        return "-"
    return f"{value:.3f}" if ci is None else f"{value:.3f} ({ci[0]:.3f} {ci[1]:.3f})"


def _compared(entry: Mapping[str, Any] | None, figure: str) -> str:
    difference = {} if entry is None else entry.get("common", entry)[figure]
    if difference.get("ci95") is None:
        return "-"
    low, high = difference["ci95"]
    return f"{difference['diff']:+.3f} ({low:+.3f} {high:+.3f})"
