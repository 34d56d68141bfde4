"""Queries made of the words that attention points to: DRAGIN's QFS, ETC's and RaDIO's CIOQF."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from probers.options import Count
from probers.signals import Part, Variant, words
from probers.types import Decision, Generation, Needs, Question, RunError
from probers.words.text import is_content, split_sentences
from probers.words.vectors import load_vectors

from ..protocol import PaperOrReleased, State, name_of, one_of
from .text import LimitedQuery, sentence_at, whole_text

if TYPE_CHECKING:
    from probers.model.causal_lm import CausalLM


@dataclass(frozen=True, slots=True)
class ContextWord:
    """Word of the question or the answer.

    Attributes:
        text: without the punctuation around it.
        columns: its tokens, as columns of the attention rows (prompt tokens first).
        of_question: True for a word of the question, False for one of the answer.
    """

    text: str
    columns: tuple[int, ...]
    of_question: bool


class AttentionQuery(LimitedQuery):
    """Base of queries of the words from question and answer so far that attention points to.

    Words of exemplars and passages in the prompt are left out.

    Attributes:
        top_n: number of words in the query.
    """

    top_n: Count

    @property
    def needs(self) -> Needs:
        return Needs(attention=True)

    def best(self, words: Sequence[str], scores: Sequence[float] | np.ndarray) -> str:
        """Select the ``top_n`` words of the highest scores; of equal ones the first."""
        ranked = sorted(range(len(words)), key=lambda i: (-scores[i], i))
        return " ".join(words[i] for i in sorted(ranked[: self.top_n]))

    def rows(self, generation: Generation) -> np.ndarray:
        """Return the recorded attention (n + 1, p + n), see :class:`~probers.types.AttentionRows`."""
        if generation.attention is None:
            raise RunError(f"query={name_of(self)} needs attention, and none was recorded", "mismatch")
        return generation.attention.rows


@dataclass(frozen=True)
class QFS(PaperOrReleased, AttentionQuery):
    """The most attended words of question and answer so far, in the order of the text (DRAGIN).

    If no word qualifies, the question is asked.

    Attributes:
        variant: "paper": the words of the ``top_n`` tokens before the one that fired that its own attention
            row weighs most. "released": the ``top_n`` most attended words up to the sentence that fired, by
            another pass over question and answer alone, without exemplars and passages. There only content
            words qualify, with the punctuation around them; the words that fired do not.
        top_n: number of tokens or words.
    """

    variant: Variant = "released"
    top_n: Count = 25

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        hits = hit_tokens(generation, decision)
        if self.variant == "released":
            return self._released(question, generation, hits, state)
        context = context_words(generation, state)
        before, row = words_before(context, self.rows(generation), hits[0], generation)
        columns = {c for w in before for c in w.columns}
        ranked = set(sorted(columns, key=lambda c: (-row[c], c))[: self.top_n])
        return " ".join(w.text for w in before if ranked & set(w.columns))

    def _released(
        self, question: Question, generation: Generation, hits: tuple[int, ...], state: State
    ) -> str:
        # The sentence in which the token ends.
        place = max(generation.offsets[hits[0]][1] - 1, 0) if generation.offsets else 0
        start, end = sentence_at(generation.text, place)
        written = words(generation.text, generation.offsets)
        current = [w for w in written if start <= w.start < end]
        if not current:
            return question.question
        # Joined as in the released code: an empty part adds a space, and the space has a token.
        text = " ".join([
            question.question,
            state.partial.strip(),
            generation.text[:start].strip(),
            *(generation.text[w.start : w.end] for w in current),
        ])  # fmt: skip
        ((offsets, attention),) = state.lm.attention_of([text])
        read = words(text, offsets)
        first = len(read) - len(current)
        fired = [first + i for i, w in enumerate(current) if set(w.tokens) & set(hits)]
        seen = np.zeros(len(offsets))
        for i in fired:
            seen += _seen_by(read[i], attention.rows) / len(fired)
        texts = [text[w.start : w.end] for w in read]
        content = is_content(text, texts)
        chosen = [i for i in range(len(read)) if content[i] and i not in fired]
        scores = [float(np.sum(seen[list(read[i].tokens)])) for i in chosen]
        return self.best([texts[i] for i in chosen], scores)


@dataclass(frozen=True)
class ETCQuery(AttentionQuery):
    """The content words of question and answer so far that the words that fired attend to most (ETC).

    Unlike the released :class:`QFS` it reads attention within the whole prompt, recorded while writing.

    Attributes:
        top_n: number of words.
    """

    top_n: Count = 35

    filters = True

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        hits, rows = hit_tokens(generation, decision), self.rows(generation)
        before, _ = words_before(context_words(generation, state), rows, hits[0], generation)
        fired = [w for w in words(generation.text, generation.offsets) if set(w.tokens) & set(hits)]
        paid = [rows[[t + 1 for t in w.tokens]].mean(axis=0, dtype=np.float64) for w in fired]
        seen = sum(paid, np.zeros(rows.shape[1]))
        texts = [w.text for w in before]
        content = is_content(" ".join(texts), texts)
        chosen = [w for w, real in zip(before, content, strict=True) if real]
        return self.best([w.text for w in chosen], [float(seen[list(w.columns)].sum()) for w in chosen])


def _seen_by(word: Part, rows: np.ndarray) -> np.ndarray:
    """Average the attention (n,) at the positions that predicted a word's tokens, of ``rows`` (n + 1, n)."""
    first = word.tokens[0]
    weights = np.zeros(rows.shape[1])
    for row in rows[list(word.tokens), :first].astype(np.float64):
        total = row.sum()
        weights[:first] += row / total if total > 0 else row
    return weights / len(word.tokens)


def context_words(generation: Generation, state: State) -> list[ContextWord]:
    """List the words of the question, the accepted text and the generation, in this order.

    Exemplars, passages, truncated text, punctuation and words without a letter or digit are left out.
    """
    text, offsets = whole_text(generation)
    # A prompt that was truncated on the left has no tokens of its beginning.
    begins = min((a for a, b in offsets if a < b), default=0)
    while 0 < begins < len(text) and not text[begins - 1].isspace():
        begins += 1
    context = []
    answer = len(generation.prompt) - len(state.partial), len(text)
    for of_question, (start, end) in ((True, state.question_span), (False, answer)):
        start = min(max(start, begins), end)
        part = text[start:end]
        for word in words(part, [(a - start, b - start) for a, b in offsets]):
            if stripped := bare(part[word.start : word.end]):
                context.append(ContextWord(stripped, word.tokens, of_question))
    return context


def words_before(
    context: Sequence[ContextWord], rows: np.ndarray, hit: int, generation: Generation
) -> tuple[list[ContextWord], np.ndarray]:
    """List the words that end before a generated token, with its own row (p + n,) or the last known one."""
    column = len(generation.prompt_ids) + hit
    return [w for w in context if w.columns[-1] < column], rows[min(hit + 1, len(rows) - 1)]


def bare(word: str) -> str:
    """Remove the punctuation around a word."""
    return re.sub(r"^[\W_]+|[\W_]+$", "", word)


def hit_tokens(generation: Generation, decision: Decision) -> tuple[int, ...]:
    """List the tokens that fired; if the trigger names none, the first after its position, else the last."""
    position = math.inf if decision.position is None else decision.position
    behind = (i for i, (start, _) in enumerate(generation.offsets) if start >= position)
    return decision.tokens or (next(behind, max(len(generation.token_ids) - 1, 0)),)


@dataclass(frozen=True)
class CIOQF(AttentionQuery):
    """The ``top_n`` best words of question and answer before the token that fired, in the order of the text.

    Equation 5 of RaDIO (Zhu et al. 2025), for word i of N:
    Tok_i = norm(Att_i) + norm(TFIDF_i) + norm(Cos_i) + pos(i) / N.

    Att_i is the attention (last layer, mean over heads) of the token that fired, summed over the word's
    tokens. TFIDF_i is the word's share of the N words times 1 + ln((1 + D) / (1 + df)) over the D documents
    of the context itself: the question, each sentence of the answer so far, each passage shown. The corpus's
    frequencies are not used: only one of the retrievers has any, and a query must not depend on it. Cos_i is
    the cosine of the word's vector with the mean vector of the question's words; a word without a vector has
    0. pos(i) counts from 1.

    Attributes:
        norm: scaling over the N words, "minmax" to [0, 1] or "zscore" to mean 0 and deviation 1; equal values
            become 0 in both.
        top_n: words to keep.
        vectors: file in the word2vec format; None takes the model's input embeddings,
            averaged over a word's tokens.
        without: the term of the sum that is left out, for an ablation.
    """

    norm: Literal["minmax", "zscore"] = "minmax"
    top_n: Count = 25
    vectors: str | None = None
    without: Literal["attention", "tf_idf", "cosine", "position"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.without is not None:
            one_of("query.without", self.without, "attention", "tf_idf", "cosine", "position")
        if self.vectors is not None:
            load_vectors(self.vectors)  # report a bad file before a model runs

    def text(self, question: Question, generation: Generation, decision: Decision, state: State) -> str:
        hits = hit_tokens(generation, decision)
        rated, scores = self.rate(self.rows(generation), hits, generation, state)
        return self.best([w.text for w in rated], scores)

    def rate(
        self, rows: np.ndarray, hits: Sequence[int], generation: Generation, state: State
    ) -> tuple[list[ContextWord], np.ndarray]:
        """List the words before the first token that fired, and Tok of each; ``rows`` is (n + 1, p + n)."""
        context = context_words(generation, state)
        words, row = words_before(context, rows, hits[0], generation)
        if not words:
            return [], np.zeros(0)
        begin = generation.offsets[hits[0]][0] if generation.offsets else 0
        written = state.partial + generation.text[:begin]
        sentences = (written[a:b] for a, b in split_sentences(written))
        documents = [state.question.question, *sentences, *(p.text for p in state.passages)]
        attention = np.array([row[list(w.columns)].sum(dtype=np.float64) for w in words])
        cosines = self._cosines(words, [w for w in context if w.of_question], generation, state)
        terms = {
            "attention": _scaled(attention, self.norm),
            "tf_idf": _scaled(tf_idf([w.text for w in words], documents), self.norm),
            "cosine": _scaled(cosines, self.norm),
            "position": np.arange(1, len(words) + 1) / len(words),
        }
        return words, np.sum([values for name, values in terms.items() if name != self.without], axis=0)

    def _cosines(
        self, words: list[ContextWord], others: list[ContextWord], generation: Generation, state: State
    ) -> np.ndarray:
        """Compute the cosine (N,) of each word's vector with the mean vector of ``others``, 0 without one."""
        every = [*words, *others]
        if self.vectors is not None:
            table = load_vectors(self.vectors)
            vectors = [_look_up(table, w.text) for w in every]
        else:
            ids = np.array([*generation.prompt_ids, *generation.token_ids])
            columns = [c for w in every for c in w.columns]
            rows = dict(zip(columns, _embeddings(cast("CausalLM", state.lm), ids[columns]), strict=True))
            vectors = [np.stack([rows[c] for c in w.columns]).mean(axis=0, dtype=np.float64) for w in every]
        of_words, about = np.split(np.stack(vectors), [len(words)])
        mean = about.sum(axis=0) / max(1, len(about))
        sizes = np.linalg.norm(of_words, axis=1) * np.linalg.norm(mean)
        return np.divide(of_words @ mean, sizes, out=np.zeros(len(words)), where=sizes > 0)


def tf_idf(words: Sequence[str], documents: Sequence[str]) -> np.ndarray:
    """Compute for each word (N,) its share of the words times its inverse document frequency (smoothed)."""
    terms = [w.lower() for w in words]
    held = Counter(t for d in documents for t in {bare(w).lower() for w in d.split()})
    idf = np.array([1 + np.log((1 + len(documents)) / (1 + held[t])) for t in terms])
    counts = Counter(terms)
    return np.array([counts[t] / len(terms) for t in terms]) * idf


def _scaled(values: np.ndarray, norm: str) -> np.ndarray:
    low, spread = (
        (values.min(), values.max() - values.min()) if norm == "minmax" else (values.mean(), values.std())
    )
    # Equal values differ by rounding alone; this difference must not be scaled up.
    return (values - low) / spread if spread > 1e-12 * np.abs(values).max() else np.zeros(len(values))


def _embeddings(lm: CausalLM, ids: np.ndarray) -> np.ndarray:
    """Return the rows (tokens, d) of the model's input embedding."""
    import torch

    unique, places = np.unique(ids, return_inverse=True)
    embed = lm.model.get_input_embeddings()
    with torch.inference_mode():
        rows = embed(torch.tensor(unique, device=lm.device))
    return rows.float().cpu().numpy()[places]


def _look_up(table: Any, word: str) -> np.ndarray:
    """Look up a word's vector as written, in lower case or capitalised; zeros, whose cosine is 0, without."""
    forms = [f for f in (word, word.lower(), word.capitalize()) if f in table.key_to_index]
    return np.asarray(table.get_vector(forms[0]) if forms else np.zeros(table.vector_size), np.float64)
