"""Thresholds and calibration for triggers that bring none: one rule for all, on validation questions.

The rule is the one by which a prober's threshold is chosen when it is trained, the highest
balanced accuracy, here against "the closed-book answer is wrong".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from probers.bank.calibration import Platt, fit_platt
from probers.bank.thresholds import ThresholdRule
from probers.evaluation.metrics import exact_match
from probers.files import canonical_json, write_text
from probers.types import Decision, Generation, Needs, Question

from ..loop import RAG
from ..traces import Answer
from ..triggers.base import UNANSWERED, State, Trigger, decide


@dataclass
class Panel(Trigger):
    """A trigger that asks others and decides by itself; subclasses define :meth:`decide`.

    Attributes:
        triggers: by name; one pass must be able to record what they need.
    """

    triggers: Mapping[str, Trigger]

    @property
    def needs(self) -> Needs:
        needs = Needs()
        for trigger in self.triggers.values():
            needs = needs.union(trigger.needs)
        return needs

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """What the panel decides on every generation."""
        raise NotImplementedError

    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> dict[str, list[float]]:
        """Every trigger's score of every generation, by name."""
        return {
            name: [d.score for d in decide(trigger, generations, states)]
            for name, trigger in self.triggers.items()
        }


_CHUNK = 64  # questions answered together
_NOTHING = Needs()


@dataclass(frozen=True)
class Tuned:
    """What validation questions gave for one trigger.

    Attributes:
        threshold: the chosen one.
        slope, intercept: P(wrong) = sigmoid(slope * score + intercept).
    """

    threshold: float
    slope: float
    intercept: float

    def probability(self, scores: np.ndarray) -> np.ndarray:
        """Calibrated P(answer is wrong) of scores (n,)."""
        return Platt(self.slope, self.intercept)(scores)


@dataclass
class _Silent(Panel):
    """Keeps what the triggers say and never fires."""

    seen: dict[str, list[float]] = field(default_factory=dict)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        for name, scores in self.scores(generations, states).items():
            self.seen.setdefault(name, []).extend(scores)
        return [Decision(False, 0.0, 0.0)] * len(generations)


def stored_or_tuned(
    file: Path, rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question]
) -> dict[str, Tuned]:
    """What :func:`tune` gives, kept in ``file`` so that a resumed run goes on with the same thresholds."""
    if file.exists():
        stored = json.loads(file.read_text(encoding="utf-8"))
        return {name: Tuned(**entry) for name, entry in stored.items()}
    tuned = tune(rag, triggers, questions)
    write_text(file, canonical_json({name: asdict(entry) for name, entry in tuned.items()}))
    return tuned


def tune(rag: RAG, triggers: Mapping[str, Trigger], questions: Sequence[Question]) -> dict[str, Tuned]:
    """Threshold and calibration of every trigger, from the closed-book answers to the questions.

    Args:
        rag: a loop whose model, prompt and limits are used; its trigger is not.
        triggers: by name of the method.
        questions: validation questions; those without gold answers are left out.

    Returns:
        By name; empty when the questions do not have both right and wrong answers.
    """
    rule = ThresholdRule()
    answered = [q for q in questions if q.answers]
    tuned: dict[str, Tuned] = {}
    for group in together(triggers):
        panel = _Silent(group)
        loop = replace(rag, trigger=panel)
        answers: list[Answer] = []
        for start in tqdm(range(0, len(answered), _CHUNK), desc="thresholds", unit=f"{_CHUNK} questions"):
            answers += loop.answer(answered[start : start + _CHUNK])
        pairs = zip(answers, answered, strict=True)
        wrong = np.array([1 - exact_match(a.answer, q.answers) for a, q in pairs])
        if len(set(wrong)) < 2:
            return {}
        tuned |= {name: _tuned(rule, wrong, np.array(scores)) for name, scores in panel.seen.items()}
    return tuned


def together(triggers: Mapping[str, Trigger], needs: Needs = _NOTHING) -> list[dict[str, Trigger]]:
    """The triggers in groups whose needs one pass can record, as few as come of taking them in turn.

    Args:
        triggers: by name.
        needs: recorded besides.
    """
    groups: list[tuple[dict[str, Trigger], Needs]] = []
    for name, trigger in triggers.items():
        for i, (group, known) in enumerate(groups):
            try:
                groups[i] = (group | {name: trigger}, known.union(trigger.needs))
            except ValueError:
                continue
            break
        else:
            groups.append(({name: trigger}, needs.union(trigger.needs)))
    return [group for group, _ in groups]


def _tuned(rule: ThresholdRule, wrong: np.ndarray, scores: np.ndarray) -> Tuned:
    """Threshold and calibration of scores (n,)."""
    # The score of an answer without a token is on no scale, and would bend the calibration's.
    written = scores < UNANSWERED
    if len(set(wrong[written])) < 2:
        written[:] = True
    platt = fit_platt(wrong[written], scores[written])
    return Tuned(rule(wrong, scores), platt.slope, platt.intercept)
