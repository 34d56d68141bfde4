"""Threshold curves: replayed where a trigger judges whole answers, run again where it does not.

A trigger that fires within an answer decides what is written from there on, so that its
thresholds cannot be read from recorded answers (:mod:`probers.rag.compare.trajectories`); they are run. Each
next one goes where neighbouring points of the curve lie farthest apart in retrievals per
question, to the middle of the scores recorded so far that fire at one of the two only. The
closed-book answers are the same at every threshold and are one more point of each curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from probers.types import Question

from ..loop import RAG
from ..queries.base import QueryFormulator
from ..queries.last_tokens import LastTokensQuery
from ..triggers.base import name_of
from .methods import Method
from .outcomes import Comparison, Outcomes
from .thresholds import together
from .trajectories import FIGURES, Ladder, stored_or_climbed


@dataclass(frozen=True)
class Climbed:
    """The ladder of one query.

    Attributes:
        name: of the query; numbered where two differ in their options only.
        query: the formulation.
        methods: names of the methods that ask with it.
        ladder: its recorded answers, to the questions with gold answers.
    """

    name: str
    query: QueryFormulator
    methods: tuple[str, ...]
    ladder: Ladder


def climb_all(
    rag: RAG,
    methods: Sequence[Method],
    runs: Mapping[str, Outcomes],
    questions: Sequence[Question],
    out: Path,
) -> list[Climbed]:
    """A ladder for every query that an adaptive method asked with; triggers of whole answers are asked on it.

    Args:
        rag: a loop whose model, retriever, prompt and limits are used.
        methods: as they ran.
        runs: of these methods, by name.
        questions: the common questions; those without gold answers are left out.
        out: folder for the recorded answers.
    """
    answered = [q for q in questions if q.answers]
    found: list[Climbed] = []
    if not answered or not rag.max_retrievals:
        return found
    fired = [m for m in methods if m.adaptive and runs[m.name].cost("retrievals").any()]
    queries: list[QueryFormulator] = []
    for method in fired:
        if method.query not in queries:
            queries.append(method.query)
    for query in queries:
        asking = [m for m in fired if m.query == query]
        whole = {m.name: m.trigger for m in asking if judges_whole_answers(m, runs[m.name])}
        # One pass records what all of these need; the rare one that needs another pass has no curve.
        asked = next(iter(together(whole, query.needs)), {})
        alike = sum(type(each.query) is type(query) for each in found)
        name = name_of(query) + (f"_{alike + 1}" if alike else "")
        ladder = stored_or_climbed(
            out / f"{name}.json", rag, query, asked, answered, progress=f"replay {name}"
        )
        found.append(Climbed(name, query, tuple(m.name for m in asking), ladder))
    return found


def judges_whole_answers(method: Method, run: Outcomes) -> bool:
    """Whether a method fires on whole answers only, which are then written anew."""
    trigger = method.trigger
    if method.fixed or trigger.judges_answer or trigger.before or any(map(trigger.look_ahead, run.questions)):
        return False
    fired = [r.decision for a in run.answers for r in a.rounds if r.decision is not None and r.decision.fire]
    return bool(fired) and all(decision.position is None for decision in fired)


def at_random(
    climbed: Sequence[Climbed], runs: Mapping[str, Outcomes], comparison: Comparison
) -> dict[str, dict[str, Any]]:
    """Every adaptive method against random retrieval with its query at its mean number of retrievals.

    Random retrieval judges whole answers, and a query that was made for the middle of one, such
    as the last sentence, is poor there. So methods that fire within an answer, or before it, are
    under ``common`` also set against random retrieval with the query of those that judge whole ones.
    """
    common = next((entry for entry in climbed if entry.ladder.triggers), None)
    found: dict[str, dict[str, Any]] = {}
    for entry in climbed:
        for name in entry.methods:
            run = runs[name]
            budget = float(run.cost("retrievals")[run.scored].mean())
            found[name] = _against(entry, run, budget, comparison)
            if common is not None and not entry.ladder.triggers:
                found[name]["common"] = _against(common, run, budget, comparison)
    return found


def _against(entry: Climbed, run: Outcomes, budget: float, comparison: Comparison) -> dict[str, Any]:
    return {"query": entry.name} | comparison.against_random(run, entry.ladder.at_random(budget))


def replays(climbed: Sequence[Climbed]) -> dict[str, dict[str, list[float]]]:
    """Curves over the thresholds by method, and of random retrieval for each query that has any."""
    found: dict[str, dict[str, list[float]]] = {}
    with_curves = [entry for entry in climbed if entry.ladder.triggers]
    for entry in with_curves:
        name = "random" if len(with_curves) == 1 else f"random {entry.name}"
        found[name] = entry.ladder.random_curve()
        curves = {trigger: entry.ladder.sweep(trigger) for trigger in entry.ladder.triggers}
        # A trigger that always says the same has no threshold to move.
        found |= {trigger: curve for trigger, curve in curves.items() if len(curve["threshold"]) > 2}
    return found


#: Two points that are no farther apart than this, in retrievals per question, need none between them.
_CLOSE = 0.05


@dataclass(frozen=True)
class Knob:
    """What of a method is set differently from run to run.

    Attributes:
        option: ``threshold`` of the trigger's score, above which it fires; ``n``, tokens from one
            retrieval to the next, and with it those that a query of as many last tokens has; or,
            for rules that have neither, ``max_retrievals`` per question.
        own: what the method was run at, or of ``max_retrievals`` what it took at most.
        idle: where nothing is retrieved; None where there is no such setting.
        ends: settings to begin with.
    """

    option: Literal["threshold", "n", "max_retrievals"]
    own: float
    idle: float | None
    ends: tuple[float, ...] = ()

    def between(self, low: float, high: float, scores: np.ndarray) -> float | None:
        """A setting between two that may be told apart from both, by all scores seen so far; or None."""
        if self.option != "threshold":
            middle = (low + high) // 2
            return middle if low < middle < high else None
        scores = np.sort(scores[(scores > low) & (scores <= high)])  # they fire at one of the two only
        levels = np.unique(scores)
        if len(levels) < 2:
            return None
        # Not a score itself, which rounding in another batch could move across.
        cuts = (levels[1:] + levels[:-1]) / 2
        return float(cuts[np.abs(np.searchsorted(scores, cuts) - len(scores) / 2).argmin()])

    def turn(self, rag: RAG, method: Method, value: float) -> RAG:
        """The method's loop at a setting."""
        rag = replace(rag, trigger=method.trigger, query=method.query)
        if self.option == "threshold":
            return replace(rag, trigger=method.with_options(threshold=value).trigger)
        if self.option == "max_retrievals":
            return replace(rag, max_retrievals=int(value))
        query = method.query
        if isinstance(query, LastTokensQuery) and query.n == self.own:
            query = replace(query, n=int(value))
        return replace(rag, trigger=method.with_options(n=int(value)).trigger, query=query)


@dataclass(frozen=True)
class _Run:
    """A method at one setting: means over the questions with gold answers, and the scores it decided by."""

    retrievals: float
    figures: Mapping[str, float]
    scores: np.ndarray


def rerun_all(
    rag: RAG,
    methods: Sequence[Method],
    runs: Mapping[str, Outcomes],
    reference: Outcomes,
    climbed: Sequence[Climbed],
    out: Path,
    *,
    points: int,
) -> dict[str, dict[str, Any]]:
    """The curve of every adaptive method that has none from recorded answers.

    Args:
        rag: a loop whose model, retriever, prompt and limits are used.
        methods: as they ran.
        runs: of these methods, by name.
        reference: the closed-book run.
        climbed: recorded answers; the triggers asked about them have their curves.
        out: folder for the traces of the runs, from which a killed comparison goes on.
        points: runs of each method at most, besides its own.

    Returns:
        By name of the method: ``option`` and ``value``, what was set and to what, ordered by
        ``retrievals`` per question; each of :data:`.trajectories.FIGURES`; and ``own``, the
        setting at which the method is in the table.
    """
    if not points or not rag.max_retrievals or not len(reference.scored):
        return {}
    out.mkdir(parents=True, exist_ok=True)
    read = {name for entry in climbed for name in entry.ladder.triggers}
    curves = {
        m.name: _curve(rag, m, _knob(m, runs[m.name], rag), runs[m.name], reference, out, points)
        for m in methods
        if m.adaptive and not m.trigger.judges_answer and m.name not in read
    }
    return {name: curve for name, curve in curves.items() if len(set(curve["retrievals"])) > 1}


def _knob(method: Method, run: Outcomes, rag: RAG) -> Knob:
    trigger = method.trigger
    if trigger.sweep_option == "n":
        n = trigger.options["n"]
        return Knob("n", n, None, (rag.max_new_tokens, max(1, n // 2)))
    scores = _scores(run)
    if trigger.sweep_option is None or not len(scores):
        # Beyond what any question took, another limit changes nothing.
        return Knob("max_retrievals", int(run.cost("retrievals").max()), 0)
    own = next(r.decision.threshold for a in run.answers for r in a.rounds if r.decision is not None)
    # What may not fire has score 0, so that below 0 a trigger would fire nowhere in particular.
    return Knob("threshold", own, max(own, float(scores.max())), (min(0.0, float(scores.min())),))


def _curve(
    rag: RAG, method: Method, knob: Knob, run: Outcomes, reference: Outcomes, out: Path, points: int
) -> dict[str, Any]:
    found = {knob.own: _measured(run)}
    if knob.idle is not None:
        found.setdefault(knob.idle, _measured(reference))
    questions = [run.questions[i] for i in run.scored]
    for _ in range(points):
        value = _next(knob, found)
        if value is None:
            break
        name = f"{method.name} {knob.option}={value:.3g}"
        file = out / f"{method.name}-{knob.option}={value!r}.jsonl"
        answers = knob.turn(rag, method, value).run(questions, file, progress=name)
        found[value] = _measured(Outcomes(questions, answers))
    values = sorted(found, key=lambda value: found[value].retrievals)
    curve: dict[str, Any] = {"option": knob.option, "own": knob.own, "value": values}
    curve["retrievals"] = [found[value].retrievals for value in values]
    return curve | {name: [found[value].figures[name] for value in values] for name in FIGURES}


def _next(knob: Knob, found: Mapping[float, _Run]) -> float | None:
    """The setting to run next; None where there is nothing left to learn."""
    for end in knob.ends:
        if end not in found:
            return end
    scores = np.concatenate([run.scores for run in found.values()])
    gaps = [
        (abs(found[low].retrievals - found[high].retrievals), low, high)
        for low, high in pairwise(sorted(found))
    ]
    for apart, low, high in sorted(gaps, reverse=True):
        value = knob.between(low, high, scores) if apart > _CLOSE else None
        if value is not None:
            return value
    return None


def _measured(run: Outcomes) -> _Run:
    retrievals = float(run.cost("retrievals")[run.scored].mean())
    return _Run(retrievals, {name: float(run.table[name].mean()) for name in FIGURES}, _scores(run))


def _scores(run: Outcomes) -> np.ndarray:
    """The score of every decision on the questions with gold answers."""
    rounds = [r for i in run.scored for r in run.answers[i].rounds]
    return np.array([r.decision.score for r in rounds if r.decision is not None])
