"""How many retrieved passages a prompt has room for: whole ones, the best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .prompts import PromptTemplate

if TYPE_CHECKING:
    from .lm import CausalLM


def fitting_passages(
    lm: CausalLM, prompt: PromptTemplate, asked: Sequence[tuple[str, Sequence[str], str]], more: Sequence[int]
) -> list[int]:
    """How many passages of each question its prompt can show; the last ones go first.

    Cutting a passage in the middle would take the end of a sentence, and cutting the prompt
    on its left would take the exemplars. A prompt that is too long without any passage is
    left to the model's ``on_too_long``.

    Args:
        lm: whose context it is.
        prompt: the template.
        asked: question, passage texts and answer so far of each.
        more: tokens that have to fit behind each prompt.
    """
    kept = [len(texts) for _, texts, _ in asked]
    open_ = [i for i, count in enumerate(kept) if count]
    while open_:
        prompts = [
            prompt.question(question, texts[: kept[i]], partial=partial)
            for i, (question, texts, partial) in ((i, asked[i]) for i in open_)
        ]
        fits = lm.fits(prompts, [more[i] for i in open_])
        open_ = [i for i, fit in zip(open_, fits, strict=True) if not fit]
        for i in open_:
            kept[i] -= 1
        open_ = [i for i in open_ if kept[i]]
    return kept
