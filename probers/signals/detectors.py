"""All signals of drawn answers and of further questions, computed at once as a store's columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..model.language_model import LanguageModel
from ..prompts import PromptTemplate
from .agreement import eigenscore, lexical_similarity, self_consistency, semantic_entropy
from .meaning import Same, clusters
from .samples import Draws, Prompt, draw, middle_layer
from .self_evaluation import CONFIDENCE_FORM, P_TRUE_FORM, p_true, question_of, verbalised


class Asked(NamedTuple):
    """A greedy answer to judge: its question's text and set, its prompt, and the name for messages."""

    name: str
    question: str
    dataset: str
    prompt: str
    answer: str


def detector_columns(
    lm: LanguageModel, answers: Sequence[Asked], how: Draws, same: Same, template: PromptTemplate,
    max_new_tokens: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Compute the columns of every answer, with ``how.samples`` >= 2 of at most ``max_new_tokens`` tokens.

    ``same`` compares the meanings of answers, ``template`` is that of the questions' prompts.

    ``eigenscore`` is None if fewer than two samples have a token, ``verbalised`` if the model states no
    number. ``sample_calls`` and ``sample_tokens`` are the model's calls and tokens for the samples,
    ``verbalised_tokens`` those of its reply, and ``sample_undecided`` pairs of samples that could not be
    compared. P(True) is one call of one token.
    """
    names = [one.name for one in answers]
    prompts = [Prompt(one.prompt, one.dataset, max_new_tokens, one.name) for one in answers]
    drawn = draw(lm.generate, prompts, how, template, layer=middle_layer(lm.spec.layers))
    bare = template.bare(lm)
    truth, confidence = (
        [bare.question(question_of(form, one.question, one.answer)) for one in answers]
        for form in (P_TRUE_FORM, CONFIDENCE_FORM)
    )
    trues = p_true(lm, truth, names=names)
    stated, replies = verbalised(lm.generate, confidence, bare.turn_ends, names=names)
    columns = []
    for one, samples, true, number, reply in zip(answers, drawn, trues, stated, replies, strict=True):
        groups = clusters(samples.answers, same)
        weighted = semantic_entropy(groups.of, samples.logprobs, samples.lengths, variant="weighted")
        columns.append({
            "self_consistency": self_consistency(one.answer, samples.answers, same),
            "semantic_entropy": semantic_entropy(groups.of),
            "semantic_entropy_weighted": weighted,
            "lexical_similarity": lexical_similarity(samples.texts),
            "eigenscore": None if samples.states is None else eigenscore(samples.states),
            "p_true": true.chance, "verbalised": number,
            "sample_calls": len(samples.calls),
            "sample_tokens": sum(len(generation.token_ids) for generation in samples.calls),
            "verbalised_tokens": len(reply.token_ids), "sample_undecided": groups.undecided,
        })  # fmt: skip
    return columns
