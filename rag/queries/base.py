"""What a query formulation is, and what several share: their limit, the text and words so far, the hit."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from probers.types import Decision, Generation, Needs, Question, RunError
from probers.uncertainty import words

from ..retrievers.lexical import tokenize
from ..triggers.base import State, at_least_one, name_of

#: Tokens of the retriever that a query keeps at most, the last ones (DRAGIN).
QUERY_TOKENS = 64


class QueryFormulator(Protocol):
    """Formulates one query; ``needs`` is all that is recorded for it."""

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self, question: Question, generation: Generation, decision: Decision, state: State
    ) -> str: ...


@dataclass(frozen=True)
class LimitedQuery(ABC):
    """A text, cut to the last words that the retriever takes; the question where it would find none.

    Attributes:
        max_tokens: the query's last so many words for the retriever are kept.
    """

    max_tokens: int = field(default=QUERY_TOKENS, kw_only=True)

    def __post_init__(self) -> None:
        at_least_one("query.max_tokens", self.max_tokens)

    @property
    def needs(self) -> Needs:
        return Needs()

    @abstractmethod
    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        """What to ask, before it is cut."""

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        found: list[str] = []
        used = 0
        for word in reversed(self.text(question, generation, decision, state).split()):
            used += len(tokenize(word))
            if used > self.max_tokens:
                break
            found.append(word)
        query = " ".join(reversed(found))
        return query if tokenize(query) else question.question


@dataclass(frozen=True, slots=True)
class ContextWord:
    """A word of question or answer.

    Attributes:
        text: without the punctuation around it.
        columns: its tokens, as columns of the attention rows (prompt tokens first).
        asked: it is the question's, not the answer's.
    """

    text: str
    columns: tuple[int, ...]
    asked: bool


class AttentionQuery(LimitedQuery):
    """Words of question and answer so far that attention points to, in the order of the text.

    Exemplars and passages in the prompt are not asked about.

    Attributes:
        top_n: how many are asked for.
    """

    top_n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one("query.top_n", self.top_n)

    @property
    def needs(self) -> Needs:
        return Needs(attention=True)

    def best(self, words: Sequence[str], scores: Sequence[float] | np.ndarray) -> str:
        """The ``top_n`` words of the highest scores; of equal ones the first."""
        ranked = sorted(range(len(words)), key=lambda i: (-scores[i], i))
        return " ".join(words[i] for i in sorted(ranked[: self.top_n]))

    def rows(self, generation: Generation) -> np.ndarray:
        """The generation's attention, (n + 1, p + n): see :class:`~probers.types.AttentionRows`.

        Raises:
            RunError: none was recorded.
        """
        if generation.attention is None:
            raise RunError(f"query={name_of(self)} needs attention and the generation has none recorded")
        return generation.attention.rows


def context_words(generation: Generation, state: State) -> list[ContextWord]:
    """Words of the question, the accepted text and the generation, in this order.

    Exemplars and passages in the prompt are left out, and so are words without a
    letter or digit, and quotes and commas around the others.
    """
    text, offsets = whole_text(generation)
    found = []
    for asked, (start, end) in (
        (True, state.question_span),
        (False, (len(generation.prompt) - len(state.partial), len(text))),
    ):
        part = text[start:end]
        for word in words(part, [(a - start, b - start) for a, b in offsets]):
            stripped = bare(part[word.start : word.end])
            if stripped:
                found.append(ContextWord(stripped, word.tokens, asked))
    return found


def before(found: Sequence[ContextWord], column: int) -> list[ContextWord]:
    """The words that end before a token."""
    return [w for w in found if w.columns[-1] < column]


def own_row(rows: np.ndarray, token: int) -> np.ndarray:
    """(p + n,) the attention of a generated token itself, or of the last whose attention is known."""
    row: np.ndarray = rows[min(token + 1, len(rows) - 1)]
    return row


def whole_text(generation: Generation) -> tuple[str, list[tuple[int, int]]]:
    """Prompt and generation as one text, and [start, end) in it of every token of both."""
    shift = len(generation.prompt)
    behind = ((a + shift, b + shift) for a, b in generation.offsets)
    return generation.prompt + generation.text, [*generation.prompt_offsets, *behind]


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
