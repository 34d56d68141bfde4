"""Triggers that read no states: rules, chance, gold answers, judgements of the question, servers' scores."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probers.evaluation.answers import RULES, right_by
from probers.options import Count, NotNegative
from probers.types import Decision, Generation, Question, RunError, UserError
from probers.words import EntityMatcher

from ..completions import ServedGeneration
from ..protocol import UNANSWERED, LookAhead, State, Trigger, has_places, ruled, verdict
from .probing import threshold_in_force
from .uncertainty import sentences

if TYPE_CHECKING:
    from probers.adaptive import Classifier

PROMPT = (
    "Question: {question}\nCan you answer this question correctly from what you know? Say yes or no.\nReply:"
)


@dataclass(frozen=True)
class Never(Trigger):
    """Trigger of closed-book answers (wo-RAG); the lower reference of every comparison."""

    after = False
    reads_tokens = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return verdict(0.0, 0.5)


@dataclass(frozen=True)
class Always(Trigger):
    """Trigger of one retrieval with the question before anything is written, whatever the query (SR-RAG)."""

    reads_tokens = False
    before = True
    after = False
    decides_by = "rule"

    def __call__(self, generation: Generation, state: State) -> Decision:
        return verdict(0.0, 0.5)


@dataclass(frozen=True)
class FixedLength(Trigger):
    """Trigger that retrieves with the question, then after every ``n`` tokens (FL-RAG, like RETRO, IC-RALM).

    The written text stays and continues with the new passages; no retrieval takes place at its end.

    Attributes:
        n: tokens between two retrievals; the first is made with the question.
    """

    n: Count = 16

    before = True
    decides_by = "rule"
    sweep_option = "n"

    def look_ahead(self, question: Question) -> LookAhead:
        return LookAhead(tokens=self.n)

    def __call__(self, generation: Generation, state: State) -> Decision:
        if len(generation.token_ids) <= self.n:
            return ruled(False)
        return ruled(True, position=generation.offsets[self.n - 1][1], tokens=(self.n - 1,))


@dataclass(frozen=True)
class FixedSentence(Trigger):
    """Trigger that retrieves with the question first, then after every sentence (FS-RAG, like IRCoT).

    The written text stays and continues with the new passages; no retrieval takes place at its end.
    """

    reads_tokens = False
    before = True
    decides_by = "rule"

    def look_ahead(self, question: Question) -> LookAhead:
        return LookAhead(sentences=1)

    def __call__(self, generation: Generation, state: State) -> Decision:
        return _after_a_sentence(generation)


def _after_a_sentence(generation: Generation, score: float = 1.0) -> Decision:
    """Decide to retrieve after the first sentence, if another one follows."""
    parts = sentences(generation)
    if len(parts) < 2:
        return ruled(False, score)
    return ruled(True, score, position=parts[0].end, tokens=parts[0].tokens[-1:])


@dataclass(frozen=True)
class Random(Trigger):
    """Trigger that fires at random so that questions get ``rate`` retrievals on average.

    Every question draws one number u in [0, 1) from its id and the seed, whatever its batch or order. It is
    granted as many retrievals as there are whole numbers j >= 0 with j + u < rate.

    Attributes:
        rate: mean retrievals per question: 0.4 grants one to 40% of them, 1.5 one
            to half and two to the other half.
        seed: another seed picks other questions.
    """

    rate: NotNegative = 0.5
    seed: int = 0

    reads_tokens = False
    decides_by = "chance"

    def __call__(self, generation: Generation, state: State) -> Decision:
        drawn = random.Random(f"random:{self.seed}:{state.question.id}").random()
        return verdict(1.0 - drawn, 1.0 - self.rate + state.retrievals)


@dataclass(frozen=True)
class Oracle(Trigger):
    """Trigger that fires exactly when the gold answers refute the answer: the best judge of whole answers.

    With ``again`` no trigger that judges whole answers and asks with the same query has more questions right:
    it stops at the first right answer on the way that all of them take.

    Attributes:
        again: also fires when the answer after a retrieval is wrong, up to the limit of the
            loop; otherwise at most once, for the closed-book answer.
        wrong: an answer is wrong if it fails em, acc (a gold answer is in the text), acc_substring, match or
            f1>=0.8 (:func:`probers.evaluation.answers.right_by`).
        matcher: for wrong=match; None is a matcher with its defaults, in commands the command's.
    """

    again: bool = False
    wrong: str = "em"
    matcher: EntityMatcher | None = None

    reads_tokens = False
    judges_answer = reads_answer = True

    def __post_init__(self) -> None:
        if right_by(self.wrong) is None:
            raise UserError(f"trigger.wrong={self.wrong} is unknown: choose {RULES}", "unknown-choice")

    def __call__(self, generation: Generation, state: State) -> Decision:
        right = right_by(self.wrong, self.matcher)
        assert right is not None and state.answer is not None  # refused, and completed, before
        judged = self.again or state.retrievals == 0
        wrong = judged and not right(state.completed(generation), state.answer, state.question.answers)
        return verdict(float(wrong), 0.5)


@dataclass
class Adaptive(Trigger):
    """Trigger of no, one or stepwise retrieval, chosen by a classifier of the question (Jeong et al. 2024).

    "no": never. "single": once, with the question, before anything is generated. "multi": like "single", and
    then after every sentence. The score is max(P(single), P(multi)) - P(no), above 0 if it retrieves.

    Attributes:
        classifier: folder of probers-train head=adaptive; path or hub id of a sequence classifier of
            transformers with the labels no, single and multi (or A, B and C); or an object with
            ``probabilities``. null in commands is the newest classifier trained for this model under runs/.
    """

    classifier: str | Classifier | None = None
    _classifier: Classifier = field(init=False, repr=False)
    _known: dict[str, tuple[str, float]] = field(init=False, repr=False, default_factory=dict)

    reads_tokens = False
    before = True
    decides_by = "question"

    def __post_init__(self) -> None:
        if self.classifier is None:
            remedy = "train one with 'probers-train head=adaptive' and give trigger.classifier=FOLDER"
            message = f"trigger=adaptive needs a classifier of questions: {remedy}"
            raise UserError(f"{message}, or a model with the labels no, single and multi", "no-artifact")
        from probers.adaptive import load_classifier

        given = self.classifier
        self._classifier = load_classifier(given) if isinstance(given, str) else given

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        questions = [state.question for state in states]
        return [ruled(name != "no", score) for name, score in self._classified(questions)]

    def look_ahead(self, question: Question) -> LookAhead | None:
        ((name, _),) = self._classified([question])
        return LookAhead(sentences=1) if name == "multi" else None

    def __call__(self, generation: Generation, state: State) -> Decision:
        ((name, score),) = self._classified([state.question])
        return _after_a_sentence(generation, score) if name == "multi" else ruled(False, score)

    def _classified(self, questions: Sequence[Question]) -> list[tuple[str, float]]:
        from probers.adaptive import STRATEGIES

        texts = [q.question for q in questions]
        if new := [t for t in dict.fromkeys(texts) if t not in self._known]:
            chances = self._classifier.probabilities(new)
            # The first of equally probable strategies is the cheapest.
            for text, row, best in zip(new, chances, chances.argmax(axis=1), strict=True):
                self._known[text] = STRATEGIES[best], float(np.max(row[1:]) - row[0])
        return [self._known[text] for text in texts]


@dataclass(frozen=True)
class LlmJudge(Trigger):
    """Trigger that retrieves once, with the question, unless the model says beforehand that it can answer.

    The first "yes" or "no" of its reply counts. A reply with neither counts as no, so a model that follows no
    instructions always retrieves. The question to the model counts as a generation of its own.

    Attributes:
        prompt: text with ``{question}``, sent without the answer prompt's exemplars.
        max_new_tokens: tokens of the reply.
    """

    prompt: str = PROMPT
    max_new_tokens: Count = 8

    reads_tokens = False
    before = True
    after = False
    decides_by = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        has_places("trigger.prompt", self.prompt, "question")

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """Read the model's reply about every question; the model is asked about all of them at once."""
        if not states:
            return []
        form = states[0].prompt.bare(states[0].lm)
        prompts = [form.question(self.prompt.replace("{question}", s.question.question)) for s in states]
        names = [state.question.id for state in states]
        replies = states[0].generate(
            prompts, max_new_tokens=self.max_new_tokens, stop=form.turn_ends, names=names
        )
        for reply, state in zip(replies, states, strict=True):
            state.spend(reply)
        words = [re.findall(r"\b(yes|no)\b", reply.text, re.IGNORECASE) for reply in replies]
        return [verdict(float(not each or each[0].lower() == "no"), 0.5) for each in words]

    def __call__(self, generation: Generation, state: State) -> Decision:
        return ruled(False, 0.0 if state.verdict is None else state.verdict.score)


@dataclass
class ServedProbing(Trigger):
    """Trigger that fires when the score by a ``probers-serve`` server's prober is above the threshold.

    It is :class:`.probing.Probing` with heads that read states on the server: the worst entity of an answer
    decides, or the score of the whole for heads of pooled states.

    Attributes:
        threshold: fires when the score is above it; None takes the server's.
        theta: as in :class:`.probing.Probing`.
    """

    threshold: float | None = None
    theta: InitVar[float | None] = None

    served = True

    def __post_init__(self, theta: float | None) -> None:
        self.threshold = threshold_in_force(self.threshold, theta)

    name = "probing"

    def __call__(self, generation: Generation, state: State) -> Decision:
        if not isinstance(generation, ServedGeneration) or math.isnan(generation.threshold):
            raise RunError("trigger=probing needs the server's scores, but the text came without", "server")
        threshold = generation.threshold if self.threshold is None else self.threshold
        if not generation.token_ids:
            return verdict(UNANSWERED, threshold)
        if generation.score is None:  # heads of entities, and a text without one
            return Decision(False, -UNANSWERED, threshold, token_scores=generation.token_scores)
        return verdict(generation.score, threshold, token_scores=generation.token_scores)
