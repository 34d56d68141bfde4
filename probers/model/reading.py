"""Texts to read: their prompts, with as many of their passages as fit into the model's context."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from ..data.texts import Text
from ..data.texts.shown import place_passages, subjects
from ..prompts import PromptTemplate
from ..types import Needs, Passages, UserError
from .language_model import ScoreRequest
from .passages import about_passages
from .tokens import encode_answer

log = logging.getLogger(__name__)


class Reader(Protocol):
    """A model that texts are read by, as :class:`.CausalLM` is."""

    tokenizer: Any
    context: int | None


def request(
    lm: Reader, one: Text, template: PromptTemplate, file: str, needs: Needs, limit: int | None = None
) -> ScoreRequest:
    """Make the request to read a text, its first ``limit`` tokens, after its prompt.

    Passages that do not fit into the context are left out, the last first, and a note names them. ``file``
    is the text's file, for messages.

    Raises:
        UserError: the chat template refuses the messages, no tokens of the model read as the answer, or
            passages beside messages are not in them as they stand.
    """
    name = f"of {file} {one.where}"
    shown = len(one.passages)
    while True:
        prompt = one.prompt_for(lm.tokenizer, file, template, most=shown)
        tokens = encode_answer(lm.tokenizer, prompt, one.answer, name)[:limit]
        if lm.context is None or not shown or one.messages:
            break
        length = len(lm.tokenizer(prompt, verbose=False)["input_ids"])
        if length + len(tokens) <= lm.context:
            break
        shown -= 1
    if shown < len(one.passages):
        listed = ", ".join(map(str, range(shown + 1, len(one.passages) + 1)))
        log.warning("%s %s: passages %s left out, beyond the model's context", file, one.where, listed)
    ready = ScoreRequest(prompt, tokens, name)
    if not about_passages(needs) or not (one.passages_at or shown):
        return ready
    return replace(ready, passages=_passages(lm, one, template, file, prompt, shown))


def _passages(
    lm: Reader, one: Text, template: PromptTemplate, file: str, prompt: str, shown: int
) -> Passages:
    if one.passages_at:
        at, texts = one.passages_at, [prompt[start:end] for start, end in one.passages_at]
    else:
        texts = list(one.passages[:shown])
        try:
            at = place_passages(prompt, texts)
        except ValueError as error:
            raise UserError(f"{file} {one.where}: {error}: put it into the messages", "bad-line") from error
    plain = not one.messages and not one.passages_at
    without = one.prompt_for(lm.tokenizer, file, template, most=0) if plain else _cut(prompt, at)
    return Passages(at, subjects(one.asked, one.answer, texts), without)


def _cut(prompt: str, places: Iterable[tuple[int, int]]) -> str:
    """Cut ranges out of a prompt."""
    for start, end in sorted(places, reverse=True):
        prompt = prompt[:start] + prompt[end:]
    return prompt
