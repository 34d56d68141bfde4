"""Prompts and continuations as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .offsets import Span, decode, token_offsets
from .types import UserError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt and its place in the caller's list, for error messages."""

    index: int
    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]


def encode_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[Prompt]:
    """Tokenize prompts as the tokenizer does by default, its BOS included.

    Raises:
        UserError: a prompt is empty or has no tokens.
    """
    if isinstance(prompts, str):
        raise UserError("prompts must be a list of texts, not one text")
    for index, text in enumerate(prompts):
        if not text:
            raise UserError(f"prompt {index} is empty; there is nothing to continue")
    if not prompts:
        return []
    fast = bool(getattr(tokenizer, "is_fast", False))
    found = tokenizer(list(prompts), return_offsets_mapping=fast, verbose=False)
    encoded = []
    for index, text in enumerate(prompts):
        ids = tuple(found["input_ids"][index])
        if not ids:
            raise UserError(f"prompt {index} has no tokens: {text!r}")
        spans = found["offset_mapping"][index] if fast else token_offsets(tokenizer, ids)[1]
        encoded.append(Prompt(index, text, ids, tuple((int(a), int(b)) for a, b in spans)))
    return encoded


def encode_continuation(tokenizer: Any, prompt: Prompt, continuation: str | Sequence[int]) -> tuple[int, ...]:
    """The tokens of a continuation, such that they read as it when put after the prompt's.

    Token ids are taken as they are. A text is tokenized on its own; where that does not
    read as the text after the prompt, without its leading space (SentencePiece puts one
    before any text by itself); then together with the prompt.

    Raises:
        UserError: the continuation is empty, or no tokenization reproduces it.
    """
    if not len(continuation):
        raise UserError(f"the continuation of prompt {prompt.index} is empty; there is nothing to score")
    if not isinstance(continuation, str):
        return tuple(int(i) for i in continuation)

    def tokens(text: str, special: bool = False) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    candidates = [tokens(continuation), tokens(continuation.removeprefix(" "))]
    together = tokens(prompt.text + continuation, special=True)
    if together[: len(prompt.ids)] == prompt.ids:
        candidates.append(together[len(prompt.ids) :])
    expected = decode(tokenizer, prompt.ids) + continuation
    for ids in candidates:
        if ids and decode(tokenizer, [*prompt.ids, *ids]) == expected:
            return ids
    raise UserError(
        f"the continuation of prompt {prompt.index} cannot be written in the model's tokens after it: "
        f"{continuation!r}; pass token ids instead"
    )
