"""Triggers that judge the question before anything is written: Adaptive-RAG, the model's own word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probers.prompts import PromptTemplate
from probers.types import Decision, Generation, Question, UserError

from ..protocol import LookAhead, State, Trigger, at_least, ruled, verdict
from .rules import after_a_sentence

if TYPE_CHECKING:
    from probers.adaptive.classifiers import Classifier


PROMPT = (
    "Question: {question}\nCan you answer this question correctly from what you know? Say yes or no.\nReply:"
)
_WORD = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


@dataclass
class Adaptive(Trigger):
    """Retrieves never, once or step by step, as a classifier of the question decides (Jeong et al. 2024).

    "no": never. "single": once, with the question, before anything is generated. "multi": the same,
    and then after every sentence. Its score is max(P(single), P(multi)) - P(no), above 0 where it
    retrieves.

    Attributes:
        classifier: folder of probers-train head=adaptive or adaptive_t5; path or hub id of a model of
            transformers that writes A, B or C (the paper's T5) or has the labels no, single
            and multi (or A, B and C); or an object with ``probabilities``. In commands, null is the
            newest classifier trained for this model under runs/.
    """

    classifier: str | Classifier | None = None
    _classifier: Classifier = field(init=False, repr=False)
    _known: dict[str, tuple[str, float]] = field(init=False, repr=False, default_factory=dict)

    before = True
    decides_by = "question"

    def __post_init__(self) -> None:
        if self.classifier is None:
            raise UserError(
                "trigger=adaptive needs a classifier of questions: train one with 'probers-train "
                "head=adaptive' and pass its folder as trigger.classifier, or a model with the labels "
                "no, single and multi",
                "no-artifact",
            )
        from probers.adaptive.classifiers import load_classifier

        given = self.classifier
        self._classifier = load_classifier(given) if isinstance(given, str) else given

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """Decide which questions to retrieve for; all new ones are classified at once."""
        asked = [state.question for state in states]
        return [ruled(name != "no", score) for name, score in self._classified(asked)]

    def look_ahead(self, question: Question) -> LookAhead | None:
        """One sentence for questions that take several steps."""
        ((name, _),) = self._classified([question])
        return LookAhead(sentences=1) if name == "multi" else None

    def __call__(self, generation: Generation, state: State) -> Decision:
        ((name, score),) = self._classified([state.question])
        return after_a_sentence(generation, score) if name == "multi" else ruled(False, score)

    def _classified(self, questions: Sequence[Question]) -> list[tuple[str, float]]:
        """Strategy and score of every question."""
        from probers.adaptive.classifiers import STRATEGIES

        texts = [q.question for q in questions]
        new = [t for t in dict.fromkeys(texts) if t not in self._known]
        if new:
            chances = self._classifier.probabilities(new)
            # Of equally probable ones the first, which is the cheapest.
            for text, row, best in zip(new, chances, chances.argmax(axis=1), strict=True):
                self._known[text] = STRATEGIES[best], float(np.max(row[1:]) - row[0])
        return [self._known[text] for text in texts]


@dataclass(frozen=True)
class LlmJudge(Trigger):
    """Retrieves once, with the question, unless the model says beforehand that it can answer.

    The first "yes" or "no" of its reply counts. A reply with neither counts as no, so that
    it always retrieves with a model that follows no instructions. Asking counts as a generation
    of its own.

    Attributes:
        prompt: text with ``{question}``, sent without the answer prompt's exemplars.
        max_new_tokens: tokens of the reply.
    """

    prompt: str = PROMPT
    max_new_tokens: int = 8

    before = True
    after = False
    decides_by = "question"

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise UserError(f"trigger.prompt={self.prompt[:40]!r} has no {{question}}: put it in")
        at_least("trigger.max_new_tokens", self.max_new_tokens)

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """The model's reply about every question; it is asked about all of them at once."""
        if not states:
            return []
        form = PromptTemplate("judge", question_form="{question}", chat=states[0].prompt.chat)
        if form.chat:
            form = form.bind(states[0].lm.tokenizer)
        asked = [form.question(self.prompt.replace("{question}", s.question.question)) for s in states]
        replies = states[0].generate(
            asked, max_new_tokens=self.max_new_tokens, names=[s.question.id for s in states]
        )
        decisions = []
        for reply, state in zip(replies, states, strict=True):
            state.spend(reply)
            found = _WORD.search(reply.text)
            decisions.append(verdict(float(found is None or found.group().lower() == "no"), 0.5))
        return decisions

    def __call__(self, generation: Generation, state: State) -> Decision:
        return ruled(False, 0.0 if state.verdict is None else state.verdict.score)
