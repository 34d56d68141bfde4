"""Triggers of drawn answers and of further questions to the model: they judge whole answers.

The signals are those of :mod:`probers.signals`. Triggers with equal settings share one set of samples per
prompt; every draw and every further question counts among the calls of the model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal

from probers.prompts import PromptTemplate
from probers.signals import agreement
from probers.signals.meaning import Clusters, Entailment, Same, by_matcher, clusters
from probers.signals.samples import Draws, Prompt, Samples, draw, middle_layer, states_at_end
from probers.signals.self_evaluation import CONFIDENCE_FORM as VERBALISED
from probers.signals.self_evaluation import P_TRUE_FORM as P_TRUE
from probers.signals.self_evaluation import p_true, question_of, verbalised
from probers.store.spec import ModelSpec
from probers.types import Decision, Generation, UserError
from probers.words import EntityMatcher

from ..protocol import UNANSWERED, State, Trigger, has_places, verdict

#: A score, higher if the answer is likelier wrong, with the evidence behind it for the trace.
Scored = tuple[float, dict[str, Any]]


class _OfAnswers(Trigger):
    """Base of triggers that score whole answers; an answer without a token fires at any threshold.

    Attributes:
        threshold: fires above it, from 0 to 1; probers-compare chooses it on validation questions.
    """

    threshold: float
    reads_answer = True

    def decide(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Decision]:
        written = [i for i, generation in enumerate(generations) if generation.token_ids]
        decisions = [verdict(UNANSWERED, self.threshold)] * len(generations)
        if written:
            scored = self.scores([generations[i] for i in written], [states[i] for i in written])
            for i, (score, evidence) in zip(written, scored, strict=True):
                decisions[i] = verdict(score, self.threshold, evidence=evidence)
        return decisions

    @abstractmethod
    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Scored]:
        """Score each answer; there is at least one."""


@dataclass(frozen=True)
class _Sampled(Draws, _OfAnswers):
    """Base of triggers that compare drawn answers."""

    least = 2  # samples that it compares
    pool: ClassVar[Literal["last", "predicting"]] = "last"  # recorded state of a sample

    @property
    def draws(self) -> bool:
        return self.samples > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(self.least, f"trigger={self.name}")

    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Scored]:
        scored: list[Scored] = []
        for samples, state in zip(self.drawn(generations, states), states, strict=True):
            score, evidence = self.score(samples, state.answer or "")
            scored.append((score, {"samples": list(samples.texts)} | evidence))
        return scored

    def drawn(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Samples]:
        """Draw samples of each generation's prompt, counted as the question's costs."""
        one, layer = states[0], self.layer_of(states[0].lm.spec)
        prompts = [
            Prompt(generation.prompt, state.question.dataset, state.budget, state.question.id)
            for generation, state in zip(generations, states, strict=True)
        ]
        drawn = draw(
            one.generate, prompts, self, one.prompt, layer=layer, pool=self.pool,
            answer_tokens=one.answer_tokens,
        )  # fmt: skip
        for samples, state in zip(drawn, states, strict=True):
            samples.spend(state.spend)
        return drawn

    def layer_of(self, spec: ModelSpec) -> int:
        """Choose the layer recorded for all that share the samples; 0 of a server, which has none."""
        return middle_layer(spec.layers)

    @abstractmethod
    def score(self, samples: Samples, answer: str) -> Scored:
        """Score the greedy ``answer``."""


#: Triggers share one of each.
_entailment, _matcher = cache(Entailment), cache(EntityMatcher)


@dataclass(frozen=True, kw_only=True)
class _ByMeaning(_Sampled):
    """Base of triggers that compare what answers mean.

    Attributes:
        matcher: compares answers; None is a matcher with its defaults, in commands the command's.
        nli: compare by this entailment model in place of the matcher; hub id or folder.
    """

    matcher: EntityMatcher | None = None
    nli: str | None = None

    @property
    def same(self) -> Same:
        """Comparison of two answers; yes and no need no matcher."""
        return by_matcher(self.matcher or _matcher()) if self.nli is None else _entailment(self.nli)

    def grouped(self, samples: Samples) -> tuple[Clusters, dict[str, Any]]:
        """Cluster the samples' answers; return the clusters and the evidence for them."""
        meanings = clusters(samples.answers, self.same)
        return meanings, {"clusters": list(meanings.of), "undecided": meanings.undecided}


@dataclass(frozen=True)
class SelfConsistency(_ByMeaning):
    """Trigger that fires where few drawn answers mean the same as the greedy one (Wang et al. 2022).

    Its score is 1 minus their share.
    """

    threshold: float = 0.5
    reads_tokens = False
    least = 1

    def score(self, samples: Samples, answer: str) -> Scored:
        return 1.0 - agreement.self_consistency(answer, samples.answers, self.same), self.grouped(samples)[1]


@dataclass(frozen=True)
class SemanticEntropy(_ByMeaning):
    """Trigger of high entropy of drawn answers' meanings (Kuhn et al. 2023, Farquhar et al. 2024).

    Attributes:
        threshold: fires above it, nats; probers-compare chooses it on validation questions.
        variant: a meaning's probability is its share of the samples ("discrete"), of the sum of their
            probabilities per token, as in the code of Farquhar et al. ("weighted"), or of the sum of their
            sequence probabilities ("sequence").
    """

    threshold: float = 0.5
    variant: agreement.Variant = "discrete"

    def score(self, samples: Samples, answer: str) -> Scored:
        meanings, evidence = self.grouped(samples)
        about = meanings.of, samples.logprobs, samples.lengths
        return agreement.semantic_entropy(*about, variant=self.variant), evidence


@dataclass(frozen=True)
class LexicalSimilarity(_Sampled):
    """Trigger that fires where drawn texts have few words in common, by ROUGE-L (Fomicheva et al. 2020).

    Its score is 1 minus the mean over pairs.
    """

    threshold: float = 0.5

    reads_tokens = False

    def score(self, samples: Samples, answer: str) -> Scored:
        return 1.0 - agreement.lexical_similarity(samples.texts), {}


@dataclass(frozen=True)
class Eigenscore(_Sampled):
    """Trigger that fires where the states of drawn answers spread widely.

    INSIDE (Chen et al. 2024) judges finished answers by it, SeaKR (Yao et al. 2024) retrieves by it.
    Fewer than two samples with a token have nothing to compare, and fire like an empty answer.

    Attributes:
        threshold: fires above it; probers-compare chooses it on validation questions.
        layer: layer whose states are compared; null is the middle one.
        alpha: added to the diagonal of the samples' Gram matrix.
        variant: "paper" compares the residual stream at the samples' last tokens, "seakr" what SeaKR's code
            does, the MLP's output at the end mark, for which its threshold of -6 is, and "inside" what
            INSIDE's code does, the residual stream before the last token, with the covariance and the decimal
            logarithm.
    """

    threshold: float = -6.0
    layer: int | None = None
    alpha: float = agreement.ALPHA
    variant: agreement.EigenVariant = "paper"

    reads_states = True

    @property
    def pool(self) -> Literal["last", "predicting"]:  # type: ignore[override]
        return "predicting" if self.variant == "inside" else "last"

    def check(self, model: ModelSpec, prompt: PromptTemplate) -> None:
        if self.layer is not None and not 0 < self.layer <= model.layers:
            raise UserError(f"trigger.layer={self.layer} is not one of 1 to {model.layers}", "layers")

    def layer_of(self, spec: ModelSpec) -> int:
        return middle_layer(spec.layers, self.variant) if self.layer is None else self.layer

    def drawn(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Samples]:
        drawn = super().drawn(generations, states)
        if self.variant != "seakr":
            return drawn
        lm = states[0].lm
        read = states_at_end(lm, drawn, self.layer_of(lm.spec))
        return [replace(samples, states=each) for samples, each in zip(drawn, read, strict=True)]

    def score(self, samples: Samples, answer: str) -> Scored:
        if samples.states is None:
            return UNANSWERED, {}
        return agreement.eigenscore(samples.states, self.alpha, variant=self.variant), {}


@dataclass(frozen=True)
class PTrue(_Sampled):
    """Trigger that fires where the model calls its own answer false (P(True), Kadavath et al. 2022).

    Its score is 1 - P(True). The question to the model is a call of its own.

    Attributes:
        samples: drawn answers that are shown as well, in a line of possible answers; 0 shows none.
        form: prompt with ``{question}``, ``{answer}`` and, for the line of samples, ``{samples}``; sent
            without the answer prompt's exemplars.
    """

    threshold: float = 0.5
    form: str = P_TRUE
    samples: int = field(default=0, kw_only=True)

    name = "p_true"
    least = 0
    reads_texts = True

    def __post_init__(self) -> None:
        super().__post_init__()
        has_places("trigger.form", self.form, "question", "answer")

    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Scored]:
        drawn = self.drawn(generations, states) if self.samples else []
        prompts = _asked(self.form, states, [samples.answers for samples in drawn])
        judged = p_true(states[0].lm, prompts, names=[state.question.id for state in states])
        for state, each in zip(states, judged, strict=True):
            state.spend(each.call)
        evidence = [{"samples": list(samples.texts)} for samples in drawn] or [{}] * len(states)
        pairs = zip(judged, evidence, strict=True)
        return [(1.0 - each.chance, {"mass": each.mass} | more) for each, more in pairs]


@dataclass(frozen=True)
class Verbalised(_OfAnswers):
    """Trigger that fires where the model states a low number when asked how sure it is (Tian et al. 2023).

    Its score is 1 minus the stated confidence. If the reply has no number the score is 0.5, and the trace and
    the report say so. The question to the model is a call of its own.

    Attributes:
        form: prompt with ``{question}`` and ``{answer}``, sent without the answer prompt's exemplars.
    """

    threshold: float = 0.5
    form: str = VERBALISED

    reads_tokens = False

    def __post_init__(self) -> None:
        super().__post_init__()
        has_places("trigger.form", self.form, "question", "answer")

    def scores(self, generations: Sequence[Generation], states: Sequence[State]) -> list[Scored]:
        prompts, names = _asked(self.form, states), [state.question.id for state in states]
        ends, scored = states[0].prompt.turn_ends, list[Scored]()
        numbers, replies = verbalised(states[0].generate, prompts, ends, names=names)
        for stated, reply, state in zip(numbers, replies, states, strict=True):
            state.spend(reply)
            score = 0.5 if stated is None else 1.0 - stated
            scored.append((score, {"reply": reply.text, "stated": stated}))
        return scored


def _asked(form: str, states: Sequence[State], samples: Sequence[Sequence[str]] = ()) -> list[str]:
    """Format the prompts that ask about each state's answer, beside its samples if there are any."""
    bare = states[0].prompt.bare(states[0].lm)
    return [
        bare.question(question_of(form, state.question.question, state.answer or "", drawn))
        for state, drawn in zip(states, samples or [()] * len(states), strict=True)
    ]
