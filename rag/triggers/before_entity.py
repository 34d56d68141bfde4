"""Triggers before an entity is written, by trained heads or by the model's own uncertainty."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from probers.bank.calibration import Platt, Temperature, sigmoid
from probers.entities import Recogniser, with_scores, written_entities
from probers.entities.recogniser import HEAD
from probers.types import Decision, Generation, Needs
from probers.uncertainty import margins

from ..protocol import State, Trigger, one_of, verdict
from .probing import ReadsBank


class _AtEntities(Trigger):
    """Trigger that fires before the first entity of a draft whose score is above the threshold.

    An entity's score is that of the position that predicted its first token, so that it contains nothing of
    the entity itself. The text before the entity that fired is kept, and the model goes on from there with
    the fetched passages. An entity at the very beginning is then accepted, or the same place could fire for
    ever. A text's score is that of its highest entity, 0 without any. Like the training labels, it leaves out
    entities that begin a sentence (unless ``openings``) or that the question names (unless ``asked``).
    """

    openings: bool
    asked: bool
    _threshold: float
    _recognise: Recogniser

    @abstractmethod
    def scores(self, generations: Sequence[Generation]) -> list[np.ndarray]:
        """Score the position before each of a generation's n tokens: (n,) for each, 0 or more."""

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        each = zip(self.scores(generations), generations, states, strict=True)
        return [self._decide(*one) for one in each]

    def _decide(self, scores: np.ndarray, generation: Generation, state: State) -> Decision:
        entities = written_entities(
            generation.text, self._recognise,
            prompt=generation.prompt, accepted=state.partial, openings=self.openings,
        )  # fmt: skip
        if not self.asked:
            spaced = self._recognise.language.spaced
            entities = [e for e in entities if not _names(state.question.question, e.text, spaced=spaced)]
        if state.fresh and entities and entities[0].start <= HEAD:
            entities = entities[1:]
        found = with_scores(entities, generation.offsets, scores)
        # max() would overlook a NaN.
        top = float(np.max([each.score for each in found], initial=0.0))
        hit = next((each for each in found if each.score > self._threshold), None)
        place = {} if hit is None else {"position": hit.entity.start, "tokens": hit.tokens}
        return verdict(top, self._threshold, token_scores=tuple(map(float, scores)), **place)


@dataclass
class BeforeEntity(_AtEntities, ReadsBank):
    """Trigger that fires where trained heads (``pool=predicting``) expect a wrong entity.

    Attributes:
        bank: heads of the state before an entity, or folder or hub id of a prober; null in commands is the
            prober of prober=.
        threshold: fires where P(wrong) is above it, by the bank's calibration if that is increasing, else by
            the sigmoid of the score; None takes the one that the bank chose on its validation articles.
        recogniser: "rules" or "spacy:PIPELINE"; None takes the one that the bank's labels were made with.
        openings: also judge entities that begin a sentence, which the heads never saw in training.
        asked: also judge entities that the question names.
    """

    threshold: float | None = None
    recogniser: str | None = None
    openings: bool = False
    asked: bool = False
    _threshold: float = field(init=False, repr=False)
    _recognise: Recogniser = field(init=False, repr=False)

    prober = "entities"

    def __post_init__(self) -> None:
        bank = self.load()
        if (bank.spec.pool, bank.spec.position) != ("predicting", "entity"):
            reads = f"{bank.spec.pool} states of {bank.spec.position} tokens"
            raise self.unfit("the state before an entity", reads)
        self._bank = bank
        self._recognise = Recogniser(self.recogniser or bank.recogniser or "rules", quiet=True)
        own = float(self._chances(np.array([bank.threshold]))[0])
        self._threshold = own if self.threshold is None else self.threshold

    @property
    def record(self) -> dict[str, Any]:
        return super().record | {"threshold": self._threshold}

    def scores(self, generations: Sequence[Generation]) -> list[np.ndarray]:
        return self.by_token(generations, lambda states: self._chances(self._bank.score_states(states)))

    def _chances(self, score: np.ndarray) -> np.ndarray:
        """Convert scores (n,) to P(wrong), increasing, so that the bank's threshold keeps its meaning."""
        how = self._bank.calibration
        rises = isinstance(how, Temperature) or (isinstance(how, Platt) and how.slope > 0)
        return how(score) if rises else sigmoid(score)


@dataclass
class EntitySignal(_AtEntities):
    """Trigger that fires where the model itself is uncertain about how an entity begins; needs no heads.

    Attributes:
        signal: signal at the position that predicts the entity's first token: the "entropy" of its
            distribution in nats, 1 minus the "probability" of that token, or 1 minus the "margin" between the
            two highest probabilities (Scheffer et al. 2001).
        threshold: fires where the signal is above it; probers-compare chooses it on validation questions.
        recogniser: "rules" or "spacy:PIPELINE".
        openings: also judge entities that begin a sentence.
        asked: also judge entities that the question names.
    """

    signal: Literal["entropy", "probability", "margin"] = "entropy"
    threshold: float = 0.5
    recogniser: str = "rules"
    openings: bool = False
    asked: bool = False
    _threshold: float = field(init=False, repr=False)
    _recognise: Recogniser = field(init=False, repr=False)

    def __post_init__(self) -> None:
        one_of("trigger.signal", self.signal, "entropy", "probability", "margin")
        self._recognise = Recogniser(self.recogniser, quiet=True)
        self._threshold = self.threshold

    @property
    def needs(self) -> Needs:
        return Needs(top=self.signal == "margin")

    def scores(self, generations: Sequence[Generation]) -> list[np.ndarray]:
        if self.signal == "entropy":
            return [g.entropies for g in generations]
        if self.signal == "margin":
            return [1 - margins(g) for g in generations]
        return [-np.expm1(g.logprobs.astype(np.float64)) for g in generations]


def _names(question: str, mention: str, *, spaced: bool) -> bool:
    """Tell whether a question contains the words of a mention in a row, or its characters without spaces."""
    if not spaced:
        return mention in question
    asked, named = (" ".join(re.findall(r"\w+", text.lower())) for text in (question, mention))
    return f" {named} " in f" {asked} "
