"""Queries made of words by attention, rarity, closeness to the question and recency (RaDIO's CIOQF)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from probers.text import load_vectors, split_sentences
from probers.types import Decision, Generation, Question

from ..protocol import State, one_of
from .attention import AttentionQuery, ContextWord, bare, before, context_words, hit_tokens, own_row

if TYPE_CHECKING:
    from probers.engine.model import CausalLM


@dataclass(frozen=True)
class CIOQF(AttentionQuery):
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
        without: the term of the sum that is left out, for an ablation.
    """

    norm: Literal["minmax", "zscore"] = "minmax"
    top_n: int = 25
    vectors: str | None = None
    without: Literal["attention", "tf_idf", "cosine", "position"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("query.norm", self.norm, "minmax", "zscore")
        if self.without is not None:
            one_of("query.without", self.without, "attention", "tf_idf", "cosine", "position")
        if self.vectors is not None:
            load_vectors(self.vectors)  # report a bad file before a model runs

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        hits = hit_tokens(generation, decision)
        found, scores = self.rate(self.rows(generation), hits, generation, state)
        return self.best([w.text for w in found], scores)

    def rate(
        self, rows: np.ndarray, hits: Sequence[int], generation: Generation, state: State
    ) -> tuple[list[ContextWord], np.ndarray]:
        """The words before the first token that fired, and Tok of each; ``rows`` is (n + 1, p + n)."""
        hit, found = hits[0], context_words(generation, state)
        words, row = before(found, len(generation.prompt_ids) + hit), own_row(rows, hit)
        if not words:
            return [], np.zeros(0)
        begin = generation.offsets[hit][0] if generation.offsets else 0
        written = state.partial + generation.text[:begin]
        documents = [
            state.question.question,
            *(written[a:b] for a, b in split_sentences(written)),
            *(p.text for p in state.passages),
        ]
        attention = np.array([row[list(w.columns)].sum(dtype=np.float64) for w in words])
        cosines = self._cosines(words, [w for w in found if w.asked], generation, state)
        terms = {
            "attention": _scaled(attention, self.norm),
            "tf_idf": _scaled(tf_idf([w.text for w in words], documents), self.norm),
            "cosine": _scaled(cosines, self.norm),
            "position": np.arange(1, len(words) + 1) / len(words),
        }
        return words, np.sum([values for name, values in terms.items() if name != self.without], axis=0)

    def _cosines(
        self, words: list[ContextWord], asked: list[ContextWord], generation: Generation, state: State
    ) -> np.ndarray:
        """(N,) cosine of each word's vector with the mean vector of the question's words."""
        look: list[np.ndarray | None]
        if self.vectors is not None:
            table = load_vectors(self.vectors)
            look = [_look_up(table, w.text) for w in (*words, *asked)]
        else:
            ids = [*generation.prompt_ids, *generation.token_ids]
            columns = [c for w in (*words, *asked) for c in w.columns]
            of = dict(
                zip(columns, _embeddings(cast("CausalLM", state.lm), [ids[c] for c in columns]), strict=True)
            )
            look = [
                np.stack([of[c] for c in w.columns]).mean(axis=0, dtype=np.float64) for w in (*words, *asked)
            ]
        about = [v for v in look[len(words) :] if v is not None]
        if not about:
            return np.zeros(len(words))
        mean = np.stack(about).mean(axis=0)
        return np.array([0.0 if v is None else _cosine(v, mean) for v in look[: len(words)]])


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
