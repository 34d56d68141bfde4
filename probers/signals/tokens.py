"""Uncertainty signals from a generation's own probabilities and attention: per token, per word, RIND and ETC.

RIND is DRAGIN's detector of places where a text needs information (Su et al., ACL 2024, eq. 1-5):
S(t_i) = H_i * a_max(i) * s_i, the entropy of the choice of a token, the most attention it gets from later
tokens, and whether it carries meaning. ``paper`` follows the equations, ``released`` the authors' code;
published thresholds (0.6 to 1.5) only mean something under the latter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..types import AttentionRows, Generation, RunError, UserError
from ..words.text import is_content, is_stop_word, split_sentences

#: Keys of :func:`signals`, in the order of probers' inputs.
SIGNALS = ("mean_entropy", "max_entropy", "min_prob", "mean_logprob")
#: Keys of :func:`signals_before`.
BEFORE = ("entropy_before", "logprob_before", "max_prob_before", "margin_before")


@dataclass(frozen=True, slots=True)
class Part:
    """A word or sentence [start, end) of a text, and the indices of the tokens that wrote it, ascending."""

    start: int
    end: int
    tokens: tuple[int, ...]

    def cut(self, text: str) -> str:
        """Return the part's characters of its text."""
        return text[self.start : self.end]


def parts(spans: Iterable[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[Part]:
    """Find the tokens of ascending [start, end) by character offsets; one over two parts belongs to both."""
    pieces: list[Part] = []
    first = 0  # number of tokens that end before the current part
    for start, end in spans:
        while first < len(offsets) and offsets[first][1] <= start:
            first += 1
        last = next((i for i in range(first, len(offsets)) if offsets[i][0] >= end), len(offsets))
        tokens = (i for i in range(first, last) if offsets[i][1] > max(start, offsets[i][0]))
        pieces.append(Part(start, end, tuple(tokens)))
    return pieces


def words(text: str, offsets: Sequence[tuple[int, int]]) -> list[Part]:
    """Find the white-space separated words of a text with their tokens; RunError if one has none."""
    pieces = parts((match.span() for match in re.finditer(r"\S+", text)), offsets)
    for word in pieces:
        if not word.tokens:
            raise RunError(f"no token wrote {word.cut(text)!r} in {text[:80]!r}: they do not align")
    return pieces


def signals(generation: Generation) -> dict[str, float]:
    """Measure the model's confidence over a generation; keys are :data:`SIGNALS`.

    ``mean_entropy`` and ``max_entropy`` in nats over the generated tokens, ``min_prob`` the probability of
    the least likely one, ``mean_logprob`` in nats (minus the logarithm of the perplexity).
    RunError where nothing was generated, or a value is not finite.
    """
    if not generation.token_ids:
        raise RunError(f"nothing was generated after {generation.prompt[-60:]!r}: no signals", "empty")
    entropies, logprobs = generation.entropies, generation.logprobs
    numbers = (np.mean(entropies), np.max(entropies), math.exp(float(np.min(logprobs))), np.mean(logprobs))
    values = dict(zip(SIGNALS, map(float, numbers), strict=True))
    for name, value in values.items():
        if not math.isfinite(value):
            raise RunError(f"{name} is {value} for the text {generation.text[:60]!r}")
    return values


def surprise(logprobs: Any, entropies: Any) -> float:
    """Average over tokens (n,) how much less likely each is than its distribution predicts, in nats.

    It is the mean of max(0, -log p - H). For greedily written text it is 0: the likeliest token's -log p
    is at most the entropy H; for others' text and drawn text it is more. The signed mean is the numerator of
    Fast-DetectGPT (Bao et al. 2024).
    """
    beyond = -np.asarray(logprobs, dtype=np.float64) - np.asarray(entropies, dtype=np.float64)
    return float(np.maximum(beyond, 0.0).mean())


def margins(generation: Generation) -> np.ndarray:
    """Subtract the second highest from the highest probability at each token, (n,)."""
    if generation.top is None:
        problem = "signals before a token need probabilities; generate with Needs(top=True)"
        raise UserError(problem, "missing-value")
    highest, second = generation.top.astype(np.float64)
    return np.asarray(highest - second)


def entropy_of_top(chances: Sequence[float]) -> float:
    """Compute the entropy in nats of a distribution from its highest probabilities, a lower bound.

    The remaining probability r counts as one further token: H = -sum p ln p - r ln r. The true entropy is no
    lower, and higher by at most r ln(V - k), with k of V tokens known.
    """
    left = max(0.0, 1.0 - math.fsum(chances))
    return -math.fsum(p * math.log(p) for p in (*chances, left) if p > 0) + 0.0


def signals_before(generation: Generation, token: int = 0) -> dict[str, float]:
    """Measure the model's confidence right before a token, recorded with ``Needs(top=True)``.

    Keys are :data:`BEFORE`, all about the distribution that predicts the token: ``entropy_before`` in nats;
    ``max_prob_before`` the highest probability; ``margin_before`` that minus the second highest (Scheffer et
    al. 2001); ``logprob_before`` the log-probability in nats of the token itself, which for greedily written
    text is the logarithm of the highest, and for text that the model only read needs the token.
    """
    margin = margins(generation)[token]
    assert generation.top is not None
    values = (generation.entropies[token], generation.logprobs[token], generation.top[0, token], margin)
    return dict(zip(BEFORE, map(float, values), strict=True))


Variant = Literal["paper", "released"]


@dataclass(frozen=True, slots=True)
class RindScores:
    """Scores of a generation's units: tokens for ``paper``, words for ``released``.

    Attributes:
        spans: [start, end) of each unit in the generation's text.
        tokens: indices of each unit's tokens.
        scores: (units,) float64, S after the semantic filter: 0 for excluded units.
        entropies: (units,) H, nats.
        attention: (units,) a_max, scaled within its sentence for ``released``.
        content: (units,) bool, the semantic filter s.
        sentences: [start, end) of each sentence of the text.
    """

    variant: Variant
    spans: tuple[tuple[int, int], ...]
    tokens: tuple[tuple[int, ...], ...]
    scores: np.ndarray
    entropies: np.ndarray
    attention: np.ndarray
    content: np.ndarray
    sentences: tuple[tuple[int, int], ...]

    def max(self, skip: int = 0) -> float:
        """Return the highest score after the first ``skip`` units; 0 if none is left."""
        return float(self.scores[skip:].max(initial=0.0))

    def hits(self, threshold: float, skip: int = 0) -> tuple[int, ...]:
        """List the units after the first ``skip`` that fire, in textual order.

        For ``paper`` these are all with S > threshold, for ``released`` those of the first sentence that has
        any; excluded units never fire.
        """
        over = [i for i in np.flatnonzero((self.scores > threshold) & self.content).tolist() if i >= skip]
        if self.variant == "paper" or not over:
            return tuple(over)
        first = self.sentence(over[0])
        return tuple(i for i in over if self.sentence(i) == first)

    def sentence(self, unit: int) -> int:
        """Return the index of the sentence in which a unit begins; white space counts to the earlier one."""
        start, end = self.spans[unit]
        begins = [s for s, _ in self.sentences]
        return max(0, int(np.searchsorted(begins, max(start, end - 1), side="right")) - 1)

    def per_token(self, count: int) -> np.ndarray:
        """Score each token by its unit, (count,): by the higher of two, 0 in none."""
        result = np.zeros(count)
        for unit, tokens in enumerate(self.tokens):
            for token in tokens:
                result[token] = max(result[token], self.scores[unit])
        return result


def rind_scores(
    generation: Generation, variant: Variant = "released", *, attention_alone: AttentionRows | None = None
) -> RindScores:
    """Score every unit of a generation by RIND.

    Args:
        generation: recorded with ``Needs(attention=True)`` for ``paper``.
        variant: ``paper``: attention within the whole context, mean over heads, maximum over the later
            tokens, per token, stop words (spaCy's) filtered out. ``released``: attention over the generated
            tokens alone, maximum including the token itself, mean over heads, as a share of the sentence's
            times its number of words, per word (attention summed, entropy averaged over tokens), content
            words only.
        attention_alone: from ``CausalLM.attention_alone``; for ``released``.

    Raises:
        UserError: unknown variant, or the attention it needs was not recorded.
        RunError: text and tokens do not align, or a score is not finite.
    """
    if variant not in ("paper", "released"):
        raise UserError(f"variant={variant} is unknown; choose paper or released", "unknown-choice")
    units = _paper(generation) if variant == "paper" else _released(generation, attention_alone)
    scores = np.where(units["content"], units["entropies"] * units["attention"], 0.0)
    for unit in np.flatnonzero(~np.isfinite(scores)).tolist():
        start, end = units["spans"][unit]
        raise RunError(f"RIND of {generation.text[start:end]!r} is {scores[unit]}")
    return RindScores(variant, scores=scores, **units)


def trend_scores(generation: Generation) -> RindScores:
    """Score every word of a generation by the trend of entropy (ETC, Li et al., AAAI 2026, released code).

    H is the highest entropy of a word's tokens. Among content words, d1 = H - H' and d2 = d1 - d1' are
    differences to the last word before with any, and m = a d2 + (1 - a) d2' smooths them, where
    a = 0.9 + 0.1 |d2' - mean| / (|d2 - mean| + |d2' - mean|) and the mean is that of all d2 so far. The score
    is m times the highest attention that the word pays to a word of the text, within the whole context, as a
    share of its sentence's times its number of words; it is below 0 where entropy falls.
    UserError where attention was not recorded.
    """
    if generation.attention is None:
        raise UserError("ETC needs attention; generate with Needs(attention=True)", "missing-value")
    text, units = generation.text, words(generation.text, generation.offsets)
    rows = [generation.attention.rows[1:][list(w.tokens)].mean(axis=0, dtype=np.float64) for w in units]
    first = len(generation.prompt_ids)
    most = [max(row[first:][list(w.tokens)].sum() for w in units) / row.sum() for row in rows]
    entropies = np.array([generation.entropies[list(w.tokens)].max() for w in units], dtype=np.float64)
    content = np.array(is_content(text, [w.cut(text) for w in units]), dtype=bool)
    trend = np.zeros(len(units))
    trend[content] = _trend(entropies[content])
    fields = _of_words(text, units, most)
    scores = trend * fields["attention"]
    return RindScores("released", scores=scores, entropies=entropies, content=content, **fields)


def _trend(entropies: np.ndarray) -> np.ndarray:
    """Smooth the second differences (n,) of content words' entropies (n,), 0 where there is none."""
    trend, first, total, count, before = np.zeros(len(entropies)), 0.0, 0.0, 0, 0.0
    for i, rise in enumerate(np.diff(entropies), 1):
        second = rise - first if first else 0.0
        first = rise or first
        if second:
            total, count = total + second, count + 1
            now, then = abs(second - total / count), abs(before - total / count)
            weight = 0.9 + 0.1 * (then / (now + then) if now + then else 1.0)
            trend[i], before = weight * second + (1 - weight) * before, second
    return trend


def _paper(generation: Generation) -> dict[str, Any]:
    if generation.attention is None:
        problem = "variant=paper of RIND needs attention; generate with Needs(attention=True)"
        raise UserError(problem, "missing-value")
    count, prompt = len(generation.token_ids), len(generation.prompt_ids)
    among = generation.attention.rows[1:, prompt:].astype(np.float64)  # (n, n): of token j on token i
    attention = np.tril(among, k=-1).max(axis=0, initial=0.0)  # over j > i; nothing follows the last token
    content = np.zeros(count, dtype=bool)
    for word in words(generation.text, generation.offsets):
        if not is_stop_word(word.cut(generation.text)):
            content[list(word.tokens)] = True
    return {
        "spans": generation.offsets, "tokens": tuple((i,) for i in range(count)),
        "entropies": generation.entropies.astype(np.float64), "attention": attention, "content": content,
        "sentences": tuple(split_sentences(generation.text)),
    }  # fmt: skip


def _released(generation: Generation, alone: AttentionRows | None) -> dict[str, Any]:
    if alone is None:
        problem = "variant=released of RIND needs attention_alone; see CausalLM.attention_alone"
        raise UserError(problem, "missing-value")
    if (given := len(alone.column_max)) != (count := len(generation.token_ids)):
        raise RunError(f"attention_alone has {given} tokens, the generation has {count}", "mismatch")
    text, units = generation.text, words(generation.text, generation.offsets)
    sums = [alone.column_max[list(w.tokens)].sum(dtype=np.float64) for w in units]
    fields, content = _of_words(text, units, sums), list[bool]()
    for start, end in fields["sentences"]:
        content += is_content(text[start:end], [w.cut(text) for w in units if start <= w.start < end])
    entropies = np.array([generation.entropies[list(w.tokens)].mean(dtype=np.float64) for w in units])
    return {"entropies": entropies, "content": np.array(content, dtype=bool), **fields}


def _of_words(text: str, units: Sequence[Part], attention: Sequence[float]) -> dict[str, Any]:
    """Make the fields of words; attention is scaled as in DRAGIN's code, by their sentence's mean."""
    sentences, scaled = split_sentences(text), np.zeros(len(units))
    for start, end in sentences:
        inside = [i for i, word in enumerate(units) if start <= word.start < end]
        given = np.array(attention)[inside]
        scaled[inside] = given / given.sum() * len(given)
    return {
        "spans": tuple((w.start, w.end) for w in units), "tokens": tuple(w.tokens for w in units),
        "attention": scaled, "sentences": tuple(sentences),
    }  # fmt: skip
