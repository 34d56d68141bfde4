"""Samples: answers drawn besides the greedy one, for signals that compare them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..evaluation.answers import final_answer
from ..model.language_model import LanguageModel, Sampling
from ..prompts import PromptTemplate
from ..types import Generation, Needs, UserError
from .agreement import EigenVariant

#: A function that writes, like :meth:`probers.model.language_model.LanguageModel.generate`.
Generate = Callable[..., list[Generation]]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Settings of the answers drawn for a question.

    Attributes:
        samples: number of answers drawn besides the greedy one.
        temperature: logits are divided by it; 1 draws from the model's own distribution.
        top_k: draw each token among this many likeliest ones; 0 for all.
        top_p: draw among the likeliest tokens that together have this probability.
        seed: other seeds draw other answers; signals with equal settings share their samples.
    """

    samples: int = 5
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def at_least(self, least: int, who: str) -> None:
        """Refuse settings that draw too few samples, or cannot draw."""
        if self.samples < least:
            raise UserError(f"samples={self.samples} is too few for {who}: draw {least} or more")
        assert self.sampling  # refuses invalid settings

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed)


def middle_layer(layers: int, variant: EigenVariant = "paper") -> int:
    """Return the number of the middle layer, whose states compare samples; 0 without layers.

    INSIDE's code halves the number of all states, the embedding output's included.
    """
    return layers and max(1, (layers + (variant == "inside")) // 2)


class Prompt(NamedTuple):
    """A question's prompt: its text, the question's set, most tokens of a sample, and a name for messages."""

    text: str
    dataset: str
    limit: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Samples:
    """The n samples of one prompt.

    Attributes:
        texts: the written texts.
        answers: the final answer in each; "" if it gave none.
        logprobs: (n,) log-probability of each sequence in nats, from raw logits; NaN without a token.
        lengths: (n,) number of tokens of each.
        states: (m, d) the state of each sample that has a token; None if not recorded, or if fewer than two
            have one.
        calls: all generations that were made, samples first.
    """

    texts: tuple[str, ...]
    answers: tuple[str, ...]
    logprobs: np.ndarray
    lengths: np.ndarray
    states: np.ndarray | None
    calls: tuple[Generation, ...]

    def spend(self, add: Callable[..., None]) -> None:
        """Report every call to ``add``; the prompt shared by all samples is read once."""
        for i, generation in enumerate(self.calls):
            add(generation, read=not 0 < i < len(self.texts))


def draw(
    generate: Generate, prompts: Sequence[Prompt], how: Draws, prompt: PromptTemplate, *, layer: int = 0,
    pool: Literal["last", "predicting"] = "last", answer_tokens: int = 0,
) -> list[Samples]:  # fmt: skip
    """Draw ``how.samples`` continuations of every prompt, in one call of the model.

    Equal prompts share their samples, so that these depend only on prompt and settings.

    Args:
        generate: writes the texts.
        prompts: those of questions.
        how: number of samples, and settings for drawing tokens.
        prompt: template of the prompts, with stops and the words that announce an answer.
        layer: layer whose states are recorded; 0 records none.
        pool: recorded state of a sample: its last token's, or the one that predicted that token.
        answer_tokens: tokens for a final answer; samples without one are completed like greedy texts; 0
            leaves them without.
    """
    first: dict[str, Prompt] = {}
    for one in prompts:
        first.setdefault(one.text, one)
    rows = [one for one in first.values() for _ in range(how.samples)]
    common = {"stop": prompt.ends, "prefix": prompt.prefix}
    generations = generate(
        [one.text for one in rows], max_new_tokens=[one.limit for one in rows], sampling=how.sampling,
        needs=Needs.of([layer], pool=pool) if layer else Needs(), names=[one.name for one in rows],
        **common,
    )  # fmt: skip
    ends = _complete(generate, generations, prompt, answer_tokens, common)
    samples: dict[str, Samples] = {}
    for number, one in enumerate(first.values()):
        begin, end = number * how.samples, (number + 1) * how.samples
        drawn, places = generations[begin:end], range(begin, end)
        texts = [g.text + (ends[i][0] if i in ends else "") for i, g in zip(places, drawn, strict=True)]
        states = [g.state.reshape(-1, g.state.shape[-1])[-1] for g in drawn if g.state is not None and g.text]
        samples[one.text] = Samples(
            tuple(texts),
            tuple(final_answer(text, prompt.answer_cue, one.dataset) for text in texts),
            np.array([g.logprobs.sum(dtype=np.float64) if g.token_ids else np.nan for g in drawn]),
            np.array([len(g.token_ids) for g in drawn]),
            np.stack(states) if len(states) > 1 else None,
            (*drawn, *(ends[i][1] for i in places if i in ends)),
        )  # fmt: skip
    return [samples[one.text] for one in prompts]


def states_at_end(lm: LanguageModel, drawn: Sequence[Samples], layer: int) -> list[np.ndarray | None]:
    """Read the states (m, d) that SeaKR's code compares, of each prompt's samples that are not blank.

    A state is the output of the MLP of block ``layer``, without the residual stream, at the end mark of the
    tokenizer after the sample. In a sample that its limit ended, the mark takes the place of the last token,
    as in that code (``StopChecker._change_last_token`` of its vLLM). None where all samples are blank.
    UserError where the tokenizer has no end mark.
    """
    if (end := lm.tokenizer.eos_token_id) is None:
        raise UserError("variant=seakr reads the state of an end mark, and the tokenizer has none", "model")
    written = [[g for g in one.calls[: len(one.texts)] if g.text.strip()] for one in drawn]
    several = [g for samples in written for g in samples]
    texts = [[*(g.token_ids[:-1] if g.stop == "length" else g.token_ids), end] for g in several]
    read = lm.score([g.prompt for g in several], texts, needs=Needs.of([layer], site="mlp_out", pool="last"))
    states = iter([one.state[0] for one in read if one.state is not None])
    return [np.stack([next(states) for _ in samples]) if samples else None for samples in written]


def _complete(
    generate: Generate, texts: Sequence[Generation], prompt: PromptTemplate, tokens: int,
    common: dict[str, Any],
) -> dict[int, tuple[str, Generation]]:  # fmt: skip
    """Write the announcing words and the answer after each text without one, by its place."""
    cue = prompt.answer_cue
    short = [i for i, g in enumerate(texts) if tokens and g.token_ids and cue.lower() not in g.text.lower()]
    if not short:
        return {}
    words = {i: ("" if texts[i].text[-1:].isspace() else " ") + cue for i in short}
    partials = [texts[i].prompt + texts[i].text + word for i, word in words.items()]
    answers = zip(short, generate(partials, max_new_tokens=tokens, **common), strict=True)
    return {i: (words[i] + answer.text, answer) for i, answer in answers}
