"""Answers after every number of retrievals, recorded once per query, and the results read from them.

Triggers that judge whole answers decide when to retrieve, and the query decides what is found. So one run
that retrieves after every answer covers all such triggers with that query: a trigger that stops earlier has
the answer of that step. Every threshold of such a trigger and the expected result of random retrieval at any
budget follow without generating again.

Thresholds and calibration of triggers that bring none come from the same recordings on validation questions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np

from probers.checksums import made_once
from probers.evaluation.answers import MATCH, Rule, right_by_em
from probers.prober.calibration import Platt, fit_platt
from probers.prober.decision import ThresholdRule
from probers.progress import Bar
from probers.types import Decision, Generation, Needs, Passage, Question
from probers.words import EntityMatcher

from ..loop import RAG
from ..protocol import UNANSWERED, State, Trigger, decide, decide_before, verdict
from ..traces import Counters
from .outcomes import TOKENS, figures_of

#: Figures of an answer that are replayed, :data:`MATCH` only with a matcher.
FIGURES = ("em", "f1", "acc", MATCH)
_CHUNK = 64  # questions answered together
_POINTS = 60  # at most, of a curve


@dataclass(frozen=True)
class Step:
    """One answer to a question (whole text and final answer), and the score of each trigger that was asked.

    Attributes:
        tokens, read_tokens: all tokens written and read by a run that ends with this answer, counted as in
            :class:`~probers.rag.traces.Counters`; None in files from before they were recorded.
        spent: both counts of the texts that a trigger asked the model for up to here, or that were asked for
            to read answers that were then discarded; triggers that ask for nothing are left out.
    """

    text: str
    answer: str
    scores: Mapping[str, float] = field(default_factory=dict)
    tokens: int | None = None
    read_tokens: int | None = None
    spent: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RetrievalTrajectory:
    """Every answer of a run that always retrieves: for each question one step more than retrievals.

    All questions have gold answers. The figure ``match`` is left out without a matcher, and tokens unless
    they are known of every answer.
    """

    questions: Sequence[Question]
    steps: Sequence[Sequence[Step]]
    matcher: EntityMatcher | None = None

    def granted(self, retrievals: int | np.ndarray) -> dict[str, np.ndarray]:
        """Look up retrievals made, tokens and each figure, (n,) each, with at most ``retrievals`` of them."""
        counts = np.minimum(retrievals, np.array([len(steps) - 1 for steps in self.steps], dtype=int))
        rows = np.arange(len(self.steps))
        return {"retrievals": counts.astype(float)} | {n: t[rows, counts] for n, t in self._tables.items()}

    def at_random(self, budget: float) -> dict[str, np.ndarray]:
        """Compute the expected results of random retrieval at a mean of ``budget``, as of :meth:`granted`.

        Every question is granted the same number of retrievals or, with the same chance for all, one more, as
        by :class:`~probers.rag.triggers.Random`. A budget above the most that questions take counts as that.
        """
        means = [float(step["retrievals"].mean()) for step in self.all_steps()]
        low = max(0, min(int(np.searchsorted(means, budget, side="right")) - 1, self._most - 1))
        share = min(1.0, (budget - means[low]) / (means[low + 1] - means[low])) if self._most else 0.0
        less, more = self.granted(low), self.granted(low + 1)
        return {name: (1 - share) * less[name] + share * more[name] for name in less}

    def replay(self, trigger: str, threshold: float) -> dict[str, np.ndarray]:
        """Look up the results of a trigger at a threshold, as if it had run, keyed as by :meth:`granted`."""
        fires = np.pad(self.scores(trigger) > threshold, ((0, 0), (0, 1)))
        results = self.granted(fires.argmin(axis=1))  # the first step at which it does not fire
        ends = zip(self.steps, results["retrievals"].astype(int), strict=True)
        spent = np.transpose([steps[end].spent.get(trigger, (0, 0)) for steps, end in ends])
        more = {name: counts for name, counts in zip(TOKENS, spent, strict=False) if name in results}
        return results | {name: results[name] + counts for name, counts in more.items()}

    def sweep(self, trigger: str) -> dict[str, list[float]]:
        """Compute mean retrievals and figures of a trigger, thinned, from the lowest threshold up."""
        thresholds = self.thresholds(trigger)
        return {"threshold": thresholds} | _means([self.replay(trigger, each) for each in thresholds])

    def thresholds(self, trigger: str) -> list[float]:
        """List thresholds of a trigger, thinned, from one below all of its scores to the highest of them."""
        scores = self.scores(trigger)
        # Where a trigger says that an answer is not judged, no threshold lies below it.
        levels = np.unique(scores[np.isfinite(scores) & (scores > -UNANSWERED)])
        every = [float(levels[0] - 1.0) if len(levels) else 0.0, *map(float, levels)]
        return [every[i] for i in thinned(len(every))]

    def all_steps(self) -> list[dict[str, np.ndarray]]:
        """List the results with at most 0, 1, .. retrievals of a question, as of :meth:`granted`."""
        return [self.granted(j) for j in range(self._most + 1)]

    def random_curve(self, *, steps: int = 12) -> dict[str, list[float]]:
        """Compute expected means of random retrieval, from no retrieval to the most possible."""
        top = float(self.granted(self._most)["retrievals"].mean())
        count = steps * max(1, self._most)
        return _means([self.at_random(top * i / count) for i in range(count + 1)])

    @property
    def triggers(self) -> list[str]:
        return list(self.steps[0][0].scores) if self.steps else []

    def scores(self, trigger: str) -> np.ndarray:
        """Collect a trigger's scores (n, steps at most), -inf where there is no further answer."""
        table = np.full((len(self.steps), self._most + 1), -np.inf)
        for row, steps in zip(table, self.steps, strict=True):
            row[: len(steps)] = [step.scores[trigger] for step in steps]
        return table

    @property
    def _most(self) -> int:
        """Retrievals of the question with the most."""
        return max(map(len, self.steps), default=1) - 1

    @cached_property
    def _tables(self) -> Mapping[str, np.ndarray]:
        """Tokens and each figure, (n, steps at most); 0 where there is no further answer."""
        there = np.arange(self._most + 1) < np.array([[len(steps)] for steps in self.steps])
        each = zip(self.questions, self.steps, strict=True)
        judged = [(step.text, step.answer, q.answers) for q, steps in each for step in steps]
        columns = {n: values for n, values in figures_of(judged, self.matcher).items() if n in FIGURES}
        every = [step for steps in self.steps for step in steps]
        # An empty text counts no prompt. For other texts, a server may not tell how many tokens it read.
        if all(step.tokens == 0 or step.read_tokens for step in every):
            columns |= {n: np.array([getattr(step, n) for step in every], dtype=float) for n in TOKENS}
        tables = {name: np.zeros(there.shape) for name in columns}
        for name, values in columns.items():
            tables[name][there] = values
        return tables


def _means(points: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[float]]:
    return {name: [float(point[name].mean()) for point in points] for name in points[0]}


def record(
    rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], *, progress: str | None = None
) -> RetrievalTrajectory:
    """Retrieve after every answer, whatever the loop's own trigger decides, and record the triggers' scores.

    All triggers judge whole answers, and one pass can record their needs. All questions have gold answers.
    """
    recorder = _Recorder(triggers)
    loop = replace(rag, trigger=recorder, query=_Charged(rag.query, recorder))
    with Bar(total=len(questions), desc=progress, unit="question", disable=progress is None) as bar:
        for start in range(0, len(questions), _CHUNK):
            loop.answer(questions[start : start + _CHUNK], ended=bar.update)
    unseen = Step("", "", dict.fromkeys(triggers, 0.0), 0, 0)
    return RetrievalTrajectory(questions, [recorder.seen.get(q.id) or [unseen] for q in questions])


def record_once(
    file: Path, rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], *, progress: str,
    matcher: EntityMatcher | None = None,
) -> RetrievalTrajectory:  # fmt: skip
    """Call :func:`record`, or read its result from ``file`` where an earlier run wrote it."""

    def recorded() -> dict[str, list[dict[str, Any]]]:
        entries = zip(questions, record(rag, triggers, questions, progress=progress).steps, strict=True)
        return {"questions": [{"id": q.id, "steps": list(map(asdict, steps))} for q, steps in entries]}

    stored = made_once(file, recorded)["questions"]
    steps = [[Step(**step) for step in entry["steps"]] for entry in stored]
    return RetrievalTrajectory(questions, steps, matcher)


@dataclass
class _Recorder(Trigger):
    """Recorder of the triggers' scores of every answer, which retrieves anyway.

    A trigger that decides only before anything is written has its verdict's score.
    """

    triggers: Mapping[str, Trigger]
    seen: dict[str, list[Step]] = field(default_factory=dict)  # by question
    # Costs by question and trigger of the texts it asked the model for; under None those of the loop's texts.
    _spent: dict[tuple[str, str | None], Counters] = field(
        default_factory=lambda: defaultdict(Counters), init=False
    )

    judges_answer = reads_answer = True  # every answer is completed, as if it were accepted

    @property
    def needs(self) -> Needs:
        return reduce(Needs.union, (trigger.needs for trigger in self.triggers.values()), Needs())

    def charged(self, state: State, name: str | None = None) -> State:
        """Charge what is asked of the model to a trigger, or to the loop's texts."""
        return replace(state, spend=self._spent[state.question.id, name].add)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        every = {
            name: _scores(trigger, generations, [self.charged(state, name) for state in states])
            for name, trigger in self.triggers.items()
        }
        for i, (generation, state) in enumerate(zip(generations, states, strict=True)):
            scores = {name: values[i] for name, values in every.items()}
            texts = self._spent[state.question.id, None]
            texts.add(generation)
            whole = replace(texts)
            if state.final is not None:  # a run asks for it only at its end
                whole.add(state.final, forced=True)
            spent = {name: self._spent[state.question.id, name] for name in scores}
            step = Step(
                state.completed(generation), state.answer or "", scores, whole.tokens, whole.read_tokens,
                {name: (c.tokens, c.read_tokens) for name, c in spent.items() if c.generations},
            )  # fmt: skip
            self.seen.setdefault(state.question.id, []).append(step)
            for name, trigger in self.triggers.items():
                if trigger.reads_answer and state.final is not None:  # asked for in every round
                    spent[name].add(state.final, forced=True)
        return [verdict(1.0, 0.5)] * len(generations)


@dataclass(frozen=True)
class _Charged:
    """Query whose calls of the model count among the recorder's costs of the loop's texts."""

    query: Any
    recorder: _Recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.query, name)

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        return self.query(question, generation, decision, self.recorder.charged(state))

    @property
    def find(self) -> Callable[..., list[list[Passage]]]:
        find = self.query.find  # AttributeError where it has none
        return lambda queries, states, *how: find(queries, list(map(self.recorder.charged, states)), *how)


def _scores(trigger: Trigger, generations: Sequence[Generation], states: Sequence[State]) -> list[float]:
    only_before = trigger.before and not trigger.after
    decisions = decide_before(trigger, states) if only_before else decide(trigger, generations, states)
    return [0.0 if decision is None else decision.score for decision in decisions]


def together(triggers: Mapping[str, Trigger], needs: Needs | None = None) -> list[dict[str, Trigger]]:
    """Group the triggers greedily so that one pass can record the needs of each group, and ``needs``."""
    groups: list[tuple[dict[str, Trigger], Needs]] = []
    for name, trigger in triggers.items():
        for i, (group, known) in enumerate(groups):
            with suppress(ValueError):
                groups[i] = (group | {name: trigger}, known.union(trigger.needs))
                break
        else:
            groups.append(({name: trigger}, (needs or Needs()).union(trigger.needs)))
    return [group for group, _ in groups]


def thinned(count: int) -> list[int]:
    """List the indices of at most 60 of ``count`` points, both ends included."""
    points = min(count, _POINTS)
    return [round(i * (count - 1) / max(1, points - 1)) for i in range(points)]


@dataclass(frozen=True, slots=True)
class Tuned(Platt):
    """Calibration and threshold of one trigger, from validation questions.

    ``told`` is the rule's promise for the threshold, or why it always fires; empty if nothing is promised.
    """

    threshold: float
    told: str = ""


def tune_once(
    file: Path, rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], right: Rule,
    rule: ThresholdRule,
) -> dict[str, Tuned]:  # fmt: skip
    """Call :func:`tune`, or read its result from ``file``, so that a resumed run keeps its thresholds."""

    def tuned() -> dict[str, dict[str, Any]]:
        return {name: asdict(entry) for name, entry in tune(rag, triggers, questions, right, rule).items()}

    return {name: Tuned(**entry) for name, entry in made_once(file, tuned).items()}


def tune(
    rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question], right: Rule = right_by_em,
    rule: ThresholdRule = ThresholdRule(),  # noqa: B008 (frozen)
) -> dict[str, Tuned]:  # fmt: skip
    """Choose threshold and calibration of every trigger from the closed-book answers to validation questions.

    The ``rule`` is one of those that choose a prober's threshold in training, for "the answer is wrong". A
    trigger for which it can promise nothing gets a threshold at which it always fires. The result is empty
    unless there are both right and wrong answers to questions with gold answers.
    """
    answered = [q for q in questions if q.answers]
    closed_book = replace(rag, max_retrievals=0)
    groups = np.array([q.group or q.id for q in answered])
    tuned: dict[str, Tuned] = {}
    for group in together(triggers):
        recorded = record(closed_book, group, answered, progress="thresholds")
        first = [steps[0] for steps in recorded.steps]
        judged = [right(s.text, s.answer, q.answers) for s, q in zip(first, answered, strict=True)]
        wrong = 1.0 - np.array(judged, dtype=float)
        if len(set(wrong)) < 2:
            return {}
        for name in group:
            scores = recorded.scores(name)[:, 0]
            # The score of an answer without a token is on no scale and would distort the calibration.
            written = scores < UNANSWERED
            if len(set(wrong[written])) < 2:
                written[:] = True
            platt = fit_platt(wrong[written], scores[written])
            chosen = rule.choose(wrong, scores, groups, refuse=False)
            refusal = chosen.refused and f"it always fires, for {chosen.refused}"
            promise = refusal if chosen.promise is None else str(chosen.promise)
            tuned[name] = Tuned(platt.slope, platt.intercept, chosen.value, promise)
    return tuned
