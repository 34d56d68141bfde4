"""Ask with the words that attention, rarity, closeness to the question and recency favour (RaDIO's CIOQF)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from probers.text import load_vectors, split_sentences
from probers.types import Decision, Generation, Needs, Question, RunError, UserError

from ..triggers.base import State
from .base import QUERY_TOKENS, ContextWord, at_least_one, bare, context_words, hit_tokens, last_tokens

if TYPE_CHECKING:
    from probers.engine.model import CausalLM


@dataclass(frozen=True)
class CIOQF:
    """The ``top_n`` best words of question and answer before the hit, in the order of the text.

    Equation 5 of RaDIO (Zhu et al. 2025), for word i of N:
    Tok_i = norm(Att_i) + norm(TFIDF_i) + norm(Cos_i) + pos(i) / N.

    Att_i is the attention (last layer, mean over heads) of the token that fired, summed
    over the word's tokens. TFIDF_i is the word's share of the N words times
    1 + ln((1 + D) / (1 + df)) over the D documents of the context itself: the question,
    each sentence of the answer so far, each passage shown. The corpus's frequencies are
    not taken: only one of the retrievers has any, and a query must not depend on it.
    Cos_i is the cosine of the word's vector with the mean vector of the question's
    words; a word without a vector has 0. pos(i) counts from 1.

    Attributes:
        norm: over the N words, "minmax" to [0, 1] or "zscore" to mean 0 and deviation 1;
            equal values are 0 in both.
        top_n: words to keep.
        vectors: file in the word2vec format; None takes the model's input embeddings,
            averaged over a word's tokens.
        max_tokens: the query's last so many words for the retriever are kept.
    """

    norm: Literal["minmax", "zscore"] = "minmax"
    top_n: int = 25
    vectors: str | None = None
    max_tokens: int = QUERY_TOKENS

    needs = Needs(attention=True)

    def __post_init__(self) -> None:
        if self.norm not in ("minmax", "zscore"):
            raise UserError(f"query.norm={self.norm!r} is unknown: choose minmax or zscore")
        at_least_one(self, "top_n", "max_tokens")
        if self.vectors is not None:
            load_vectors(self.vectors)  # what is wrong with the file is said before a model runs

    def __call__(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        if generation.attention is None:
            raise RunError("query=cioqf needs attention and the generation has none recorded")
        found = context_words(generation, state)
        hit = hit_tokens(generation, decision)[0]
        column = len(generation.prompt_ids) + hit
        before = [w for w in found if w.columns[-1] < column]
        if not before:
            return question.question
        rows = generation.attention.rows
        row = rows[min(hit + 1, len(rows) - 1)]
        begin = generation.offsets[hit][0] if generation.offsets else 0
        written = state.partial + generation.text[:begin]
        documents = [
            question.question,
            *(written[a:b] for a, b in split_sentences(written)),
            *(p.text for p in state.passages),
        ]
        scores = (
            _scaled(np.array([row[list(w.columns)].sum(dtype=np.float64) for w in before]), self.norm)
            + _scaled(tf_idf([w.text for w in before], documents), self.norm)
            + _scaled(self._cosines(before, found, generation, state), self.norm)
            + np.arange(1, len(before) + 1) / len(before)
        )
        ranked = sorted(range(len(before)), key=lambda i: (-scores[i], i))
        chosen = [before[i].text for i in sorted(ranked[: self.top_n])]
        return last_tokens(chosen, self.max_tokens) or question.question

    def _cosines(
        self,
        before: Sequence[ContextWord],
        found: Sequence[ContextWord],
        generation: Generation,
        state: State,
    ) -> np.ndarray:
        """(N,) cosine of each word's vector with the mean vector of the question's words."""
        asked = [w for w in found if w.asked]
        look: list[np.ndarray | None]
        if self.vectors is not None:
            table = load_vectors(self.vectors)
            look = [_look_up(table, w.text) for w in (*before, *asked)]
        else:
            ids = [*generation.prompt_ids, *generation.token_ids]
            columns = [c for w in (*before, *asked) for c in w.columns]
            of = dict(zip(columns, _embeddings(state.lm, [ids[c] for c in columns]), strict=True))
            look = [
                np.stack([of[c] for c in w.columns]).mean(axis=0, dtype=np.float64) for w in (*before, *asked)
            ]
        about = [v for v in look[len(before) :] if v is not None]
        if not about:
            return np.zeros(len(before))
        mean = np.stack(about).mean(axis=0)
        return np.array([0.0 if v is None else _cosine(v, mean) for v in look[: len(before)]])


def tf_idf(words: Sequence[str], documents: Sequence[str]) -> np.ndarray:
    """(N,) of each word: its share of the words, times its inverse document frequency (smoothed)."""
    terms = [w.lower() for w in words]
    held = Counter(t for d in documents for t in {bare(w).lower() for w in d.split()})
    idf = np.array([1 + np.log((1 + len(documents)) / (1 + held[t])) for t in terms])
    counts = Counter(terms)
    return np.array([counts[t] / len(terms) for t in terms]) * idf


def _scaled(values: np.ndarray, norm: str) -> np.ndarray:
    low, spread = (
        (values.min(), values.max() - values.min()) if norm == "minmax" else (values.mean(), values.std())
    )
    # Equal values differ by rounding alone, and must not be blown up.
    return (values - low) / spread if spread > 1e-12 * np.abs(values).max() else np.zeros(len(values))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 0.0


def _embeddings(lm: CausalLM, ids: Sequence[int]) -> np.ndarray:
    """(tokens, d) rows of the model's input embedding."""
    import torch

    unique, places = np.unique(ids, return_inverse=True)
    embed = lm.model.get_input_embeddings()
    with torch.inference_mode():
        rows = embed(torch.tensor(unique, device=lm.device))
    return rows.float().cpu().numpy()[places]


def _look_up(table: Any, word: str) -> np.ndarray | None:
    """A word's vector as written, or in lower case, or capitalised; None if there is none."""
    for form in (word, word.lower(), word.capitalize()):
        if form in table.key_to_index:
            return np.asarray(table.get_vector(form), dtype=np.float64)
    return None
