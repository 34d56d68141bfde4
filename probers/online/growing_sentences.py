"""Scores of texts that grow side by side, by a prober that pools every sentence separately.

A token's score is that of its sentence up to it. The start of a sentence may become certain some tokens
later; the tokens since its start are then scored again. So the score of a sentence's last token equals
that of :func:`.text_scores` in the whole text.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..types import RunError
from ..words import Recogniser
from ..words.language import ENGLISH
from ..words.text import split_sentences
from .scores import GrowingScores, Scorer


@dataclass(slots=True)
class _Text:
    """A growing text.

    Attributes:
        before, begin: numbers of the first tokens of the last two sentences.
        states: those of the tokens from ``before`` on.
        scores, distances: one per token; distances only with a domain.
    """

    before: int = 0
    begin: int = 0
    states: list[Tensor] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)


class GrowingSentences:
    """:class:`.GrowingScores` for a prober of pooled sentences (UserError: another prober)."""

    def __init__(self, bank: Scorer) -> None:
        self._scores = GrowingScores(bank, sentences=True)
        self._language = ENGLISH
        if bank.recogniser is not None:
            self._language = Recogniser(bank.recogniser, quiet=True).language
        self._texts: dict[Hashable, _Text] = {}

    def add_each(
        self, keys: Sequence[Hashable], states: Tensor, written: Sequence[tuple[str, Sequence[int]]],
        names: Sequence[str] = (),
    ) -> list[float | RunError]:  # fmt: skip
        """Take one more token of some texts, like :meth:`.GrowingScores.add_each`; return the newest scores.

        ``written`` has the texts up to that token, and the number of characters after each of their tokens.
        """
        for key, (text, ends) in zip(keys, written, strict=True):
            self._find_begin(key, self._texts.setdefault(key, _Text()), text, ends)
        found = self._scores.add_each(keys, states, names)
        for key, state, score in zip(keys, states, found, strict=True):
            if not isinstance(score, RunError):
                self._texts[key].states.append(state.clone())  # else the states of all texts would stay
                self._take(key, score)
        return found

    def _find_begin(self, key: Hashable, known: _Text, text: str, ends: Sequence[int]) -> None:
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
