"""Triggers that do not read the model's states: fixed rules, chance, and the oracle of gold answers."""

from __future__ import annotations

import random
from dataclasses import dataclass

from probers.equivalence import EntityMatcher
from probers.evaluation.answers import RULES, right_by
from probers.types import Decision, Generation, Question, RunError, UserError

from ..protocol import LookAhead, State, Trigger, at_least, ruled, verdict
from .uncertainty import sentences


@dataclass(frozen=True)
class Never(Trigger):
    """Closed-book answers (wo-RAG); the lower reference of every comparison."""

    after = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return Decision(fire=False, score=0.0, threshold=0.5)


@dataclass(frozen=True)
class Always(Trigger):
    """One retrieval with the question before anything is generated, whatever query is configured (SR-RAG)."""

    before = True
    after = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return Decision(fire=False, score=0.0, threshold=0.5)


@dataclass(frozen=True)
class FixedLength(Trigger):
    """Retrieves with the question first, and then after every ``n`` tokens (FL-RAG, like RETRO and IC-RALM).

    The written text stays and goes on from there with the new passages. The
    text's end is no place to retrieve.

    Attributes:
        n: tokens between two retrievals; the first is made with the question.
    """

    n: int = 16

    before = True
    decides_by = "rule"
    sweep_option = "n"

    def __post_init__(self) -> None:
        at_least("trigger.n", self.n)

    def look_ahead(self, question: Question) -> LookAhead:
        """One stretch of ``n`` tokens."""
        return LookAhead(tokens=self.n)

    def __call__(self, generation: Generation, state: State) -> Decision:
        if len(generation.token_ids) <= self.n:
            return ruled(False)
        return ruled(True, position=generation.offsets[self.n - 1][1], tokens=(self.n - 1,))


@dataclass(frozen=True)
class FixedSentence(Trigger):
    """Retrieves with the question first, and then after every sentence (FS-RAG, like IRCoT).

    The written text stays and goes on from there with the new passages. The
    text's end is no place to retrieve.
    """

    before = True
    decides_by = "rule"

    def look_ahead(self, question: Question) -> LookAhead:
        """One sentence."""
        return LookAhead(sentences=1)

    def __call__(self, generation: Generation, state: State) -> Decision:
        return after_a_sentence(generation)


def after_a_sentence(generation: Generation, score: float = 1.0) -> Decision:
    """The decision to retrieve after the first sentence, if another one follows."""
    found = sentences(generation)
    if len(found) < 2:
        return ruled(False, score)
    return ruled(True, score, position=found[0].end, tokens=found[0].tokens[-1:])


@dataclass(frozen=True)
class Random(Trigger):
    """Fires at random so that questions get ``rate`` retrievals on average.

    Every question draws one number u in [0, 1) from its id and the seed, whatever
    batch or order it is in, and is granted as many retrievals as there are whole
    numbers j >= 0 with j + u < rate.

    Attributes:
        rate: mean retrievals per question: 0.4 grants one to 40% of them, 1.5 one
            to half and two to the other half.
        seed: another seed picks other questions.
    """

    rate: float = 0.5
    seed: int = 0

    decides_by = "chance"

    def __post_init__(self) -> None:
        at_least("trigger.rate", self.rate, 0)

    def __call__(self, generation: Generation, state: State) -> Decision:
        drawn = random.Random(f"random:{self.seed}:{state.question.id}").random()
        return verdict(1.0 - drawn, 1.0 - self.rate + state.retrievals)


@dataclass(frozen=True)
class Oracle(Trigger):
    """Fires exactly when the answer is wrong by the gold answers: the best possible judge of whole answers.

    With ``again`` no trigger that judges whole answers and asks with the same query has
    more questions right: it stops at the first right answer on the way that they all go.

    Attributes:
        again: also fires when the answer after a retrieval is wrong, up to the limit of the
            loop; otherwise at most once, for the closed-book answer.
        wrong: an answer is wrong if it fails em, acc (a gold answer is in the text), acc_substring, match or
            f1>=0.8 (:func:`probers.evaluation.answers.right_by`).
        matcher: for wrong=match; None is one with its defaults, in commands the command's.

    Raises:
        UserError: no such rule.
    """

    again: bool = False
    wrong: str = "em"
    matcher: EntityMatcher | None = None

    judges_answer = True

    def __post_init__(self) -> None:
        if right_by(self.wrong) is None:
            raise UserError(f"trigger.wrong={self.wrong} is unknown: choose {RULES}", "unknown-choice")

    def __call__(self, generation: Generation, state: State) -> Decision:
        if state.answer is None or not state.question.answers:
            raise RunError("trigger=oracle was asked without an answer or without gold answers", "labels")
        judged = self.again or state.retrievals == 0
        right = right_by(self.wrong, self.matcher)
        assert right is not None
        wrong = judged and not right(state.completed(generation), state.answer, state.question.answers)
        return verdict(float(wrong), 0.5)
