"""Scores of growing texts, and of spans of tokens.

Heads of single tokens (``pool=tokens``) score each token, heads of the state before a token
(``predicting``) score what would begin with it, and heads of pooled states score the text so far. A text's
pooled state is a running sum, and sequence heads keep what their next token can see. Besides this only
the score and the distance of each token are kept.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from ..heads import Memory, ProbeHead
from ..model import pooling
from ..model.hidden_states import broken_state
from ..model.pooling import PER_TOKEN, StreamingPool, all_finite, as_stored, token_vectors
from ..signals.grounding import Pointer
from ..store.spec import FeatureSpec, ModelSpec
from ..types import OF_PASSAGES, Needs, RunError, UserError
from ..words import Recogniser
from ..words.text import split_sentences
from ..words.thinking import PARTS
from .domain import Domain
from .risk_control import Promise

#: Ways to make the score of a span from the scores of its tokens.
Aggregate = Literal["max", "mean", "last"]
AGGREGATES: tuple[str, ...] = get_args(Aggregate)
#: Positions that are several pieces of a text, each pooled separately.
PIECES = ("span", "sentence", "claim")


class Scorer(Protocol):
    """The part of :class:`probers.prober.prober.Prober` that this package uses."""

    @property
    def spec(self) -> FeatureSpec: ...
    @property
    def head(self) -> ProbeHead: ...
    @property
    def threshold(self) -> float: ...
    @property
    def aggregate(self) -> Aggregate | None: ...
    @property
    def recogniser(self) -> str | None: ...
    @property
    def domain(self) -> Domain | None: ...
    @property
    def promise(self) -> Promise | None: ...
    @property
    def pointer(self) -> Pointer | None: ...
    def score_states(self, states: Tensor, /) -> np.ndarray: ...
    def score_next(self, states: Tensor, memory: Memory | None, /) -> tuple[np.ndarray, Memory]: ...
    def probability(self, score: np.ndarray, /) -> np.ndarray: ...
    def check_model(self, model: ModelSpec, /) -> None: ...


def pools_sentences(bank: Scorer) -> bool:
    """Tell whether a prober pools every sentence of a text separately."""
    return bank.spec.pool not in PER_TOKEN and bank.spec.position == "sentence"


def check_growing(bank: Scorer, *, whole: bool = False, sentences: bool = False) -> None:
    """Refuse heads that cannot score a text token by token (UserError).

    Heads that pool spans, claims or sentences need to know where these begin: they score ``whole`` texts, or
    growing ones whose ``sentences`` are known. Heads of the prompt's last state know nothing about a text.
    """
    spec, why = bank.spec, ""
    beside = [spec.site] if spec.site in ("probabilities", *OF_PASSAGES) else spec.feature.beside
    known = whole or spec.pool in PER_TOKEN or (sentences and pools_sentences(bank))
    if spec.pool == "prompt":
        why = "reads pool=prompt, the state before a text is written: use it in trigger=probing_before, or "
        why += "train one on another pool (mean, tokens, ..)"
    elif beside and not whole:
        why = f"reads {' and '.join(beside)}, and only states are read while a text grows: score finished "
        why += "texts with probers-score or trigger=probing, or train with beside=[]"
    elif not known and spec.position in (*PIECES, *PARTS):
        why = f"pools every {spec.position} by itself, whose end is not known while a text grows: score "
        why += "finished texts with probers-score (probers-serve also scores sentences), or train on "
        why += "unit=token, or unit=answer and reads=both"
    elif bank.head.marker:
        why = "marks the span that it scores, which is not known while a text grows: call bank.score_spans, "
        why += "or train with head.marker=false"
    elif bank.head.tokens:
        why = "pools all tokens of a span and cannot score a growing text: record its states with "
        why += 'Needs.of(layers, pool="tokens") and call bank.score_spans, or train heads of single tokens '
        why += "(head=radio, linear, ..) or of pooled states"
    if why:
        raise UserError(f"this prober {why}", "unsupported")


class GrowingHeads:
    """Heads over texts that grow side by side, each with its pool, or its last tokens for sequence heads."""

    def __init__(self, bank: Scorer) -> None:
        self._bank = bank
        self._pools: dict[Hashable, tuple[StreamingPool, int]] = {}
        self._memories: dict[Hashable, Memory] = {}

    def pooled(self, keys: Sequence[Hashable], vectors: Tensor) -> Tensor:
        """Take one more token of some texts, (texts, heads, width); return what the heads score after it."""
        if self._bank.spec.pool in PER_TOKEN or not len(vectors):
            return vectors
        so_far = []
        for key, vector in zip(keys, vectors, strict=True):
            pool, count = self._pools.get(key) or (StreamingPool(self._bank.spec.pool, 1), 0)
            pool.add(vector[None], slice(None))
            self._pools[key] = pool, count + 1
            so_far.append(pool.value(slice(None), count + 1))
        return torch.cat(so_far)

    def scores(self, keys: Sequence[Hashable], vectors: Tensor) -> list[float]:
        """Score the newest vectors (texts, heads, width), rounded as in a store; return (texts,)."""
        vectors = as_stored(vectors, self._bank.spec.dtype)
        if not self._bank.head.causal:
            return self._bank.score_states(vectors).tolist()
        scores = np.empty(len(keys))
        known = [row for row, key in enumerate(keys) if key in self._memories]
        new = [row for row, key in enumerate(keys) if key not in self._memories]
        for rows in filter(None, (known, new)):
            memory = Memory.joined([self._memories[keys[row]] for row in rows]) if rows is known else None
            scores[rows], memory = self._bank.score_next(vectors[rows], memory)
            self._memories.update(zip((keys[row] for row in rows), memory.each(), strict=True))
        return scores.tolist()

    def forget(self, key: Hashable) -> None:
        self._pools.pop(key, None)
        self._memories.pop(key, None)


class GrowingScores:
    """Scores of the newest tokens of texts that grow side by side, each under its own key.

    ``before`` means that heads read the state before a token; a text's first is then the prompt's last. Heads
    that pool a span's tokens themselves are refused (UserError). With ``sentences`` each text is a sentence.
    """

    def __init__(self, bank: Scorer, *, sentences: bool = False) -> None:
        check_growing(bank, sentences=sentences)
        self._bank = bank
        self.before = bank.spec.pool in pooling.BEFORE
        self._heads = GrowingHeads(bank)
        self._distances: dict[Hashable, list[float]] = {}

    def add_each(
        self, keys: Sequence[Hashable], states: Tensor, names: Sequence[str] = ()
    ) -> list[float | RunError]:
        """Take one more token of some texts, each under its key; return the score of each text after it.

        ``states`` (texts, layers read, d) belong to the token or, for heads of that, the position before it.
        A state that is not finite, also in the prober's number format, is not pooled; its score is an error;
        ``names`` name the texts in these errors.
        """
        feature = self._bank.spec.feature
        vectors = token_vectors(states, feature.pool)
        stored = as_stored(vectors, self._bank.spec.dtype)
        read, rounded = all_finite(states), all_finite(stored)  # (texts, layers), (texts, heads)
        scores: list[float | RunError] = [math.nan] * len(keys)
        sound = []
        for row, fine in enumerate((read.all(dim=-1) & rounded.all(dim=-1)).tolist()):
            if fine:
                sound.append(row)
                continue
            layer = int((~(rounded if read[row].all() else read)[row]).nonzero()[0])
            where = f"a token of {names[row] if names else 'a growing text'}"
            scores[row] = broken_state(feature, layer, where)
        if not sound:
            return scores
        sound_keys = [keys[row] for row in sound]
        pooled = self._heads.pooled(sound_keys, vectors if len(sound) == len(keys) else vectors[sound])
        distances = domain_distances(self._bank, pooled)
        for place, score in enumerate(self._heads.scores(sound_keys, pooled)):
            scores[sound[place]] = score
            if distances is not None:
                self._distances.setdefault(sound_keys[place], []).append(distances[place])
        return scores

    def distances(self, key: Hashable) -> list[float] | None:
        """Return the distance of each token of a text so far from the prober's domain; None without one."""
        return None if self._bank.domain is None else self._distances.get(key, [])

    def forget(self, key: Hashable) -> None:
        """Drop a text that has ended."""
        self._heads.forget(key)
        self._distances.pop(key, None)


@dataclass(slots=True)
class _GrowingText:
    before: int = 0  # the first token of the sentence before the last one
    begin: int = 0  # the first token of the last sentence
    states: list[Tensor] = field(default_factory=list)  # of the tokens from ``before`` on
    scores: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)  # only with a domain


class GrowingSentences:
    """:class:`GrowingScores` for a prober that pools every sentence by itself (UserError: another prober).

    A token's score is that of its sentence up to it. The start of a sentence may become certain some tokens
    later; the tokens since its start are then scored again. So the score of a sentence's last token equals
    that of :func:`text_scores` in the whole text.
    """

    def __init__(self, bank: Scorer) -> None:
        self._scores = GrowingScores(bank, sentences=True)
        self._language = Recogniser(bank.recogniser or "rules", quiet=True).language
        self._texts: dict[Hashable, _GrowingText] = {}

    def add_each(
        self, keys: Sequence[Hashable], states: Tensor, written: Sequence[tuple[str, Sequence[int]]],
        names: Sequence[str] = (),
    ) -> list[float | RunError]:  # fmt: skip
        """Take one more token of some texts, like :meth:`GrowingScores.add_each`; return the newest scores.

        ``written`` has the texts up to that token, and the number of characters after each of their tokens.
        """
        for key, (text, ends) in zip(keys, written, strict=True):
            self._find_begin(key, self._texts.setdefault(key, _GrowingText()), text, ends)
        scores = self._scores.add_each(keys, states, names)
        for key, state, score in zip(keys, states, scores, strict=True):
            if not isinstance(score, RunError):
                self._texts[key].states.append(state.clone())  # else the states of all texts would stay
                self._take(key, score)
        return scores

    def _find_begin(self, key: Hashable, known: _GrowingText, text: str, ends: Sequence[int]) -> None:
        """Find the sentence of the newest token; if it changed, score its earlier tokens again."""
        newest = len(known.scores)
        start = ends[known.before - 1] if known.before else 0
        sentences = split_sentences(text[start : ends[newest]], self._language)
        place = start + sentences[-1][0] if sentences else 0
        begin = next((i for i in range(known.before, newest) if ends[i] > place), newest)
        if not sentences or begin == known.begin:
            return
        self._scores.forget(key)
        del known.scores[begin:], known.distances[begin:]
        if begin > known.begin:  # else the apparent start was none
            del known.states[: known.begin - known.before]
            known.before = known.begin
        known.begin = begin
        for state in known.states[begin - known.before :]:
            (score,) = self._scores.add_each([key], state[None])
            assert not isinstance(score, RunError)  # it was scored before
            self._take(key, score)

    def _take(self, key: Hashable, score: float) -> None:
        known = self._texts[key]
        known.scores.append(score)
        if far := self._scores.distances(key):
            known.distances.append(far[-1])

    def scores(self, key: Hashable) -> list[float]:
        """Return scores of all tokens of a text so far."""
        return self._texts[key].scores

    def distances(self, key: Hashable) -> list[float] | None:
        """Return distances of all tokens of a text from the prober's domain; None without a domain."""
        return None if self._scores.distances(key) is None else self._texts[key].distances

    def forget(self, key: Hashable) -> None:
        """Drop a text that has ended."""
        self._scores.forget(key)
        self._texts.pop(key, None)


def domain_distances(bank: Scorer, vectors: Tensor) -> list[float] | None:
    """Compute distances (n,) of vectors (n, heads, width) from the prober's domain; None without one."""
    return None if bank.domain is None else bank.domain(as_stored(vectors, bank.spec.dtype)).tolist()


def text_needs(bank: Scorer) -> Needs:
    """Return the features of a text to record for :func:`text_scores`."""
    return Needs((replace(bank.spec.feature, pool=pooling.token_pool(bank.spec.pool)),))


def reads_passages(bank: Scorer) -> bool:
    """Tell whether a prober judges what answers take from passages."""
    return text_needs(bank).of_passages


def text_scores(
    bank: Scorer, vectors: np.ndarray, pieces: Sequence[Sequence[int]] | None = None
) -> tuple[list[float | None], list[float | None] | None]:
    """Compute scores (n,) and distances (n,) of a text from vectors (n, heads, width) of :func:`text_needs`.

    Pooled heads pool each of the ``pieces``, tokens in order, separately, and tokens outside have no score;
    None is one piece of all tokens.
    """
    check_growing(bank, whole=True)
    growing, tokens = GrowingHeads(bank), torch.from_numpy(vectors)
    each = [range(len(tokens))] if pieces is None or bank.spec.pool in PER_TOKEN else pieces
    scores: list[float | None] = [None] * len(tokens)
    distances: list[float | None] = [None] * len(tokens)
    for name, piece in enumerate(map(list, each)):
        if not piece:
            continue
        pooled = torch.cat([growing.pooled([name], tokens[[place]]) for place in piece])
        piece_scores = bank.score_states(as_stored(pooled, bank.spec.dtype)).tolist()
        far = domain_distances(bank, pooled) or [math.nan] * len(piece)
        for place, *values in zip(piece, piece_scores, far, strict=True):
            scores[place], distances[place] = values
    return scores, None if bank.domain is None else distances


def check_spans(spans: Any, tokens: int) -> np.ndarray:
    """Return spans as an array (n, 2), each within ``tokens`` and not empty (else ValueError)."""
    bounds = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    odd = np.flatnonzero((bounds[:, 0] < 0) | (bounds[:, 0] >= bounds[:, 1]) | (bounds[:, 1] > tokens))
    if len(odd):
        start, end = bounds[odd[0]].tolist()
        raise ValueError(f"span {odd[0]} is [{start}, {end}): empty, or not among the {tokens} tokens")
    return bounds


def aggregate(values: np.ndarray, spans: Any, how: Aggregate) -> np.ndarray:
    """Compute values of spans, (n, ...) float64, from ``values`` (t, ...) of tokens."""
    values, bounds = np.asarray(values, dtype=np.float64), check_spans(spans, len(values))
    if how == "last":
        return values[bounds[:, 1] - 1]
    if not len(bounds):
        return np.empty((0, *values.shape[1:]))
    reduce = np.max if how == "max" else np.mean
    return np.stack([reduce(values[start:end], axis=0) for start, end in bounds])
