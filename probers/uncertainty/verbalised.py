"""Verbalised confidence: the number that a model states when asked how sure it is (Tian et al. 2023).

The wording is ours; an option replaces it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..types import Generation
from .samples import Generate

FORM = (
    "Question: {question}\nAnswer: {answer}\n"
    "How likely is it that this answer is right? Give a number from 0 to 100.\nPercent:"
)
TOKENS = 8
_NUMBER = re.compile(
    r"(?<![\w.,-])(\d{1,3}(?:\.\d+)?|\.\d+)\s*(%|percent\b|/\s*100\b|/\s*10\b)?", re.IGNORECASE
)


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
    found = _NUMBER.search(reply)
    if found is None:
        return None
    value, unit = float(found[1]), re.sub(r"\s", "", found[2] or "")
    if unit == "/10":
        value *= 10
    elif not unit and value <= 1 and "." in found[1]:
        value *= 100
    return value / 100 if value <= 100 else None
