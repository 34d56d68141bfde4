"""What a query formulation is, and what it works on: question and answer so far, as text and as words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from probers.text import is_content
from probers.types import Decision, Generation, Needs, Question, UserError
from probers.uncertainty import words

from ..retrievers.lexical import tokenize
from ..triggers.base import State


class QueryFormulator(Protocol):
    """Formulates one query; ``needs`` is all that is recorded for it."""

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self, question: Question, generation: Generation, decision: Decision, state: State
    ) -> str: ...


#: Tokens that BM25 queries keep at most, the last ones (DRAGIN).
QUERY_TOKENS = 64


@dataclass(frozen=True, slots=True)
class ContextWord:
    """A word of question or answer.

    Attributes:
        text: without the punctuation around it.
        columns: its tokens, as columns of the attention rows (prompt tokens first).
        content: whether it carries content, see :func:`probers.text.is_content`.
        asked: it is the question's, not the answer's.
    """

    text: str
    columns: tuple[int, ...]
    content: bool
    asked: bool


def context_words(generation: Generation, state: State) -> list[ContextWord]:
    """Words of the question, the accepted text and the generation, in this order.

    Exemplars and passages in the prompt are left out, and so are words without a
    letter or digit, and quotes and commas around the others.
    """
    text = generation.prompt + generation.text
    shift = len(generation.prompt)
    offsets = [*generation.prompt_offsets, *((a + shift, b + shift) for a, b in generation.offsets)]
    found = []
    for asked, (start, end) in (
        (True, state.question_span),
        (False, (shift - len(state.partial), len(text))),
    ):
        part = text[start:end]
        spans = words(part, [(a - start, b - start) for a, b in offsets])
        content = is_content(part, [part[w.start : w.end] for w in spans])
        for word, carries in zip(spans, content, strict=True):
            stripped = bare(part[word.start : word.end])
            if stripped:
                found.append(ContextWord(stripped, word.tokens, carries, asked))
    return found


def bare(word: str) -> str:
    """A word without the punctuation around it."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", word)


def text_so_far(generation: Generation, decision: Decision, state: State) -> str:
    """The answer up to where the trigger fired; all of it when the verdict is on the whole answer."""
    return state.partial + generation.text[: decision.position]


def hit_tokens(generation: Generation, decision: Decision) -> tuple[int, ...]:
    """The tokens from which a query looks back: those that fired.

    For a trigger that names none, the first token behind its position; for a verdict on
    the whole answer, the last token.
    """
    if decision.tokens:
        return decision.tokens
    last = max(len(generation.token_ids) - 1, 0)
    if decision.position is None:
        return (last,)
    behind = (i for i, (start, _) in enumerate(generation.offsets) if start >= decision.position)
    return (next(behind, last),)


def last_tokens(kept: Sequence[str], limit: int) -> str:
    """The last words that together have at most ``limit`` of the retriever's tokens."""
    found: list[str] = []
    used = 0
    for word in reversed(kept):
        used += len(tokenize(word))
        if used > limit:
            break
        found.append(word)
    return " ".join(reversed(found))


def one_line(text: str, limit: int) -> str:
    """A text with single spaces, cut to its last ``limit`` tokens of the retriever; "" if it has none."""
    found = last_tokens(text.split(), limit)
    return found if tokenize(found) else ""


def at_least_one(query: object, *names: str) -> None:
    """Refuse options below 1."""
    for name in names:
        if getattr(query, name) < 1:
            raise UserError(f"query.{name}={getattr(query, name)} must be 1 or more")
