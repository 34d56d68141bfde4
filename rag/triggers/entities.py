"""Triggers before entities, by trained heads or the model's own uncertainty, and at rare entities.

:class:`Rarity` (QuCo-RAG, Min et al. 2026) reads nothing of the model: its signals are counts of passages in
the retriever's own index.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from probers.options import Limits, Natural
from probers.prober.calibration import Platt, Temperature, sigmoid
from probers.signals import Part, margins
from probers.signals.rarity import Counts, pair_rarity, question_rarity
from probers.types import Decision, Generation, Needs, Question, RunError, count
from probers.words import Entity, Recogniser, tokens_of, with_scores, written_entities
from probers.words.recogniser import HEAD

from ..protocol import State, Trigger, verdict
from ..retrievers.lexical import tokenize
from .probing import ReadsBank
from .uncertainty import sentences


class _AtEntities(Trigger):
    """Trigger that fires before the first entity of a draft whose score is above the threshold.

    An entity's score is that of the position that predicted its first token, so that it contains nothing of
    the entity itself. The text before the entity that fired is kept, and the model goes on from there with
    the fetched passages. An entity at the very beginning is then accepted, or the same place could fire for
    ever. A text's score is that of its highest entity, 0 without any. Like the training labels, it leaves out
    entities that begin a sentence (unless ``openings``) or that the question names (unless ``asked``).

    Attributes:
        recogniser: "rules" or "spacy:PIPELINE".
        openings: also judge entities that begin a sentence, which heads never saw in training.
        asked: also judge entities that the question names.
    """

    openings: bool
    asked: bool
    _threshold: float
    _recognise: Recogniser

    @abstractmethod
    def scores(self, generations: Sequence[Generation]) -> list[np.ndarray]:
        """Score the position before each of a generation's n tokens: (n,) for each, 0 or more."""

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        return list(map(self._decide, self.scores(generations), generations, states))

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
        scored = with_scores(entities, generation.offsets, scores)
        # max() would overlook a NaN.
        top = float(np.max([each.score for each in scored], initial=0.0))
        hit = next((each for each in scored if each.score > self._threshold), None)
        place = {} if hit is None else {"position": hit.entity.start, "tokens": hit.tokens}
        return verdict(top, self._threshold, token_scores=scores, **place)


@dataclass
class BeforeEntity(_AtEntities, ReadsBank):
    """Trigger that fires where trained heads (``pool=predicting``) expect a wrong entity.

    Attributes:
        bank: heads of the state before an entity, or folder or hub id of a prober; null in commands is the
            prober of prober=.
        threshold: fires where P(wrong) is above it, by the bank's calibration if that is increasing, else by
            the sigmoid of the score; None takes the one that the bank chose on its validation articles.
        recogniser: "rules" or "spacy:PIPELINE"; None takes the one that the bank's labels were made with.
    """

    threshold: float | None = None
    recogniser: str | None = None
    openings: bool = False
    asked: bool = False

    prober = "entities"

    def __post_init__(self) -> None:
        bank = self.load()
        if (bank.spec.pool, bank.spec.position) != ("predicting", "entity"):
            reads = f"{bank.spec.pool} states of {bank.spec.position} tokens"
            raise self.unfit("the state before an entity", reads)
        self._bank = bank
        self._recognise = Recogniser(self.recogniser or bank.recogniser or "rules", quiet=True)
        chosen = float(self._chances(np.array([bank.threshold]))[0])
        self._threshold = chosen if self.threshold is None else self.threshold

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
    """

    signal: Literal["entropy", "probability", "margin"] = "entropy"
    threshold: float = 0.5
    recogniser: str = "rules"
    openings: bool = False
    asked: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recognise = Recogniser(self.recogniser, quiet=True)
        self._threshold = self.threshold

    @property
    def needs(self) -> Needs:
        return Needs(top=self.signal == "margin")

    def scores(self, generations: Sequence[Generation]) -> list[np.ndarray]:
        if self.signal == "entropy":
            return [np.nan_to_num(g.entropies) for g in generations]  # unknown ones fire nowhere
        if self.signal == "margin":
            return [1 - margins(g) for g in generations]
        return [-np.expm1(g.logprobs.astype(np.float64)) for g in generations]


def _names(question: str, mention: str, *, spaced: bool) -> bool:
    """Tell whether a question contains the words of a mention in a row, or its characters without spaces."""
    if not spaced:
        return mention in question
    text, words = (" ".join(re.findall(r"\w+", each.lower())) for each in (question, mention))
    return f" {words} " in f" {text} "


Pair = tuple[str, str]


class _New(NamedTuple):
    """Entity that neither question nor earlier text names: its tokens, and its pairs."""

    tokens: tuple[int, ...]
    pairs: list[Pair]
    every: bool


@dataclass
class Rarity(Trigger):
    """Trigger on questions of rare entities, and before sentences of entities that never occur together.

    Before anything is written, it retrieves with the question if the question's rarest entity stands in fewer
    than ``frequency`` passages. Afterwards, each entity that a sentence is the first to name is paired with
    the entities that the sentence names before it. If one pair stands together in at most ``together``
    passages, the text before the sentence is kept and the model goes on from there with fetched passages. An
    entity with none before it in its sentence ("He was born in Oslo.") should stand with at least one entity
    of question and text so far. As in FLARE, one pass looks at all sentences, and a sentence written from
    passages fetched for it is accepted as it is.

    Both signals have one scale (:func:`probers.signals.rarity.rarity`), on which 0.5 stands for the two
    counts. The score of a text is its highest: that of its entities, or that of the question unless it fired
    for it. A question without entities never fires, and is counted in the report.

    Attributes:
        threshold: fires where a score is above it. 0.5 stands for the two counts below, another value moves
            both by one factor; probers-compare chooses it on validation questions.
        frequency: passages from which on a question's entity is not rare; 0 never fires for a question.
        reduction: the "lowest" number of passages of a question's entities, or their "mean" (QuCo-RAG's).
        together: passages up to which a pair counts as never together; -1 never fires for a pair.
        partners: an entity is paired with those of its own "sentence" as above, close to the triples of
            QuCo-RAG; or every pair with an entity of the question or the "text" so far has to occur, which
            the end of a chain of two facts seldom does.
        recogniser: "rules" or "spacy:PIPELINE".
    """

    threshold: float = 0.5
    frequency: Natural = 10
    reduction: Literal["lowest", "mean"] = "lowest"
    together: Annotated[int, Limits(ge=-1)] = 0
    partners: Literal["sentence", "text"] = "sentence"
    recogniser: str = "rules"
    _recognise: Callable[[str], list[Entity]] = field(init=False, repr=False, compare=False)

    before = True
    counts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._recognise = lru_cache(1024)(Recogniser(self.recogniser, quiet=True))

    def notes(self, questions: Sequence[Question]) -> list[str]:
        """Count the questions without entities."""
        without = sum(not self._named(question) for question in questions)
        nameless = f"no entity is named in {without} of {count(len(questions), 'question')}"
        return [f"trigger={self.name}: {nameless}; only what is written there can fire."] if without else []

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        return [verdict(score, self.threshold) for score in self._of_questions(states)]

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        texts = [list(self._sentences(*each)) for each in zip(generations, states, strict=True)]
        news = [new for text in texts for _, of_sentence in text for new in of_sentence]
        pairs = list(dict.fromkeys(pair for new in news for pair in new.pairs))
        known = dict(zip(pairs, _index(states).together(pairs), strict=True)) if pairs else {}
        each = zip(generations, states, self._of_questions(states), texts, strict=True)
        return [self._decide(*one, known) for one in each]

    def _decide(
        self, generation: Generation, state: State, top: float, text: list[tuple[Part, list[_New]]],
        known: dict[Pair, int],
    ) -> Decision:  # fmt: skip
        """Judge a text by the score of its question, ``top``, and of its entities."""
        shown = np.zeros(len(generation.token_ids))
        place: dict[str, Any] = {}
        if state.verdict is None and top > self.threshold:  # not judged before the text was written
            place = {"position": 0}
        elif state.verdict is not None and state.verdict.fire:
            top = 0.0
        for sentence, news in text:
            hits: list[int] = []
            for new in news:
                passages = [known[pair] for pair in new.pairs]
                score = pair_rarity(passages, self.together + 1, every=new.every)
                shown[list(new.tokens)], top = score, max(top, score)
                hits += new.tokens if score > self.threshold else ()
            if hits and not place:
                place = {"position": sentence.start, "tokens": tuple(sorted(set(hits)))}
        return verdict(top, self.threshold, token_scores=shown, **place)

    def _of_questions(self, states: Sequence[State]) -> list[float]:
        named = [self._named(state.question) for state in states]
        phrases = list(dict.fromkeys(each for names in named for each in names))
        known = dict(zip(phrases, _index(states).frequency(phrases), strict=True)) if phrases else {}
        return [question_rarity([known[n] for n in ns], self.frequency, self.reduction) for ns in named]

    def _named(self, question: Question) -> list[str]:
        return list(dict.fromkeys(entity.text for entity in self._recognise(question.question)))

    def _sentences(self, generation: Generation, state: State) -> Iterator[tuple[Part, list[_New]]]:
        """Yield the sentences to judge, with the entities that each of them is the first to name."""
        text, partial = generation.text, state.partial
        names = [*self._named(state.question), *(entity.text for entity in self._recognise(partial))]
        earlier = " ".join(["", *tokenize(state.question.question), "|", *tokenize(partial), ""])
        at = 0  # end of the text already added to ``earlier``
        entities = written_entities(
            text, self._recognise, prompt=generation.prompt, accepted=partial, openings=True
        )
        for number, sentence in enumerate(sentences(generation)):
            news, before = [], list[str]()
            for entity in entities:
                if not sentence.start <= entity.start < sentence.end:
                    continue
                words = tokenize(text[at : entity.start])
                earlier, at = " ".join([earlier.rstrip(), *words, ""]), entity.start
                phrase = " ".join(tokenize(entity.text))
                if phrase and f" {phrase} " not in earlier:
                    near = self.partners == "sentence" and bool(before)
                    pairs = [(partner, entity.text) for partner in dict.fromkeys(before if near else names)]
                    tokens = tuple(tokens_of(generation.offsets, entity.start, entity.end))
                    news.append(_New(tokens, pairs, every=near or self.partners == "text"))
                names.append(entity.text)
                before.append(entity.text)
            # Accept a sentence written from fresh passages as it is: the same place could fire for ever.
            if number or not state.fresh:
                yield sentence, news


def _index(states: Sequence[State]) -> Counts:
    retriever = states[0].retriever
    if not isinstance(retriever, Counts):
        raise RunError("trigger=rarity was asked without a retriever that counts phrases", "mismatch")
    return retriever
