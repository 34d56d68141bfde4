"""Thresholds and budgets of answer-level triggers, replayed from one recorded run per query.

A trigger that judges whole answers decides when to retrieve, and the query what comes of
it. So one run that retrieves after every answer, up to the limit, holds the way of all such
triggers with that query: whoever stops earlier has the answer of that round. From it are
read, without generating again, every threshold of every such trigger, round by round, and
what random retrieval is expected to give at any budget.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from probers.evaluation.metrics import accuracy_contains, exact_match, f1_score
from probers.files import canonical_json, write_text
from probers.types import Decision, Generation, Question

from ..loop import RAG
from ..queries.base import QueryFormulator
from ..triggers.base import State, Trigger, verdict
from .thresholds import Panel

#: Figures of an answer that are replayed.
FIGURES = ("em", "f1", "acc")
_CHUNK = 64  # questions answered together
_POINTS = 60  # of a curve at most


@dataclass(frozen=True)
class Rung:
    """One answer of a question on its way: without retrieval, after one, after two.

    Attributes:
        text: the whole text, rationale and all.
        answer: the final answer in it.
        scores: of each trigger that was asked, by name.
    """

    text: str
    answer: str
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ladder:
    """Every answer of a run that always retrieves, of one question or more.

    Attributes:
        questions: those with gold answers.
        rungs: of each question, one or more; fewer than there could be where a
            retrieval brought nothing new, after which the model would write the same.
        searches: retrievals each question took in the end.
    """

    questions: Sequence[Question]
    rungs: Sequence[Sequence[Rung]]
    searches: Sequence[int]

    def outcome(self, figure: str, granted: int) -> np.ndarray:
        """One of :data:`FIGURES`, (n,), when every question may retrieve ``granted`` times."""
        return self._tables[figure][np.arange(len(self.rungs)), self._reached(granted)]

    def retrievals(self, granted: int) -> np.ndarray:
        """Retrievals, (n,), when every question may retrieve ``granted`` times."""
        return np.minimum(granted, np.array(self.searches, dtype=int)).astype(float)

    @property
    def most(self) -> int:
        """Retrievals of the question that took most."""
        return max(self.searches, default=0)

    def at_random(self, budget: float) -> dict[str, np.ndarray]:
        """What random retrieval is expected to give at a mean number of retrievals per question.

        Every question is granted the same number or one more, each with the same chance, as
        :class:`~probers.rag.triggers.random.Random` does; the figures are the mean over its
        draws. Beyond what the questions take at most, the budget is that.

        Args:
            budget: mean retrievals per question.

        Returns:
            ``retrievals`` and each of :data:`FIGURES`, (n,) each.
        """
        means = [float(self.retrievals(j).mean()) for j in range(self.most + 1)]
        low = max(0, min(int(np.searchsorted(means, budget, side="right")) - 1, self.most - 1))
        share = 0.0
        if self.most:
            share = min(1.0, (budget - means[low]) / (means[low + 1] - means[low]))
        found = {}
        for name in ("retrievals", *FIGURES):
            ends = [
                self.retrievals(j) if name == "retrievals" else self.outcome(name, j) for j in (low, low + 1)
            ]
            found[name] = (1 - share) * ends[0] + share * ends[1]
        return found

    def replay(self, trigger: str, threshold: float) -> dict[str, np.ndarray]:
        """What a trigger gives at a threshold, as if it had run: retrievals and figures, (n,) each."""
        scores = self._scores(trigger)
        stops = scores <= threshold  # also beyond the last rung, where the scores are -inf
        reached = stops.argmax(axis=1)
        last = np.array([len(r) for r in self.rungs])
        taken = np.where(reached < last, reached, np.array(self.searches))
        rows = np.arange(len(last))
        level = np.minimum(reached, last - 1)
        return {"retrievals": taken.astype(float)} | {n: self._tables[n][rows, level] for n in FIGURES}

    def sweep(self, trigger: str) -> dict[str, list[float]]:
        """Mean retrievals and figures of a trigger from the lowest threshold to the highest, thinned."""
        scores = self._scores(trigger)
        levels = np.unique(scores[np.isfinite(scores)])
        thresholds = [levels[0] - 1.0, *levels]
        curve: dict[str, list[float]] = {"threshold": []}
        for threshold in (thresholds[i] for i in thinned(len(thresholds))):
            curve["threshold"].append(float(threshold))
            for name, values in self.replay(trigger, threshold).items():
                curve.setdefault(name, []).append(float(values.mean()))
        return curve

    def random_curve(self, *, steps: int = 12) -> dict[str, list[float]]:
        """Expected means of random retrieval from no retrieval to as many as there can be."""
        top = float(self.retrievals(self.most).mean())
        curve: dict[str, list[float]] = {}
        for i in range(steps * max(1, self.most) + 1):
            for name, values in self.at_random(top * i / (steps * max(1, self.most))).items():
                curve.setdefault(name, []).append(float(values.mean()))
        return curve

    @property
    def triggers(self) -> list[str]:
        """Names of the triggers that were asked."""
        return list(self.rungs[0][0].scores) if self.rungs else []

    def _reached(self, granted: int) -> np.ndarray:
        return np.array([min(granted, len(r) - 1) for r in self.rungs], dtype=int)

    @cached_property
    def _tables(self) -> Mapping[str, np.ndarray]:
        """Each figure, (n, rungs at most), the last one's value repeated."""
        width = max(len(r) for r in self.rungs)
        tables = {name: np.zeros((len(self.rungs), width)) for name in FIGURES}
        for i, (question, rungs) in enumerate(zip(self.questions, self.rungs, strict=True)):
            for name, table in tables.items():
                values = [_figure(name, rung, question.answers) for rung in rungs]
                table[i] = values + [values[-1]] * (width - len(values))
        return tables

    def _scores(self, trigger: str) -> np.ndarray:
        """(n, rungs at most + 1), -inf where there is no further answer."""
        width = max(len(r) for r in self.rungs) + 1
        table = np.full((len(self.rungs), width), -np.inf)
        for i, rungs in enumerate(self.rungs):
            table[i, : len(rungs)] = [rung.scores[trigger] for rung in rungs]
        return table


def climb(
    rag: RAG,
    query: QueryFormulator,
    triggers: Mapping[str, Trigger],
    questions: Sequence[Question],
    *,
    progress: str | None = None,
) -> Ladder:
    """Retrieve after every answer, and ask the triggers about each.

    Args:
        rag: a loop whose model, prompt and limits are used; trigger and query are not.
        query: formulates what to ask.
        triggers: by name; only such as judge whole answers, and whose needs one pass can record.
        questions: with gold answers.
        progress: name of a progress bar, None for none.

    Raises:
        UserError: a question has no gold answer.
    """
    panel = _Everyone(triggers)
    loop = replace(rag, trigger=panel, query=query)
    searches: list[int] = []
    starts = range(0, len(questions), _CHUNK)
    for start in tqdm(starts, desc=progress, unit=f"{_CHUNK} questions", disable=progress is None):
        searches += [a.retrievals for a in loop.answer(questions[start : start + _CHUNK])]
    rungs = [panel.seen.get(q.id) or [Rung("", "", dict.fromkeys(triggers, 0.0))] for q in questions]
    return Ladder(questions, rungs, searches)


def stored_or_climbed(
    file: Path,
    rag: RAG,
    query: QueryFormulator,
    triggers: Mapping[str, Trigger],
    questions: Sequence[Question],
    *,
    progress: str | None = None,
) -> Ladder:
    """What :func:`climb` gives, kept in ``file`` so that a resumed run need not climb again."""
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        rungs = [[Rung(**rung) for rung in entry["rungs"]] for entry in stored]
        return Ladder(questions, rungs, [entry["searches"] for entry in stored])
    ladder = climb(rag, query, triggers, questions, progress=progress)
    entries = zip(ladder.questions, ladder.rungs, ladder.searches, strict=True)
    kept = [{"id": q.id, "searches": n, "rungs": [asdict(rung) for rung in rungs]} for q, rungs, n in entries]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, canonical_json(kept))
    return ladder


@dataclass
class _Everyone(Panel):
    """Writes down what the triggers say about every answer, and retrieves anyway."""

    seen: dict[str, list[Rung]] = field(default_factory=dict)

    judges_answer = True  # every answer is completed, as if it were accepted

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        asked = self.scores(generations, states)
        for i, (generation, state) in enumerate(zip(generations, states, strict=True)):
            text, cue = state.partial + generation.text, state.prompt.answer_cue
            if cue.lower() not in text.lower() and state.answer:
                text = f"{text} {cue} {state.answer}"
            scores = {name: found[i] for name, found in asked.items()}
            self.seen.setdefault(state.question.id, []).append(Rung(text, state.answer or "", scores))
        return [verdict(1.0, 0.5)] * len(generations)


def _figure(name: str, rung: Rung, gold: Sequence[str]) -> float:
    if name == "acc":
        return float(accuracy_contains(rung.text, gold))
    return float(exact_match(rung.answer, gold) if name == "em" else f1_score(rung.answer, gold).f1)


def thinned(count: int) -> list[int]:
    """Indices of at most 60 of ``count`` points, both ends among them."""
    if count <= _POINTS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (_POINTS - 1)) for i in range(_POINTS)})
