"""Triggers that read hidden states with trained heads: of whole answers, of the prompt, or of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from probers.prober.calibration import sigmoid
from probers.prober.decision import Ensemble
from probers.signals import signals, words
from probers.types import Decision, Generation, Needs, RunError, UserError
from probers.words import Recogniser, tokens_of, written_entities
from probers.words.thinking import PARTS, Part, part_at, part_of

from ..protocol import TRAINED, UNANSWERED, State, Trigger, verdict

if TYPE_CHECKING:
    from probers.cli.inputs import ProberKind
    from probers.prober.prober import Prober
    from probers.prompts import PromptTemplate
    from probers.store.spec import ModelSpec


@dataclass
class ReadsBank(Trigger):
    """Base of triggers that read states with trained heads of the label ``learns``."""

    learns: ClassVar[Literal["wrong", "helps"]] = "wrong"

    bank: Prober | str | None = None
    _bank: Prober = field(init=False, repr=False)
    _threshold: float = field(init=False, repr=False)

    @property
    def make(self) -> str:
        """Advice on getting a prober."""
        from probers.cli.inputs import how_to_make

        key, kind = next((key, kind) for key, kind in TRAINED.items() if kind == self.prober)
        advice = how_to_make(kind).replace("a prober", "one")
        return f"{advice}, and pass its folder as prober= (probers-compare: {key}=)"

    @property
    def needs(self) -> Needs:
        return self._bank.needs

    @property
    def record(self) -> dict[str, Any]:
        return super().record | {"threshold": self._threshold}

    @property
    def adapter(self) -> Path | None:
        return self._bank.adapter

    def load(self) -> Prober:
        """Return the prober in ``bank``, loaded if that is a folder (UserError: there is none)."""
        from probers.prober.prober import Prober

        super().__post_init__()
        if self.bank is None:
            raise UserError(f"trigger={self.name} needs a prober: {self.make}", "no-artifact")
        bank = self.bank if isinstance(self.bank, Prober) else Prober.from_pretrained(self.bank)
        if bank.label != self.learns:
            raise self.unfit(f"label={self.learns}", f"label={bank.label}")
        return bank

    def unfit(self, scores: str, reads: str) -> UserError:
        """Make the error for a prober that reads something else than the trigger scores."""
        named = f" {self.bank}" if isinstance(self.bank, str) else ""
        message = f"trigger={self.name} scores {scores}, but the prober{named} reads {reads}"
        return UserError(f"{message}: {self.make}", "mismatch")

    def states(self, generation: Generation) -> np.ndarray:
        """Return the states that the bank reads, rounded as its training features were, float32.

        The shape is (layers of the bank, d), or (n, layers, d) if every token's states are kept.
        """
        from probers.model.pooling import as_stored  # loads torch

        if generation.state is None:
            raise RunError(f"trigger={self.name} needs hidden states, but none were recorded", "mismatch")
        (feature,) = generation.needs.features
        chosen = feature.take(generation.state, self._bank.layers)
        return as_stored(chosen, self._bank.spec.dtype).numpy()

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        self._bank.check_model(model)

    def check_prompt(self, prompt: PromptTemplate) -> None:
        """Refuse a prompt other than that of the prober's training answers (UserError)."""
        from probers.cli.inputs import check_form

        check_form(self._bank.spec.prompt, prompt)

    def by_token(
        self, generations: Sequence[Generation], chances: Callable[[np.ndarray], np.ndarray]
    ) -> list[np.ndarray]:
        """Compute ``chances`` (n,) of the states of each generation's n tokens.

        The heads run once for all, unless they read on from token to token.
        """
        states = [self.states(g) for g in generations if g.token_ids]
        if not self._bank.head.causal and states:
            states = [np.concatenate(states)]
        scored = np.concatenate([chances(each) for each in states] or [np.zeros(0)])
        return np.split(scored, np.cumsum([len(g.token_ids) for g in generations])[:-1])


def threshold_in_force(threshold: float | None, theta: float | None) -> float | None:
    """Return the threshold in either form, if one was given."""
    if theta is None:
        return None if threshold is None else float(threshold)
    if threshold is not None:
        raise UserError(f"give trigger.theta={theta} or trigger.threshold={threshold}, not both", "conflict")
    return -float(theta)


@dataclass
class Probing(ReadsBank):
    """Trigger that fires on the whole answer, and on the new answer after every retrieval (algorithm 1).

    In the paper's terms it retrieves if sum of logit[wrong] + theta > sum of logit[correct] over the bank's
    layers, which means score > -theta.

    Attributes:
        bank: trained heads, or folder or hub id of a prober; null in commands is the prober of prober=.
        threshold: fires when the score is above it; None takes the one that the bank chose on its validation
            questions.
        theta: the paper's form of the threshold, with the opposite sign; higher retrieves more. Not together
            with ``threshold``.
        combine: sum "logits" (paper) or "probabilities" (released code) over layers; None is as the bank was
            fitted. Any other value has its own scale: the threshold is then 0 unless one is given.
        with_entropy: score by the bank's logistic model over heads and entropies.

    A prober of entity tokens (``pool=tokens``) scores an answer by the worst entity
    that its recogniser finds, each by all of its tokens, and an answer without entities by all tokens.
    """

    threshold: float | None = None
    theta: InitVar[float | None] = None
    combine: Literal["logits", "probabilities"] | None = None
    with_entropy: bool = False
    _recombined: bool = field(init=False, repr=False)
    _recognise: Recogniser | None = field(init=False, repr=False)
    _part: Part = field(init=False, repr=False)

    prober: ClassVar[ProberKind | None] = "answers"
    make = (
        "make one with 'probers-datagen --source cot' (or --source wiki pool=tokens) and 'probers-train', "
        "and pass its folder as prober="
    )

    def __post_init__(self, theta: float | None) -> None:
        bank, given = self.load(), threshold_in_force(self.threshold, theta)
        of_tokens = bank.spec.pool == "tokens"
        if bank.spec.pool == "prompt":
            raise self.unfit("generated text", "the state before it (use trigger=probing_before)")
        answers = ("generated", *PARTS)
        if bank.spec.pool == "predicting" or (bank.spec.position not in answers and not of_tokens):
            raise self.unfit("generated text", f"{bank.spec.pool} states of {bank.spec.position} tokens")
        recombined = False
        if self.combine is not None and self.combine != bank.combine:
            if self.combine not in ("logits", "probabilities"):
                message = f"trigger.combine={self.combine} is not how the prober was fitted ({bank.combine})"
                raise UserError(f"{message}: choose logits, probabilities or null", "unknown-choice")
            bank, recombined = replace(bank, ensemble=Ensemble(self.combine)), True
        if self.with_entropy and (recombined or bank.entropy_model is None):
            reason = "was fitted with another combine" if recombined else "was trained without signals"
            message = f"trigger.with_entropy=true: the prober {reason}; use with_entropy=false"
            raise UserError(message, "mismatch")
        if given is None:
            model = bank.entropy_model if self.with_entropy else None
            given = 0.0 if recombined else bank.threshold if model is None else model.threshold
        self._bank, self._recombined, self._threshold = bank, recombined, given
        self._recognise = Recogniser(bank.recogniser or "rules", quiet=True) if of_tokens else None
        self._part = part_at(bank.spec.position)

    @property
    def needs(self) -> Needs:
        if self._part == "both":
            return self._bank.needs
        from probers.prober.token_scores import text_needs  # loads torch

        return text_needs(self._bank)

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        super().check(model, prompt)
        if self._recognise is None:
            self.check_prompt(prompt)

    @property
    def probability(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """Calibration of the prober; None with another ``combine``, as it was not fitted to these scores."""
        return None if self._recombined else partial(self._bank.probability, with_entropy=self.with_entropy)

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        if self._part != "both":
            return [verdict(self._of_part(generation), self._threshold) for generation in generations]
        written = [i for i, g in enumerate(generations) if g.token_ids]
        scores = np.full(len(generations), UNANSWERED)
        if self._recognise is not None:
            scores[written] = [self._worst(generations[i], states[i], self._recognise) for i in written]
        elif written:
            vectors = np.stack([self.states(generations[i]) for i in written])
            given = self._signals([generations[i] for i in written], [states[i] for i in written])
            scores[written] = self._bank.score_states(vectors, given)
        return [verdict(float(score), self._threshold) for score in scores]

    def _of_part(self, generation: Generation) -> float:
        """Score the part that the prober was trained on; a text without it is scored like an empty one."""
        from probers.prober.token_scores import text_scores  # loads torch

        span = part_of(generation.text, self._part)
        tokens = [] if span is None else tokens_of(generation.offsets, *span)
        if not tokens or generation.state is None:
            return UNANSWERED
        scores, _ = text_scores(self._bank, generation.state, [tokens])
        return float(scores[tokens[-1]] or 0.0)

    def _signals(self, texts: Sequence[Generation], states: Sequence[State]) -> dict[str, np.ndarray] | None:
        """Compute entropy signals (n,) of texts, if they are part of the score."""
        if not self.with_entropy:
            return None
        each = [signals(text) for text in texts]
        return {name: np.array([s[name] for s in each]) for name in each[0]}

    def _worst(self, generation: Generation, state: State, recognise: Recogniser) -> float:
        """Find the highest score of an entity in a text, or score all its tokens if it has none."""
        entities = written_entities(
            generation.text, recognise, prompt=generation.prompt, accepted=state.partial, openings=True
        )
        tokens = [tokens_of(generation.offsets, entity.start, entity.end) for entity in entities]
        spans = [(each[0], each[-1] + 1) for each in tokens if each] or [(0, len(generation.token_ids))]
        given = self._signals([generation.tokens_from(*span) for span in spans], [state] * len(spans))
        return float(np.max(self._bank.score_spans(self.states(generation), np.array(spans), given)))


@dataclass
class ReadsApart(ReadsBank):
    """Base of triggers whose heads read passes of their own: nothing of what the loop generates.

    ``threshold`` None takes the one that the bank chose on its validation texts.
    """

    threshold: float | None = None

    before = True
    needs = Needs()

    def take(self, bank: Prober) -> None:
        """Keep the prober, and the threshold that holds."""
        self._bank = bank
        self._threshold = bank.threshold if self.threshold is None else float(self.threshold)

    @property
    def probability(self) -> Callable[[np.ndarray], np.ndarray]:
        return self._bank.probability


@dataclass
class ProbingBefore(ReadsApart):
    """Trigger that retrieves once, with the question, if heads expect a wrong answer before it is written.

    The heads read the state at the prompt's last token, without passages, like the value head of P(IK)
    (Kadavath et al. 2022, "Language Models (Mostly) Know What They Know", section 5). If it fires, no draft
    is written. Otherwise the answer is written without retrieval, and nothing is judged after that. One call
    of the model reads the states for all questions, for one token each, and counts as a generation.

    Attributes:
        bank: heads of ``pool=prompt``, or folder or hub id of a prober; null in commands is the prober of
            prober=.
        threshold: fires when the score is above it; None takes the one that the bank chose on its validation
            questions.
    """

    after = False
    decides_by = "question"
    prober: ClassVar[ProberKind | None] = "prompts"

    def __post_init__(self) -> None:
        bank = self.load()
        if bank.spec.pool != "prompt":
            raise self.unfit("the state before an answer", f"{bank.spec.pool} states")
        self.take(bank)

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        super().check(model, prompt)
        self.check_prompt(prompt)

    def decide_before(self, states: Sequence[State]) -> list[Decision]:
        """Judge the states of the questions; a prompt that the model skips has none, and does not fire."""
        if not states:
            return []
        prompts = [state.prompt.question(state.question.question) for state in states]
        read = states[0].generate(
            prompts, max_new_tokens=1, needs=self._bank.needs, prefix=states[0].prompt.prefix,
            names=[state.question.id for state in states],
        )  # fmt: skip
        for generation, state in zip(read, states, strict=True):
            state.spend(generation)
        known = [i for i, generation in enumerate(read) if generation.stop != "skipped"]
        scores = np.full(len(states), self._threshold)
        if known:
            vectors = np.stack([self.states(read[i]) for i in known])
            scores[known] = self.scores(vectors, [states[i] for i in known])
        return [verdict(float(score), self._threshold) for score in scores]

    def scores(self, vectors: np.ndarray, states: Sequence[State]) -> np.ndarray:
        """Score questions by their states (n, layers, d)."""
        return self._bank.score_states(vectors)

    def __call__(self, generation: Generation, state: State) -> Decision:
        score = self._threshold if state.verdict is None else state.verdict.score
        return Decision(False, score, max(score, self._threshold))  # a trigger that fired does not fire again


@dataclass
class Radio(ReadsBank):
    """Trigger that fires at the first token with P(hallucination) above 0.5 and the text's mean (RaDIO).

    With s_i = P(hallucination at token i), it fires where s_i > mean(s) and s_i > 0.5. (The paper prints
    "below 0.5", for an output that must then be P(faithful).) s_i is the softmax of the bank's head, averaged
    over layers if there are several. The bank's calibration is for whole spans and is not used.

    The text before the word that fired is kept, and the model goes on from there with the fetched passages.
    The word that it writes there is accepted without judging, as otherwise the same place could fire for
    ever.

    Attributes:
        bank: trained heads of single tokens, or folder or hub id of a prober; null in commands is the prober
            of prober=.
        threshold: fires where s_i is above it.
        above_mean: s_i must exceed the mean over the generated tokens as well.
    """

    threshold: float = 0.5
    above_mean: bool = True

    prober = "tokens"

    def __post_init__(self) -> None:
        bank = self.load()
        if bank.spec.pool != "tokens" or bank.head.tokens:
            read = "whole texts of tokens" if bank.spec.pool == "tokens" else f"{bank.spec.pool} states"
            raise self.unfit("single tokens", read)
        self._bank, self._threshold = bank, self.threshold

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        parts = self.by_token(generations, lambda states: sigmoid(self._bank.margins(states)).mean(axis=1))
        return [self._decide(*each) for each in zip(parts, generations, states, strict=True)]

    def _decide(self, chances: np.ndarray, generation: Generation, state: State) -> Decision:
        in_text = words(generation.text, generation.offsets)
        # A token of white space alone belongs to no word, and gives nothing to look up.
        home = {token: word.start for word in reversed(in_text) for token in word.tokens}
        taken = in_text[0].end if state.fresh and in_text else 0
        may_fire = np.array([home.get(i, -1) >= taken for i in range(len(chances))], dtype=bool)
        if self.above_mean and len(chances):
            may_fire &= chances > chances.mean()
        # Tokens that may not fire have score 0.
        score = float(np.where(may_fire, chances, 0.0).max(initial=0.0))
        hits = np.flatnonzero(may_fire & (chances > self.threshold)).tolist()
        place = {"position": home[hits[0]], "tokens": (hits[0],)} if hits else {}
        return verdict(score, self.threshold, token_scores=chances, **place)
