"""P(True): the probability that the model gives to "True" when shown its own answer (Kadavath et al. 2022).

It is P(True) / (P(True) + P(False)) of the first token after a prompt with question and proposed answer, with
or without earlier drawn answers ("brainstormed"). The wording is ours; options replace it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..engine.language_model import LanguageModel
from ..types import Generation

#: Prompt with the question, the proposed answer, and other possible answers if there are any.
FORM = (
    "Question: {question}\n{samples}Proposed answer: {answer}\n"
    "Is the proposed answer true or false? Write True or False.\nReply:"
)
#: Line before the proposed answer, with drawn answers.
SAMPLES_FORM = "Possible answers: {samples}\n"
_REPLIES = (" True", " False")


def question_of(form: str, question: str, answer: str, samples: Sequence[str] = ()) -> str:
    """Fill in a form; ``{samples}`` becomes a line with the distinct drawn answers, or nothing."""
    drawn = "; ".join(dict.fromkeys(sample.strip() for sample in samples if sample.strip()))
    line = SAMPLES_FORM.replace("{samples}", drawn) if drawn else ""
    filled = form.replace("{samples}", line)
    return filled.replace("{question}", question).replace("{answer}", answer or "none")


def p_true(
    lm: LanguageModel, prompts: Sequence[str], *, names: Sequence[str] | None = None
) -> tuple[list[float], list[Generation]]:
    """Compute P(True) in [0, 1] after each prompt, and the passes that read "True", one for each prompt.

    Only the first token of each word is compared.
    """
    asked = [prompt for prompt in prompts for _ in _REPLIES]
    named = None if names is None else [name for name in names for _ in _REPLIES]
    read = lm.score(asked, [reply for _ in prompts for reply in _REPLIES], names=named)
    found = []
    for true, false in zip(read[::2], read[1::2], strict=True):
        difference = float(false.logprobs[0]) - float(true.logprobs[0])
        found.append(1.0 / (1.0 + math.exp(min(difference, 700.0))))
    return found, read[::2]
