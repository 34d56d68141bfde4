"""Self-evaluation: what a model says of its own answer.

- P(True): P(True) / (P(True) + P(False)) of the first token after a prompt with question and proposed answer,
  with or without earlier drawn answers ("brainstormed"; Kadavath et al. 2022).
- Verbalised confidence: the number that it states when asked how sure it is (Tian et al. 2023).

The wordings are ours; options replace them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..model.language_model import LanguageModel
from ..types import Generation
from .samples import Generate

#: Prompt with the question, the proposed answer, and other possible answers if there are any.
P_TRUE_FORM = (
    "Question: {question}\n{samples}Proposed answer: {answer}\n"
    "Is the proposed answer true or false? Write True or False.\nReply:"
)
#: Line before the proposed answer, with drawn answers.
SAMPLES_FORM = "Possible answers: {samples}\n"
_REPLIES = (" True", " False")
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


def p_true(
    lm: LanguageModel, prompts: Sequence[str], *, names: Sequence[str] | None = None
) -> tuple[list[float], list[Generation]]:
    """Compute P(True) in [0, 1] after each prompt, and the passes that read "True", one for each prompt.

    Only the first token of each word is compared.
    """
    twice = [prompt for prompt in prompts for _ in _REPLIES]
    named = None if names is None else [name for name in names for _ in _REPLIES]
    read = lm.score(twice, [*_REPLIES] * len(prompts), names=named)
    pairs = zip(read[::2], read[1::2], strict=True)
    differences = (float(false.logprobs[0]) - float(true.logprobs[0]) for true, false in pairs)
    return [1.0 / (1.0 + math.exp(min(difference, 700.0))) for difference in differences], read[::2]


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
