"""Ask with the words the model attended to where it hesitated (DRAGIN's QFS)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probers.text import is_content, split_sentences
from probers.types import Decision, Generation, Question
from probers.uncertainty import Part, Variant, words

from ..triggers.base import PaperOrReleased, State, one_of
from .base import AttentionQuery, before, context_words, hit_tokens, own_row


@dataclass(frozen=True)
class QFS(PaperOrReleased, AttentionQuery):
    """The words of question and answer so far that are most attended to, in the order of the text.

    Should no word qualify, the question is asked.

    Attributes:
        variant: "paper": the ``top_n`` most attended tokens before the one that fired, by its own
            attention row, and the words that they belong to. "released": the ``top_n`` most
            attended words, by another pass over question and answer alone, without exemplars and
            passages, up to the sentence that fired: only content words qualify, with the
            punctuation around them, and the words that fired do not.
        top_n: how many of them.
    """

    variant: Variant = "released"
    top_n: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("query.variant", self.variant, "paper", "released")

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        hits = hit_tokens(generation, decision)
        if self.variant == "paper":
            return self._paper(generation, hits[0], state)
        return self._released(question, generation, hits, state)

    def _paper(self, generation: Generation, hit: int, state: State) -> str:
        rows, column = self.rows(generation), len(generation.prompt_ids) + hit
        found, row = before(context_words(generation, state), column), own_row(rows, hit)
        columns = sorted({c for w in found for c in w.columns})
        ranked = set(sorted(columns, key=lambda c: (-row[c], c))[: self.top_n])
        return " ".join(w.text for w in found if ranked & set(w.columns))

    def _released(
        self, question: Question, generation: Generation, hits: tuple[int, ...], state: State
    ) -> str:
        start, end = _sentence(generation, hits[0])
        written = words(generation.text, generation.offsets)
        current = [w for w in written if start <= w.start < end]
        if not current:
            return question.question
        # Joined as the released code joins them: an empty part leaves a space more, which has a token.
        text = " ".join([
            question.question,
            state.partial.strip(),
            generation.text[:start].strip(),
            *(generation.text[w.start : w.end] for w in current),
        ])  # fmt: skip
        ((offsets, attention),) = state.lm.attention_of([text])
        found = words(text, offsets)
        first = len(found) - len(current)
        fired = [first + i for i, w in enumerate(current) if set(w.tokens) & set(hits)]
        seen = np.zeros(len(offsets))
        for i in fired:
            seen += _seen_by(found[i], attention.rows) / len(fired)
        content = is_content(text, [text[w.start : w.end] for w in found])
        asked = [i for i in range(len(found)) if content[i] and i not in fired]
        return self.best(
            [text[found[i].start : found[i].end] for i in asked],
            [float(np.sum(seen[list(found[i].tokens)])) for i in asked],
        )


def _sentence(generation: Generation, token: int) -> tuple[int, int]:
    """[start, end) of the sentence that a token ends in; (0, 0) where nothing was written."""
    place = max(generation.offsets[token][1] - 1, 0) if generation.offsets else 0
    spans = split_sentences(generation.text)
    return next((span for span in spans if span[1] > place), spans[-1] if spans else (0, 0))


def _seen_by(word: Part, rows: np.ndarray) -> np.ndarray:
    """(n,) the attention to what is before a word where its tokens were predicted, their mean.

    Args:
        rows: (n + 1, n) of the whole text; row i is of the position before token i.
    """
    first = word.tokens[0]
    weights = np.zeros(rows.shape[1])
    for row in rows[list(word.tokens), :first].astype(np.float64):
        total = row.sum()
        weights[:first] += row / total if total > 0 else row
    return weights / len(word.tokens)
