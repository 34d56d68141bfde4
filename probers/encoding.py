"""Prompts and continuations as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .offsets import Span, decode, token_offsets
from .types import Generation, Needs, UserError

TooLong = Literal["error", "skip", "truncate_left"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt, and what messages call it."""

    name: str
    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]

    def skipped(self, needs: Needs) -> Generation:
        """What stands for the generation of a prompt that was left out."""
        nothing = np.zeros(0, dtype=np.float32)
        return Generation(
            self.text, self.ids, self.offsets, (), "", (), nothing, nothing, "skipped", needs=needs
        )


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], names: Sequence[str] | None = None
) -> list[Prompt]:
    """Tokenize prompts as the tokenizer does by default, its BOS included.

    Args:
        names: what messages call each; by default its place in the list.

    Raises:
        UserError: a prompt is empty or has no tokens.
    """
    if isinstance(prompts, str):
        raise UserError("prompts must be a list of texts, not one text")
    if names is not None and len(names) != len(prompts):
        raise UserError(f"{len(prompts)} prompts but {len(names)} names were given")
    called = [f"prompt {name}" for name in (range(len(prompts)) if names is None else names)]
    for name, text in zip(called, prompts, strict=True):
        if not text:
            raise UserError(f"{name} is empty; there is nothing to continue")
    if not prompts:
        return []
    fast = bool(getattr(tokenizer, "is_fast", False))
    found = tokenizer(list(prompts), return_offsets_mapping=fast, verbose=False)
    encoded = []
    for index, (name, text) in enumerate(zip(called, prompts, strict=True)):
        ids = tuple(found["input_ids"][index])
        if not ids:
            raise UserError(f"{name} has no tokens: {text!r}")
        spans = found["offset_mapping"][index] if fast else token_offsets(tokenizer, ids)[1]
        encoded.append(Prompt(name, text, ids, tuple((int(a), int(b)) for a, b in spans)))
    return encoded


def fit_context(
    tokenizer: Any, prompt: Prompt, more: int, context: int, policy: TooLong, what: str
) -> Prompt:
    """The prompt as it goes into a context of ``context`` tokens together with ``more``.

    Args:
        policy: of a prompt that is too long: "error", "skip" (it comes back without tokens)
            or "truncate_left" (its first tokens go, but for special ones such as BOS).
        what: names ``more`` in messages.

    Raises:
        UserError: it does not fit and the policy is "error", or nothing of it would be left.
    """
    room = context - more
    if len(prompt.ids) <= room:
        return prompt
    if policy == "skip":
        return replace(prompt, ids=(), offsets=())
    special = set(tokenizer.all_special_ids)
    head = next((i for i, token in enumerate(prompt.ids) if token not in special), len(prompt.ids))
    if policy == "truncate_left" and room > head:
        tail = len(prompt.ids) - (room - head)
        return replace(
            prompt,
            ids=prompt.ids[:head] + prompt.ids[tail:],
            offsets=prompt.offsets[:head] + prompt.offsets[tail:],
        )
    raise UserError(
        f"{prompt.name} has {len(prompt.ids)} tokens, which with {what} exceeds the model's context of "
        f"{context}; shorten it, ask for fewer tokens, or set on_too_long=skip or truncate_left"
    )


def encode_continuation(tokenizer: Any, prompt: Prompt, continuation: str | Sequence[int]) -> tuple[int, ...]:
    """The tokens of a continuation, such that they read as it when put after the prompt's.

    Token ids are taken as they are. A text is tokenized on its own; where that does not
    read as the text after the prompt, without its leading space (SentencePiece puts one
    before any text by itself); then together with the prompt.

    Raises:
        UserError: the continuation is empty, or no tokenization reproduces it.
    """
    if not len(continuation):
        raise UserError(f"the continuation of {prompt.name} is empty; there is nothing to score")
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
        f"the continuation of {prompt.name} cannot be written in the model's tokens after it: "
        f"{continuation!r}; pass token ids instead"
    )
