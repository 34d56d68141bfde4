"""Thinking of a model before its answer: its place in a text, between marks like <think> and </think>.

Models tuned to think write their reasoning first. It ends with the closing mark; the opening one is
written by the model (Qwen 3) or already ends its prompt (DeepSeek R1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..types import Span, UserError

#: Parts of a text that are read and labelled.
Part = Literal["both", "answer", "thinking"]
#: Parts smaller than the text, which are also positions of a store's features.
PARTS: tuple[Part, ...] = ("answer", "thinking")


def part_at(position: str) -> Part:
    """Return the part of the text covered by features of a position."""
    return next((part for part in PARTS if part == position), "both")


def position_of(part: Part) -> str:
    """Return the position of features that are pooled over a part of a text."""
    return "generated" if part == "both" else part


#: Marks of known models, in the order of search.
_KNOWN = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's thinking."""

    opening: str = "<think>"
    closing: str = "</think>"

    @classmethod
    def of(cls, tokenizer: Any, choice: str = "auto") -> Thinking | None:
        """Find the marks of a model's tokenizer; None if it has none.

        ``choice`` is "auto", "none", or both marks separated by a comma. UserError for another form, and
        for requested marks that the text lacks, because the tokenizer treats them as special.
        """
        if choice == "none":
            return None
        if choice != "auto":
            opening, comma, closing = choice.partition(",")
            if not comma or not opening or not closing or opening == closing:
                reason = f"thinking={choice} is neither auto, none nor two different marks"
                raise UserError(f"{reason}: write them as in thinking=<think>,</think>")
            if {opening, closing} & set(tokenizer.all_special_tokens):
                reason = f"thinking={choice}: the tokenizer leaves these marks out of the text it writes"
                raise UserError(f"{reason}: give marks that are not special tokens", "unsupported")
            return cls(opening, closing)
        known, special = tokenizer.get_vocab(), set(tokenizer.all_special_tokens)
        template = str(tokenizer.chat_template or "")  # or several, by name
        for marks in _KNOWN:
            if not special & set(marks) and (set(marks) <= set(known) or marks[1] in template):
                return cls(*marks)
        return None

    def begun(self, prompt: str) -> bool:
        """Tell whether the prompt ends within the thinking."""
        return prompt.rstrip().endswith(self.opening)

    def split(self, text: str, *, begun: bool, over: bool = True) -> tuple[Span | None, Span | None]:
        """Find characters [start, end) of the thinking and of the answer in a text; None for a missing one.

        ``begun`` says that the prompt has opened the thinking. While the text is not ``over``, the start of
        a mark at its end belongs to neither.
        """
        start = _skip(text, 0)
        if not begun:
            if not over and self.opening.startswith(text[start:]) and len(text) - start < len(self.opening):
                return None, None
            if not text.startswith(self.opening, start):
                return None, (0, len(text))
            start = _skip(text, start + len(self.opening))
        end = text.find(self.closing, start)
        if end < 0:
            return (start, len(text) - (0 if over else self._begun_mark(text, start))), None
        thought = (start, start + len(text[start:end].rstrip()))
        answer = _skip(text, end + len(self.closing))
        return thought, (answer, len(text)) if over or answer < len(text) else None

    def _begun_mark(self, text: str, start: int) -> int:
        """Count characters at the end of a text that may start the closing mark, with spaces before it."""
        for size in range(min(len(self.closing), len(text) - start), 0, -1):
            if self.closing.startswith(text[-size:]):
                return len(text) - start - len(text[start:-size].rstrip())
        return len(text) - start - len(text[start:].rstrip())


def _skip(text: str, place: int) -> int:
    """Return the place of the next character that is no space."""
    return len(text) - len(text[place:].lstrip())


def part_of(text: str, part: Part) -> Span | None:
    """Find characters [start, end) of a part of a written text, by its marks; None if it has no such part.

    A text without marks is all answer. One without the opening mark was opened by its prompt.
    """
    if part == "both":
        return 0, len(text)
    for marks in (Thinking(*each) for each in _KNOWN):
        opened = text.lstrip().startswith(marks.opening)
        if opened or marks.closing in text:
            return marks.split(text, begun=not opened)[0 if part == "thinking" else 1]
    return (0, len(text)) if part == "answer" else None


def answer_in(text: str) -> str:
    """Return the answer in a written text, after the thinking; "" if that has not ended."""
    span = part_of(text, "answer")
    return "" if span is None else text[slice(*span)]


def tokens_in(offsets: Sequence[Span], part: Span, tokens: Sequence[int]) -> list[int]:
    """Return the ``tokens`` that wrote a character of a part of a text, or are in it without a character.

    ``offsets`` (n,) are [start, end) of each token of the text, in characters.
    """
    start, end = part
    each = ((token, *offsets[token]) for token in tokens)
    return [i for i, a, b in each if (a < end or b <= end) and (b > start or a >= start)]


def place_in(offsets: Sequence[Span], part: Span, token: int) -> Span:
    """Return characters [start, end) of a token, counted from the beginning of a part of the text."""
    (start, end), (first, last) = part, offsets[token]
    return max(first - start, 0), min(last, max(end, start)) - start
