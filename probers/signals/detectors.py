"""All signals of drawn answers and of further questions, computed at once as a store's columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..model.language_model import LanguageModel
from ..prompts import PromptTemplate
from ..types import Generation
from .agreement import eigenscore, lexical_similarity, self_consistency, semantic_entropy
from .meaning import Same, clusters
from .samples import Draws, Prompt, Samples, draw, middle_layer
from .self_evaluation import CONFIDENCE_FORM as VERBALISED
from .self_evaluation import P_TRUE_FORM as P_TRUE
from .self_evaluation import p_true, question_of, verbalised


class Asked(NamedTuple):
    """A greedy answer to judge: its question's text and set, its prompt, and the name for messages."""

    name: str
    question: str
    dataset: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Detectors:
    """All signals of :mod:`probers.signals` that draw or ask.

    Attributes:
        how: number of samples, two or more, and settings for drawing them.
        same: compares the meanings of answers.
        prompt: template of the questions' prompts.
        max_new_tokens: largest number of tokens of a sample, like the greedy answer's.
    """

    how: Draws
    same: Same
    prompt: PromptTemplate
    max_new_tokens: int

    def __post_init__(self) -> None:
        self.how.at_least(2, "the signals of samples")

    def columns(self, lm: LanguageModel, answers: Sequence[Asked]) -> list[dict[str, Any]]:
        """Compute the columns of every answer.

        ``eigenscore`` is None if fewer than two samples have a token, ``verbalised`` if the model
        states no number. ``sample_calls`` and ``sample_tokens`` are the model's calls and tokens for the
        samples, ``verbalised_tokens`` those of its reply, and ``sample_undecided`` pairs of samples that
        could not be compared. P(True) is one call of one token.
        """
        names = [one.name for one in answers]
        prompts = [Prompt(one.prompt, one.dataset, self.max_new_tokens, one.name) for one in answers]
        drawn = draw(lm.generate, prompts, self.how, self.prompt, layer=middle_layer(lm.spec.layers))
        bare = self.prompt.bare(lm)
        pairs = [(one.question, one.answer) for one in answers]
        truth, confidence = ([bare.question(question_of(f, *p)) for p in pairs] for f in (P_TRUE, VERBALISED))
        trues = [judged.chance for judged in p_true(lm, truth, names=names)]
        stated, replies = verbalised(lm.generate, confidence, bare.turn_ends, names=names)
        return [self._row(*each) for each in zip(answers, drawn, trues, stated, replies, strict=True)]

    def _row(
        self, one: Asked, samples: Samples, true: float, stated: float | None, reply: Generation
    ) -> dict[str, Any]:
        groups = clusters(samples.answers, self.same)
        return {
            "self_consistency": self_consistency(one.answer, samples.answers, self.same),
            "semantic_entropy": semantic_entropy(groups.of),
            "semantic_entropy_weighted": semantic_entropy(
                groups.of, samples.logprobs, samples.lengths, variant="weighted"
            ),
            "lexical_similarity": lexical_similarity(samples.texts),
            "eigenscore": None if samples.states is None else eigenscore(samples.states),
            "p_true": true, "verbalised": stated,
            "sample_calls": len(samples.calls),
            "sample_tokens": sum(len(generation.token_ids) for generation in samples.calls),
            "verbalised_tokens": len(reply.token_ids), "sample_undecided": groups.undecided,
        }  # fmt: skip
