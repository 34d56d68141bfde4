"""Triggers whose heads were trained on what one retrieval did to an answer (label ``helps``).

"Wrong" is not what a loop needs to know: an answer can stay wrong with passages, and a right one can turn
wrong. The heads of these triggers learned from answers without and with the passages that the question
finds; the probability of their scores is that of an answer which a retrieval turns right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from probers.data.corpus import search
from probers.prober.prober import Prober
from probers.signals.rarity import Counts, known_of, lowest_frequencies, retriever_ranks
from probers.types import Decision, Generation, UserError
from probers.words import Recogniser

from ..protocol import State
from .probing import Probing, ProbingBefore, ReadsBank


def known_to(states: Sequence[State]) -> dict[str, np.ndarray]:
    """Compute what is known of n questions before a retrieval is read, (n,) each, as for the labels.

    The passages are searched for and not read, which costs no pass of the model and is no retrieval.
    """
    texts, retriever = [state.question.question for state in states], states[0].retriever
    columns: dict[str, Sequence[object]] = {"question": texts}
    if retriever is not None:
        ranks = [retriever_ranks(hits) for hits in search(retriever, texts, 2)]
        columns |= {name: [each[name] for each in ranks] for name in ranks[0]}
    if isinstance(retriever, Counts):
        columns["question_frequency"] = lowest_frequencies(texts, retriever, Recogniser("rules", quiet=True))
    return known_of(columns)


@dataclass
class HelpsBefore(ProbingBefore):
    """Trigger that retrieves once, with the question, if heads expect that this turns the answer right.

    As :class:`ProbingBefore`, with heads of the label ``helps``.

    Attributes:
        bank: heads of ``label=helps`` and ``pool=prompt``, or folder or hub id of a prober; null in commands
            is the prober of helps_prompt_prober=.
        threshold: fires when the score is above it; None takes the one that the bank chose on its validation
            questions.
        with_entropy: score by the bank's logistic model over heads and what is known of the question: the
            retriever's best score and its margin, rarity, length.
    """

    with_entropy: bool = False

    learns = "helps"
    prober = "helps_before"

    def take(self, bank: Prober) -> None:
        super().take(bank)
        if self.with_entropy and bank.entropy_model is None:
            message = (
                "trigger.with_entropy=true: the prober was trained without what is known of the question"
            )
            raise UserError(f"{message}; use with_entropy=false", "mismatch")
        if self.with_entropy and self.threshold is None and bank.entropy_model is not None:
            self._threshold = bank.entropy_model.threshold

    @property
    def probability(self) -> Callable[[np.ndarray], np.ndarray]:
        return partial(self._bank.probability, with_entropy=self.with_entropy)

    def scores(self, vectors: np.ndarray, states: Sequence[State]) -> np.ndarray:
        return self._bank.score_states(vectors, known_to(states) if self.with_entropy else None)


@dataclass
class Helps(Probing):
    """Trigger that fires on the draft if heads expect that a retrieval turns it right.

    As :class:`Probing`, with heads of the label ``helps``. ``with_entropy`` scores by the bank's logistic
    model over heads, entropies of the draft, and what :class:`HelpsBefore` knows of the question. Query and
    passages should be those of the labels: the question, the same corpus.
    """

    learns = "helps"
    prober = "helps"
    make = ReadsBank.make

    def _signals(self, texts: Sequence[Generation], states: Sequence[State]) -> dict[str, np.ndarray] | None:
        written = super()._signals(texts, states)
        return written and written | known_to(states)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        """Judge the first draft; an answer that was written from passages is accepted."""
        decisions = super().decide(generations, states)
        return [
            Decision(False, each.score, max(each.score, each.threshold)) if state.retrievals else each
            for each, state in zip(decisions, states, strict=True)
        ]
