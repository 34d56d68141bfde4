"""Let the question decide how often to retrieve: not at all, once, or step by step (Adaptive-RAG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from probers.types import Decision, Generation, Question, UserError

from .base import LookAhead, State, Trigger, ruled
from .fixed_sentence import after_a_sentence

if TYPE_CHECKING:
    from probers.bank.question_classifier import Classifier


@dataclass
class Adaptive(Trigger):
    """Retrieves as a classifier of the question's text says (Jeong et al. 2024).

    "no": never. "single": once, with the question, before anything is generated. "multi": so
    as well, and then after every sentence. Its score is how much more probable retrieving
    is than not: max(P(single), P(multi)) - P(no), above 0 where it does.

    Attributes:
        classifier: folder of a trained
            :class:`~probers.bank.question_classifier.AdaptiveClassifier`, path or hub id of a model
            of transformers that writes A, B or C (the paper's T5) or whose labels are no, single
            and multi (or A, B and C), or an object with ``probabilities``.
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
                "no, single and multi"
            )
        from probers.bank.question_classifier import load_classifier

        given = self.classifier
        self._classifier = load_classifier(given) if isinstance(given, str) else given

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """Which questions to retrieve for; all that are new are classified at once."""
        asked = [state.question for state in states]
        return [ruled(name != "no", score) for name, score in self._classified(asked)]

    def look_ahead(self, question: Question) -> LookAhead | None:
        """One sentence of the questions that take several steps."""
        ((name, _),) = self._classified([question])
        return LookAhead(sentences=1) if name == "multi" else None

    def __call__(self, generation: Generation, state: State) -> Decision:
        ((name, score),) = self._classified([state.question])
        return after_a_sentence(generation, score) if name == "multi" else ruled(False, score)

    def _classified(self, questions: Sequence[Question]) -> list[tuple[str, float]]:
        """Strategy and score of every question."""
        from probers.bank.question_classifier import STRATEGIES

        texts = [q.question for q in questions]
        new = [t for t in dict.fromkeys(texts) if t not in self._known]
        if new:
            chances = self._classifier.probabilities(new)
            # Of equally probable ones the first, which is the cheapest.
            for text, row, best in zip(new, chances, chances.argmax(axis=1), strict=True):
                self._known[text] = STRATEGIES[best], float(np.max(row[1:]) - row[0])
        return [self._known[text] for text in texts]
