"""Ask with the words the model attended to where it hesitated (DRAGIN's QFS)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probers.signals import words
from probers.text import is_content
from probers.types import Decision, Generation, Needs, Question, RunError, UserError

from ..retrievers.lexical import tokenize
from ..triggers.base import State


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of question or answer.

    Attributes:
        columns: its tokens, as columns of the attention rows (prompt tokens first).
    """

    text: str
    columns: tuple[int, ...]
    content: bool


@dataclass(frozen=True)
class QFS:
    """The ``top_n`` most attended words of question and answer so far, in the order of the text.

    Exemplars and passages in the prompt are not asked about. A word's attention is
    the sum over its tokens. Should no word qualify, the question is asked.

    Attributes:
        variant: "paper": the attention row of the token that fired, over all words
            before it. "released": the rows that predicted each word that fired, each
            renormalised over what it could see of question and answer, averaged; only
            content words qualify, and the words that fired do not.
        top_n: words to keep.
        max_tokens: the query's last so many words for the retriever are kept.
    """

    variant: Literal["paper", "released"] = "released"
    top_n: int = 25
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.variant not in ("paper", "released"):
            raise UserError(f"query.variant={self.variant!r} is unknown: choose paper or released")
        for name in ("top_n", "max_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"query.{name}={getattr(self, name)} must be 1 or more")

    @property
    def needs(self) -> Needs:
        return Needs(attention=True)

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if generation.attention is None:
            raise RunError("query=qfs needs attention and the generation has none recorded")
        found = _words(generation, state)
        # A verdict on the whole answer names no token: the last one stands for it.
        hits = decision.tokens or (max(len(generation.token_ids) - 1, 0),)
        if self.variant == "paper":
            candidates, weights = self._paper(found, generation, hits[0])
        else:
            candidates, weights = self._released(found, generation, hits)
        ranked = sorted(candidates, key=lambda i: (-sum(weights[c] for c in found[i].columns), i))
        chosen = [found[i].text for i in sorted(ranked[: self.top_n])]
        return _last_tokens(chosen, self.max_tokens) or question.question

    def _paper(self, found: list[_Word], generation: Generation, hit: int) -> tuple[list[int], np.ndarray]:
        """Words before the hit token, weighted by the hit token's own row."""
        rows = _rows(generation)
        column = len(generation.prompt_ids) + hit
        before = [i for i, w in enumerate(found) if w.columns[-1] < column]
        return before, rows[min(hit + 1, len(rows) - 1)]

    def _released(
        self, found: list[_Word], generation: Generation, hits: tuple[int, ...]
    ) -> tuple[list[int], np.ndarray]:
        """Content words before the last hit word, hit words left out, weighted by the predicting rows."""
        rows, start = _rows(generation), len(generation.prompt_ids)
        hit_columns = {start + t for t in hits}
        hit_words = [i for i, w in enumerate(found) if hit_columns & set(w.columns)]
        firsts = [found[i].columns[0] - start for i in hit_words] or [hits[0]]
        seen = np.zeros(rows.shape[1], dtype=bool)
        seen[[c for w in found for c in w.columns]] = True
        weights = np.zeros(rows.shape[1])
        for first in firsts:
            row = np.where(seen, rows[max(first, 0)], 0.0)
            total = row.sum()
            weights += row / total if total > 0 else row
        last = start + max(firsts)
        candidates = [
            i for i, w in enumerate(found) if w.columns[-1] < last and i not in hit_words and w.content
        ]
        return candidates, weights / len(firsts)


def _rows(generation: Generation) -> np.ndarray:
    assert generation.attention is not None
    return generation.attention.rows


def _words(generation: Generation, state: State) -> list[_Word]:
    """Words of the question, the accepted text and the generation, in this order.

    Words without a letter or digit are left out; so are quotes and commas around the others.
    """
    text = generation.prompt + generation.text
    shift = len(generation.prompt)
    offsets = [*generation.prompt_offsets, *((a + shift, b + shift) for a, b in generation.offsets)]
    found = []
    for start, end in (state.question_span, (shift - len(state.partial), len(text))):
        part = text[start:end]
        spans = words(part, [(a - start, b - start) for a, b in offsets])
        content = is_content(part, [part[w.start : w.end] for w in spans])
        for word, carries in zip(spans, content, strict=True):
            bare = re.sub(r"^[\W_]+|[\W_]+$", "", part[word.start : word.end])
            if bare:
                found.append(_Word(bare, word.tokens, carries))
    return found


def _last_tokens(words: list[str], limit: int) -> str:
    """The last words that together have at most ``limit`` of the retriever's tokens."""
    kept: list[str] = []
    used = 0
    for word in reversed(words):
        used += len(tokenize(word))
        if used > limit:
            break
        kept.append(word)
    return " ".join(reversed(kept))
