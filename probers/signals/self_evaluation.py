"""Self-evaluation: what a model says of its own answer.

- P(True): P(True) / (P(True) + P(False)) of the first token after a prompt with question and proposed answer,
  with or without earlier drawn answers ("brainstormed"; Kadavath et al. 2022). Each is the sum over all
  spellings: a chat begins with "True" or "true", a line that goes on with " True".
- Verbalised confidence: the number that it states when asked how sure it is (Tian et al. 2023).

The wordings are ours; options replace them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..model.language_model import LanguageModel
from ..store.spec import ModelSpec
from ..types import Generation
from .samples import Generate

log = logging.getLogger(__name__)

#: Prompt with the question, the proposed answer, and other possible answers if there are any.
P_TRUE_FORM = (
    "Question: {question}\n{samples}Proposed answer: {answer}\n"
    "Is the proposed answer true or false? Write True or False.\nReply:"
)
#: Line before the proposed answer, with drawn answers.
SAMPLES_FORM = "Possible answers: {samples}\n"
_REPLIES = ("true", "false")
#: Least mean probability of all spellings of both replies; below it the model replies something else.
LEAST_MASS = 0.05
_warned: set[ModelSpec] = set()
#: Prompt with the question and its answer.
CONFIDENCE_FORM = (
    "Question: {question}\nAnswer: {answer}\n"
    "How likely is it that this answer is right? Give a number from 0 to 100.\nPercent:"
)
#: Most tokens of a stated confidence.
TOKENS = 8
_NUMBER = re.compile(
    r"(?<![\w.,-])(\d{1,3}(?:\.\d+)?|\.\d+)\s*(%|percent\b|/\s*100\b|/\s*10\b)?", re.IGNORECASE
)


def question_of(form: str, question: str, answer: str, samples: Sequence[str] = ()) -> str:
    """Fill in a form; ``{samples}`` becomes a line with the distinct drawn answers, or nothing."""
    drawn = "; ".join(dict.fromkeys(sample.strip() for sample in samples if sample.strip()))
    filled = form.replace("{samples}", SAMPLES_FORM.replace("{samples}", drawn) if drawn else "")
    return filled.replace("{question}", question).replace("{answer}", answer or "none")


class PTrue(NamedTuple):
    """P(True) in [0, 1], the probability ``mass`` of both replies together, and the pass that read one."""

    chance: float
    mass: float
    call: Generation


def p_true(lm: LanguageModel, prompts: Sequence[str], *, names: Sequence[str] | None = None) -> list[PTrue]:
    """Compute P(True) after each prompt, summed over the spellings of :func:`spellings`.

    A warning, once for a model, tells where the two replies have hardly any probability.
    """
    tokens = spellings(lm.tokenizer)
    several = [token for each in tokens for token in each]
    asked = [prompt for prompt in prompts for _ in several]
    named = None if names is None else [name for name in names for _ in several]
    read = lm.score(asked, [token for _ in prompts for token in several], names=named)
    judged = []
    for start in range(0, len(read), len(several)):
        some = read[start : start + len(several)]
        logs = np.array([each.logprobs[0] for each in some], dtype=np.float64)
        true, false = np.logaddexp.reduce(logs[: len(tokens[0])]), np.logaddexp.reduce(logs[len(tokens[0]) :])
        mass = np.logaddexp(true, false)
        judged.append(PTrue(float(np.exp(true - mass)), float(np.exp(mass)), some[0]))
    mean = float(np.mean([each.mass for each in judged])) if judged else 1.0
    if mean < LEAST_MASS and lm.spec not in _warned:
        _warned.add(lm.spec)
        log.warning(
            f"P(True) compares replies of {mean:.2g} of the probability: "
            "the model replies something else than True or False; change the form, or leave P(True) out"
        )
    return judged


@cache
def spellings(tokenizer: Any) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Find the tokens that are "true" and those that are "false", in any case, with or without a space.

    In a vocabulary that lacks either as a whole token they are the first tokens of " True" and " False".
    """
    found: list[list[int]] = [[], []]
    for token, number in tokenizer.get_vocab().items():
        for reply, numbers in zip(_REPLIES, found, strict=True):
            if reply in token.lower() and tokenizer.decode([number]).strip().lower() == reply:
                numbers.append(number)
    if not all(found):
        first = (tokenizer(f" {r.title()}", add_special_tokens=False)["input_ids"][0] for r in _REPLIES)
        found = [[number] for number in first]
    true, false = (tuple((number,) for number in sorted(numbers)) for numbers in found)
    return true, false


def verbalised(
    generate: Generate, prompts: Sequence[str], *, names: Sequence[str] | None = None
) -> tuple[list[float | None], list[Generation]]:
    """Ask each prompt and read the confidence in [0, 1] from the reply; None if it states none."""
    replies = generate(prompts, max_new_tokens=TOKENS, stop=("\n",), names=names)
    return [stated(reply.text) for reply in replies], replies


def stated(reply: str) -> float | None:
    """Read the first number of a reply as a share: "85", "85 %", "0.85", "8.5/10" are .85.

    A bare number up to 1 with a decimal point is a probability, any other a percentage. None for a reply
    without a number from 0 to 100.
    """
    if (match := _NUMBER.search(reply)) is None:
        return None
    value, unit = float(match[1]), re.sub(r"\s", "", match[2] or "")
    if unit == "/10":
        value *= 10
    elif not unit and value <= 1 and "." in match[1]:
        value *= 100
    return value / 100 if value <= 100 else None
