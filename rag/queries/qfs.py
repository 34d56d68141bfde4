"""Ask with the words the model attended to where it hesitated (DRAGIN's QFS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probers.types import Generation

from ..triggers.base import State, one_of
from .base import AttentionQuery, ContextWord, before, context_words, own_row


@dataclass(frozen=True)
class QFS(AttentionQuery):
    """The ``top_n`` most attended words of question and answer so far, in the order of the text.

    A word's attention is the sum over its tokens. Should no word qualify, the question is asked.

    Attributes:
        variant: "paper": the attention row of the token that fired, over all words
            before it. "released": the rows that predicted each word that fired, each
            renormalised over what it could see of question and answer, averaged; only
            content words qualify, and the words that fired do not.
        top_n: words to keep.
    """

    variant: Literal["paper", "released"] = "released"
    top_n: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("query.variant", self.variant, "paper", "released")

    def rate(
        self, rows: np.ndarray, hits: Sequence[int], generation: Generation, state: State
    ) -> tuple[list[ContextWord], list[float]]:
        """The words that qualify and the attention that each gets."""
        found = context_words(generation, state)
        weigh = self._paper if self.variant == "paper" else self._released
        words, weights = weigh(found, rows, len(generation.prompt_ids), hits)
        return words, [sum(weights[c] for c in w.columns) for w in words]

    def _paper(
        self, found: list[ContextWord], rows: np.ndarray, start: int, hits: Sequence[int]
    ) -> tuple[list[ContextWord], np.ndarray]:
        """Words before the first hit token, weighted by that token's own row."""
        return before(found, start + hits[0]), own_row(rows, hits[0])

    def _released(
        self, found: list[ContextWord], rows: np.ndarray, start: int, hits: Sequence[int]
    ) -> tuple[list[ContextWord], np.ndarray]:
        """Content words before the last hit word, hit words left out, weighted by the predicting rows."""
        hit_columns = {start + t for t in hits}
        hit_words = [w for w in found if hit_columns & set(w.columns)]
        firsts = [w.columns[0] - start for w in hit_words] or [hits[0]]
        seen = np.zeros(rows.shape[1], dtype=bool)
        seen[[c for w in found for c in w.columns]] = True
        weights = np.zeros(rows.shape[1])
        for first in firsts:
            row = np.where(seen, rows[max(first, 0)], 0.0)
            total = row.sum()
            weights += row / total if total > 0 else row
        qualify = [w for w in before(found, start + max(firsts)) if w.content and w not in hit_words]
        return qualify, weights / len(firsts)
