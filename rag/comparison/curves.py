"""Threshold sweeps, replayed for triggers that judge whole answers and run again for all others.

A trigger that fires within an answer changes the text from there on. Its thresholds therefore are run, not
read from recorded answers (:mod:`.trajectories`). The next threshold lies between the two neighbouring points
of the curve that are farthest apart in retrievals per question: in the middle of the recorded scores that
fire at only one of the two. The closed-book answers are another point of each curve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from probers.checksums import sealed, unsealed
from probers.files import write_text
from probers.types import Question, Retriever, RunError, first_line

from ..loop import RAG
from ..protocol import name_of
from ..queries.text import LastTokensQuery
from ..traces import questions_of
from .methods import Method, MethodRun
from .outcomes import TOKENS, Evaluation, Outcomes, correct
from .trajectories import FIGURES, RetrievalTrajectory, record_once, together

if TYPE_CHECKING:
    from probers.cli.merge import PartRun, PartRuns

#: Folder of recorded answers in a comparison, and a part's index of them.
REPLAY, _INDEX = "replay", "index.json"


@dataclass(frozen=True)
class QueryTrajectory:
    """Recorded answers with one query to the questions with gold answers, and the methods that ask with it.

    Names are numbered where two queries differ in their options or retriever only. ``retriever`` is the
    methods' own; None means the common one.
    """

    name: str
    methods: tuple[str, ...]
    trajectory: RetrievalTrajectory
    retriever: Retriever | None = None


def record_all(
    rag: RAG, runs: Iterable[MethodRun], out: Path, *, every: bool = False, parts: PartRuns | None = None
) -> list[QueryTrajectory]:
    """Record a trajectory for every query that an adaptive method asked with, into the folder ``out``.

    Triggers of whole answers score each of its answers. ``every`` also includes methods that did not
    retrieve, because they may for other questions. The ``parts``' recorded answers are joined.
    """
    fired = [run for run in runs if run.method.adaptive and (every or run.cost("retrievals").any())]
    if not rag.max_retrievals or not fired or not len(fired[0].scored):
        return []
    answered = [q for q in fired[0].questions if q.answers]
    asks = [(run.method.query, id(run.method.retriever)) for run in fired]
    trajectories, queries = list[QueryTrajectory](), list[Any]()
    for first in sorted({asks.index(each) for each in asks}):
        asking = [run for run, each in zip(fired, asks, strict=True) if each == asks[first]]
        method, names = asking[0].method, tuple(run.name for run in asking)
        whole = {run.name: run.method.trigger for run in asking if _judges_whole_answers(run, every)}
        # One pass records the needs of all these triggers; a rare one that needs another pass has no curve.
        triggers = next(iter(together(whole, method.query.needs)), {})
        queries.append(type(method.query))
        number = queries.count(queries[-1])
        name = name_of(method.query) + (f"_{number}" if number > 1 else "")
        file = out / f"{name}.json"
        if parts is not None and not file.exists():
            _join(parts, file, {*names}, list(triggers), answered)
        trajectory = record_once(
            file, method.loop(rag), triggers, answered, progress=f"replay {name}", matcher=asking[0].matcher
        )
        trajectories.append(QueryTrajectory(name, names, trajectory, method.retriever))
    return trajectories


def index(recorded: Sequence[QueryTrajectory], out: Path) -> None:
    """Write a part's index of recorded answers."""
    entries = [
        {"file": f"{each.name}.json", "methods": [*each.methods], "triggers": each.trajectory.triggers}
        for each in recorded
    ]
    write_text(out / _INDEX, sealed({"recorded": entries}))


def _join(
    parts: PartRuns, file: Path, methods: set[str], triggers: Sequence[str], questions: Sequence[Question]
) -> None:
    """Join the parts' answers with one query, unless a part did not ask all of the triggers."""
    steps: dict[str, Any] = {}
    for run in parts.runs:
        entry = next((e for e in _recorded(run, _INDEX)["recorded"] if methods & set(e["methods"])), None)
        if not questions_of(questions, run.part):
            continue
        if entry is None or not set(triggers) <= set(entry["triggers"]):
            return
        for each in _recorded(run, entry["file"])["questions"]:
            for step in each["steps"]:
                step["scores"] = {name: step["scores"][name] for name in triggers}
            steps[each["id"]] = each["steps"]
    write_text(file, sealed({"questions": [{"id": q.id, "steps": steps[q.id]} for q in questions]}))


def _recorded(run: PartRun, name: str) -> dict[str, Any]:
    path = run.path / REPLAY / name
    try:
        return unsealed(path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({first_line(error)}): make the part again", "damaged") from error


def _judges_whole_answers(run: MethodRun, untried: bool) -> bool:
    """Tell whether a method fires on whole answers only; return ``untried`` if it did not fire at all."""
    trigger = run.method.trigger
    if run.method.untested or trigger.before or any(map(trigger.look_ahead, run.questions)):
        return False
    fired = [decision for decisions in run.decisions for decision in decisions if decision.fire]
    return (bool(fired) or untried) and all(decision.position is None for decision in fired)


def at_random(
    recorded: Sequence[QueryTrajectory], runs: Mapping[str, MethodRun], evaluation: Evaluation
) -> dict[str, dict[str, Any]]:
    """Compare every adaptive method with random retrieval by its query at its mean number of retrievals.

    Random retrieval judges whole answers. A query made for the middle of an answer, such as the last
    sentence, is poor there. Methods that fire within or before an answer are therefore also compared, under
    ``common``, with random retrieval that has the query of the methods of whole answers. The reported
    differences of each figure are one family for Holm's correction.
    """

    def against(entry: QueryTrajectory, run: Outcomes) -> dict[str, Any]:
        expected = entry.trajectory.at_random(run.mean_retrievals)
        return {"query": entry.name} | evaluation.against_random(run, expected)

    differences: dict[str, dict[str, Any]] = {}
    for entry in recorded:
        common = next((e for e in recorded if e.trajectory.triggers and e.retriever is entry.retriever), None)
        for name in entry.methods:
            differences[name] = against(entry, runs[name])
            if common is not None and not entry.trajectory.triggers:
                differences[name]["common"] = against(common, runs[name])
    reported = [entry.get("common", entry) for entry in differences.values()]
    for figure in FIGURES:
        correct([entry[figure] for entry in reported if figure in entry])
    return differences


def replays(recorded: Sequence[QueryTrajectory]) -> dict[str, dict[str, list[float]]]:
    """Compute curves over the thresholds by method, and of random retrieval for each query that has any."""
    curves: dict[str, dict[str, list[float]]] = {}
    with_curves = [entry for entry in recorded if entry.trajectory.triggers]
    for entry in with_curves:
        name = "random" if len(with_curves) == 1 else f"random {entry.name}"
        curves[name] = entry.trajectory.random_curve()
        sweeps = {trigger: entry.trajectory.sweep(trigger) for trigger in entry.trajectory.triggers}
        # A constant score has no threshold to move.
        curves |= {trigger: curve for trigger, curve in sweeps.items() if len(curve["threshold"]) > 2}
    return curves


#: Largest distance of two points, in retrievals per question, that needs no point between them.
_CLOSE = 0.05


@dataclass(frozen=True)
class Setting:
    """Option of a method that varies from run to run; ``ends`` are the settings to begin with.

    Attributes:
        option: ``threshold`` of the score; or ``n``, tokens from one retrieval to the next (and of a query of
            as many last tokens); or ``max_retrievals``, for rules with neither.
        configured: its value in the method's own run; for ``max_retrievals``, the most of a question.
        idle: a value at which nothing is retrieved, if there is one.
    """

    option: Literal["threshold", "n", "max_retrievals"]
    configured: float
    idle: float | None
    ends: tuple[float, ...] = ()

    @classmethod
    def of(cls, run: MethodRun, max_new_tokens: int) -> Setting:
        """Choose the option of a method as it ran."""
        trigger, scores = run.method.trigger, _scores(run)
        if trigger.sweep_option == "n":
            n = trigger.options["n"]
            return cls("n", n, None, (max_new_tokens, max(1, n // 2)))
        if trigger.sweep_option is None or not len(scores):
            # A limit above the retrievals of every question changes nothing.
            return cls("max_retrievals", int(run.cost("retrievals").max()), 0)
        threshold = next(chain.from_iterable(run.decisions)).threshold
        low, high = float(scores.min()), float(scores.max())
        # Tokens that may not fire have score 0: below 0, a trigger would fire at arbitrary places.
        return cls("threshold", threshold, max(threshold, high), (min(0.0, low),))

    def between(self, low: float, high: float, scores: np.ndarray) -> float | None:
        """Find a value between two that differs from both by the scores seen so far; None without one."""
        if self.option != "threshold":
            middle = (low + high) // 2
            return middle if low < middle < high else None
        scores = np.sort(scores[(scores > low) & (scores <= high)])  # fire at one of the two only
        levels = np.unique(scores)
        if len(levels) < 2:
            return None
        # Never a score itself: rounding in another batch could move that score across.
        cuts = (levels[1:] + levels[:-1]) / 2
        return float(cuts[np.abs(np.searchsorted(scores, cuts) - len(scores) / 2).argmin()])

    def next(self, outcomes: Mapping[float, Outcomes]) -> float | None:
        """Choose the value to run next; None if there is nothing left to learn."""
        if left := [end for end in self.ends if end not in outcomes]:
            return left[0]
        scores = np.concatenate([_scores(run) for run in outcomes.values()])
        known = sorted((value, run.mean_retrievals) for value, run in outcomes.items())
        gaps = [(abs(less - more), low, high) for (low, less), (high, more) in pairwise(known)]
        for apart, low, high in sorted(gaps, reverse=True):
            if apart > _CLOSE and (value := self.between(low, high, scores)) is not None:
                return value
        return None

    def loop(self, rag: RAG, method: Method, value: float) -> RAG:
        """Make the method's loop at a value."""
        if self.option == "max_retrievals":
            return method.loop(replace(rag, max_retrievals=int(value)))
        if self.option == "threshold":
            return method.with_options(threshold=value).loop(rag)
        method = method.with_options(n=int(value))
        if isinstance(method.query, LastTokensQuery) and method.query.n == self.configured:
            method = replace(method, query=replace(method.query, n=int(value)))
        return method.loop(rag)


@dataclass(frozen=True)
class Rerun:
    """Runs of a method at several values of its setting, the closed-book ``reference`` among them."""

    setting: Setting
    outcomes: Mapping[float, Outcomes]
    reference: Outcomes

    @cached_property
    def curve(self) -> dict[str, Any]:
        """Means of the runs, ordered by ``retrievals`` per question.

        They are the figures of recorded answers, beside ``option``, its ``value`` in each run, ``own``, the
        value in the table, and tokens, where they are known. Tokens of the setting itself are ``priced``;
        those of the closed-book answers, in the place of a threshold that nothing exceeds, are not.
        """
        values = sorted(self.outcomes, key=lambda value: self.outcomes[value].mean_retrievals)
        ordered, setting = [self.outcomes[value] for value in values], self.setting
        curve: dict[str, Any] = {"option": setting.option, "own": setting.configured, "value": values}
        curve["retrievals"] = [each.mean_retrievals for each in ordered]
        if all(each.read_known for each in ordered):
            means = ([float(each.cost(name)[each.scored].mean()) for each in ordered] for name in TOKENS)
            curve |= dict(zip(TOKENS, means, strict=True))
            # A trigger that never fires may still cost tokens: text in pieces, or more texts drawn.
            limits = setting.option == "max_retrievals"
            curve["priced"] = [each is not self.reference or limits for each in ordered]
        figures = [name for name in FIGURES if name in ordered[0].table]
        return curve | {name: [float(each.table[name].mean()) for each in ordered] for name in figures}


def rerun_all(
    rag: RAG, runs: Collection[MethodRun], reference: Outcomes, recorded: Sequence[QueryTrajectory],
    out: Path, *, points: int,
) -> dict[str, Rerun]:  # fmt: skip
    """Run the curve of every adaptive method that has none from recorded answers, by its name.

    Each has at most ``points`` runs besides the method's own and the closed-book ``reference``. A killed
    comparison resumes from the traces in ``out``.
    """
    if not points or not rag.max_retrievals or not len(reference.scored):
        return {}
    out.mkdir(parents=True, exist_ok=True)
    known = {name for entry in recorded for name in entry.trajectory.triggers}
    known |= {run.name for run in runs if not run.method.adaptive or run.method.trigger.judges_answer}
    curves = {run.name: _rerun(rag, run, reference, out, points) for run in runs if run.name not in known}
    return {name: each for name, each in curves.items() if len(set(each.curve["retrievals"])) > 1}


def _rerun(rag: RAG, run: MethodRun, reference: Outcomes, out: Path, points: int) -> Rerun:
    setting, method = Setting.of(run, rag.max_new_tokens), run.method
    outcomes: dict[float, Outcomes] = {setting.configured: run}
    if setting.idle is not None:
        outcomes.setdefault(setting.idle, reference)
    questions = [run.questions[i] for i in run.scored]
    for _ in range(points):
        if (value := setting.next(outcomes)) is None:
            break
        file = out / f"{method.name}-{setting.option}={value!r}.jsonl"
        progress = f"{method.name} {setting.option}={value:.3g}"
        answers = setting.loop(rag, method, value).run(questions, file, progress=progress)
        outcomes[value] = Outcomes(questions, answers, matcher=run.matcher)
    return Rerun(setting, outcomes, reference)


def _scores(run: Outcomes) -> np.ndarray:
    """List the score of every decision on the questions with gold answers."""
    return np.array([decision.score for i in run.scored for decision in run.decisions[i]])
