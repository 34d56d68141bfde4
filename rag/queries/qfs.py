"""Ask with the words the model attended to where it hesitated (DRAGIN's QFS)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from probers.types import Decision, Generation, Needs, Question, RunError, UserError

from ..triggers.base import State
from .base import QUERY_TOKENS, ContextWord, at_least_one, context_words, hit_tokens, last_tokens


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
    max_tokens: int = QUERY_TOKENS

    needs = Needs(attention=True)

    def __post_init__(self) -> None:
        if self.variant not in ("paper", "released"):
            raise UserError(f"query.variant={self.variant!r} is unknown: choose paper or released")
        at_least_one(self, "top_n", "max_tokens")

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if generation.attention is None:
            raise RunError("query=qfs needs attention and the generation has none recorded")
        found = context_words(generation, state)
        hits = hit_tokens(generation, decision)
        if self.variant == "paper":
            candidates, weights = self._paper(found, generation, hits[0])
        else:
            candidates, weights = self._released(found, generation, hits)
        ranked = sorted(candidates, key=lambda i: (-sum(weights[c] for c in found[i].columns), i))
        chosen = [found[i].text for i in sorted(ranked[: self.top_n])]
        return last_tokens(chosen, self.max_tokens) or question.question

    def _paper(
        self, found: list[ContextWord], generation: Generation, hit: int
    ) -> tuple[list[int], np.ndarray]:
        """Words before the hit token, weighted by the hit token's own row."""
        rows = _rows(generation)
        column = len(generation.prompt_ids) + hit
        before = [i for i, w in enumerate(found) if w.columns[-1] < column]
        return before, rows[min(hit + 1, len(rows) - 1)]

    def _released(
        self, found: list[ContextWord], generation: Generation, hits: tuple[int, ...]
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
