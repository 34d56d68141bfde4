"""Rules that call an answer right or wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from probers.answers import accuracy_contains, exact_match, f1_score
from probers.types import UserError

LabelRule = Callable[[str, str, Sequence[str]], bool]
Acc = Literal["tokens", "substring"]


def parse_label(rule: str, acc: Acc = "tokens") -> LabelRule:
    """The label rule: ``(text, answer, gold answers) -> right or wrong``.

    Args:
        rule: "em", "acc" (a gold answer stands in the text) or "f1>=x".
        acc: what "stands in" means, see :func:`probers.answers.accuracy_contains`.

    Raises:
        UserError: any other rule.
    """
    if acc not in get_args(Acc):
        raise UserError(f"acc={acc} is unknown: choose {' or '.join(get_args(Acc))}")
    if rule == "em":
        return lambda text, answer, gold: exact_match(answer, gold) == 1.0
    if rule == "acc":
        return lambda text, answer, gold: accuracy_contains(text, gold, mode=acc) == 1.0
    bound = re.fullmatch(r"f1\s*>=\s*(0?\.\d+|1(?:\.0+)?|0)", rule)
    if bound:
        least = float(bound.group(1))
        return lambda text, answer, gold: f1_score(answer, gold).f1 >= least
    raise UserError(f"label={rule} is no label rule: choose em, acc or f1>=0.8 (any bound from 0 to 1)")
