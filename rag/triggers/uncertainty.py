"""Triggers of the model's own uncertainty: entropy, token probabilities (FLARE, DTR), RIND (DRAGIN) and ETC.

The signals themselves are computed by :mod:`probers.signals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, replace
from typing import Any, Literal

import numpy as np

from probers.signals import Part, Variant, parts, rind_scores, trend_scores, words
from probers.types import AttentionRows, Decision, Generation, Needs
from probers.words.text import split_sentences

from ..protocol import UNANSWERED, PaperOrReleased, Share, State, Trigger, verdict
from ..remote import RemoteLM


@dataclass(frozen=True)
class Entropy(Trigger):
    """Trigger that fires when the entropy of the tokens of an answer, or of a sentence, is above a threshold.

    Attributes:
        threshold: fires above it, nats; probers-compare chooses it on validation questions.
        reduction: "mean" over the tokens of rationale and answer, or their "max".
        scope: tokens of the whole "answer", which is then written anew; or of each "sentence", where the text
            before the first sentence above the threshold is kept.
    """

    threshold: float = 0.2
    reduction: Literal["mean", "max"] = "mean"
    scope: Literal["answer", "sentence"] = "answer"

    def __call__(self, generation: Generation, state: State) -> Decision:
        entropies = generation.entropies
        reduce = np.nanmean if self.reduction == "mean" else np.nanmax
        if self.scope == "sentence":
            return _first_above(generation, state, entropies, reduce, self.threshold)
        return verdict(_reduced(entropies, reduce, state), self.threshold, token_scores=_shown(entropies))


@dataclass(frozen=True)
class Flare(Trigger):
    """Trigger that fires at the first sentence with improbable tokens, then written anew (Jiang et al. 2023).

    With p the probabilities of a sentence's tokens, "paper" fires where some p is below theta, which means
    max(1 - p) > 1 - theta. The sentence that is written anew with passages is accepted as it is, and the text
    after it is written, and judged, without passages. "dragin" is FLARE as in DRAGIN's repository: it fires
    where mean(1 - p) > threshold, and accepts all text that is written with the passages.

    One pass looks at all sentences, instead of one pass for each; the text is the same.

    Attributes:
        threshold: fires where 1 - p is above it; probers-compare chooses it on validation questions if theta
            is None.
        variant: "paper" (an improbable token fires, one sentence is accepted) or "dragin" (the mean of 1 - p
            over the sentence fires, all text written from passages is accepted).
        theta: the paper's form in place of threshold: 0.8 fires where p is below 0.8, like threshold 0.2.
    """

    threshold: float = 0.2
    variant: Literal["paper", "dragin"] = "paper"
    theta: InitVar[float | None] = None

    def __post_init__(self, theta: float | None) -> None:  # type: ignore[override]
        super().__post_init__()
        if theta is not None:
            # From 0.8, make 0.2 and not 0.19999999999999996.
            object.__setattr__(self, "threshold", round(1.0 - theta, 12))

    @property
    def takes(self) -> Share:
        return "sentence" if self.variant == "paper" else "all"

    def __call__(self, generation: Generation, state: State) -> Decision:
        unsure = -np.expm1(generation.logprobs.astype(np.float64))
        reduce = np.max if self.variant == "paper" else np.mean
        return _first_above(generation, state, unsure, reduce, self.threshold)


@dataclass(frozen=True)
class DTR(Trigger):
    """Trigger that fires where the draft of an answer is unlikely (Decide Then Retrieve, Chen et al. 2026).

    Its score is the mean negative log-probability of the draft's tokens. The answer written with passages is
    not judged.

    Attributes:
        threshold: fires above it, nats per token; 0.001 is published. probers-compare chooses it.
    """

    threshold: float = 0.001

    def __call__(self, generation: Generation, state: State) -> Decision:
        if state.retrievals:
            return verdict(-UNANSWERED, self.threshold)
        surprise = -generation.logprobs.astype(np.float64)
        return verdict(_reduced(surprise, np.nanmean, state), self.threshold, token_scores=_shown(surprise))


@dataclass(frozen=True)
class ETC(Trigger):
    """Trigger that fires at the first word at which entropy begins to rise (ETC, Li et al., AAAI 2026).

    The text before that word is kept, one sentence is written with the passages and accepted as it is, and
    the text after it is written, and judged, without any, as in the released code.

    Attributes:
        threshold: fires above it; 1.3 is published for Llama-3-8B. probers-compare chooses it.
        absolute: entropy that begins to fall fires as well.
    """

    threshold: float = 1.3
    absolute: bool = False

    needs = Needs(attention=True)
    filters = True
    takes = "sentence"

    def __call__(self, generation: Generation, state: State) -> Decision:
        trend = trend_scores(generation)
        if self.absolute:
            trend = replace(trend, scores=np.abs(trend.scores))
        place: dict[str, Any] = {}
        if hits := trend.hits(self.threshold):
            tokens = sorted({t for i in hits for t in trend.tokens[i]})
            place = {"position": trend.spans[hits[0]][0], "tokens": tuple(tokens)}
        shown = trend.per_token(len(generation.token_ids))
        return verdict(trend.max(), self.threshold, token_scores=shown, **place)


@dataclass(frozen=True)
class Rind(PaperOrReleased, Trigger):
    """Trigger that fires at the first place whose RIND score (DRAGIN) is above the threshold.

    The text before that place is kept and the model goes on from there with the passages it fetched.

    Attributes:
        threshold: fires above it. The two variants have different scales, and the published 0.6 to 1.5 belong
            to the released one. probers-compare chooses it.
        variant: formula (:func:`probers.signals.rind_scores`) and loop.
            "paper": the text ends before the word that fired; the text written from there with the passages
            is judged too, except for its first word, which could fire for ever.
            "released": it ends before the sentence of that word; one sentence is written with the passages
            and accepted as it is, and the text after it is written, and judged, without any.
    """

    threshold: float = 1.0
    variant: Variant = "released"

    @property
    def takes(self) -> Share:
        return "sentence" if self.variant == "released" else "nothing"

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        alone: Sequence[AttentionRows | None] = [None] * len(generations)
        if self.variant == "released" and states:
            alone = states[0].lm.attention_alone(generations)
        return [self._decide(*each) for each in zip(generations, states, alone, strict=True)]

    def _decide(self, generation: Generation, state: State, alone: AttentionRows | None) -> Decision:
        rind = rind_scores(generation, self.variant, attention_alone=alone)
        in_text = words(generation.text, generation.offsets)
        taken = 0  # units of the text's first word, which may not fire
        if state.fresh and self.variant == "paper" and in_text:
            taken = sum(start < in_text[0].end for start, _ in rind.spans)
        place: dict[str, Any] = {}
        if hits := rind.hits(self.threshold, taken):
            start, end = rind.spans[hits[0]]
            if self.variant == "paper":
                hits = hits[:1]
                position = next((w.start for w in in_text if w.end > start and w.start < end), start)
            else:
                position = rind.sentences[rind.sentence(hits[0])][0]
            tokens = sorted({t for i in hits for t in rind.tokens[i]})
            place = {"position": position, "tokens": tuple(tokens)}
        shown = rind.per_token(len(generation.token_ids))
        return verdict(rind.max(taken), self.threshold, token_scores=shown, **place)


def sentences(generation: Generation) -> list[Part]:
    """List the sentences of a generation's text with their tokens; leave out sentences without a token."""
    return [each for each in parts(split_sentences(generation.text), generation.offsets) if each.tokens]


def _first_above(
    generation: Generation, state: State, values: np.ndarray, reduce: Callable[[np.ndarray], float],
    threshold: float,
) -> Decision:  # fmt: skip
    """Fire before the first sentence whose score, reduced from ``values`` (n,), is above the threshold."""
    # Accept a sentence written from fresh passages as it is: the same place could fire for ever.
    judged = sentences(generation)[1 if state.fresh else 0 :]
    scores = [_reduced(values[list(each.tokens)], reduce, state) for each in judged]
    # max() would overlook a NaN.
    top, place = float(np.max(scores)) if scores else 0.0, {}
    if above := [each for each, score in zip(judged, scores, strict=True) if score > threshold]:
        tokens = tuple(i for i in above[0].tokens if values[i] > threshold)
        place = {"position": above[0].start, "tokens": tokens}
    return verdict(top, threshold, token_scores=_shown(values), **place)


def _reduced(values: np.ndarray, reduce: Callable[[np.ndarray], float], state: State) -> float:
    """Reduce the known of ``values`` (n,); 0 where a server returns none of them, which fires nowhere."""
    if not len(values):
        return UNANSWERED
    if not isinstance(state.lm, RemoteLM) and np.isnan(values).any():
        return math.nan  # of a model here, NaN is a fault that is told
    return 0.0 if np.isnan(values).all() else float(reduce(values))


def _shown(values: np.ndarray) -> np.ndarray:
    """Return values (n,) for display, with 0 for the unknown."""
    return np.nan_to_num(values, posinf=np.inf)
