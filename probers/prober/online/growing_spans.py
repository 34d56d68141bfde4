"""Spans of a growing text above a threshold, and the text that may be shown before they are known.

A server that stops a text at the beginning of a span must not have shown any of it. Only later words tell
where an entity or a sentence ends ("New York" may become "New York Times"), so a span is judged once three
more words are whole, and text is shown up to the first possible unjudged span. In 250 answers of SmolLM2
with random scores, this rule ended the same answers at the same places as judging the whole answer, for
entities and for sentences; it held back 22 characters of the text for entities, and 78 for sentences. Spans
that only the whole text reveals are judged at its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...words.text import split_sentences

#: Whole words after a span that make it certain.
_AHEAD = 3
#: Number of last sentences that are read again with every word, the one being written included: the
#: recogniser would need seconds for a long text.
_SENTENCES = 3
#: Characters before them from which the recogniser knows whether a sentence begins.
_CONTEXT = 500
#: Chinese and Japanese characters are words of their own.
_CHARACTERS = r"\u3001-\u30ff\u3400-\u9fff\uff01-\uff60"
_WHOLE_WORDS = re.compile(rf".*[\s,;:!?)\]”\"{_CHARACTERS}]", re.DOTALL)
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\s{_CHARACTERS}]+")
#: An opening quotation mark without its end yet: the quotation may be a title.
_OPEN_QUOTE = re.compile(r"[“\"](?=[^\s“”\",.;:!?)][^“”\"\n]{0,120}$)")


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Characters [start, end) of a text, their score, and the calibrated probability that they are wrong."""

    start: int
    end: int
    score: float
    p_wrong: float


class Judge(Protocol):
    """The part of :class:`probers.prober.assessment.Assessor` that this module uses."""

    unit: str
    threshold: float

    def spans(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]], scores: Sequence[float], /
    ) -> list[ScoredSpan]: ...


def whole_words(text: str) -> str:
    """Return a growing text up to the end of its last whole word."""
    match = _WHOLE_WORDS.match(text)
    return match.group() if match else ""


class GrowingSpans:
    """Judge of the spans of one text after ``prompt`` while it grows.

    Attributes:
        high: the first span above the threshold of ``assess``; None so far.
        sure: number of characters that may be shown. No unjudged span begins before them.
    """

    def __init__(self, assess: Judge, prompt: str) -> None:
        self._assess, self._prompt = assess, prompt[-_CONTEXT:]
        self._start = self._end = 0  # end of the last reading: characters, or tokens where these are judged
        self.high: ScoredSpan | None = None
        self.sure = 0

    def read(
        self, text: str, offsets: Sequence[tuple[int, int]], scores: Sequence[float], *, over: bool = False
    ) -> None:
        """Judge the text so far, or all of it if it is ``over``.

        ``offsets`` are [start, end) of its n tokens in characters, and ``scores`` (n,) are theirs.
        """
        if self.high is not None:
            return
        if over:
            self._judge(self._assess.spans(self._prompt, text, offsets, scores))
            self.sure = len(text)
        elif self._assess.unit == "token":
            new, self._end = self._end, len(offsets)
            self._judge(self._assess.spans(self._prompt, text, offsets[new:], scores[new:]))
            self.sure = offsets[-1][1] if offsets else 0
        elif self._assess.unit != "answer":
            self._read_words(text, offsets, scores)
        if self.high is not None:
            self.sure = self.high.start

    def _read_words(self, text: str, offsets: Sequence[tuple[int, int]], scores: Sequence[float]) -> None:
        end = len(whole_words(text[: offsets[-1][1]])) if offsets else 0
        words = [match.start() for match in _WORD.finditer(text, self._start, end)]
        if end <= self._end or len(words) <= _AHEAD:
            return
        self._end, start, border = end, self._start, words[-_AHEAD]
        tokens = [i for i, (a, b) in enumerate(offsets) if a < end and b > start]
        places = [(max(offsets[i][0] - start, 0), offsets[i][1] - start) for i in tokens]
        before = (self._prompt + text[:start])[-_CONTEXT:]
        judged = self._assess.spans(before, text[start:end], places, [scores[i] for i in tokens])
        spans = [replace(span, start=span.start + start, end=span.end + start) for span in judged]
        self._judge([span for span in spans if span.end <= border])
        quote = _OPEN_QUOTE.search(text, start, end)
        waiting = [span.start for span in spans if span.end > border]
        self.sure = max(self.sure, min([border, *waiting, *([quote.start()] if quote else [])]))
        begun = [start + a for a, _ in split_sentences(text[start:end]) if start + a <= self.sure]
        self._start = begun[-_SENTENCES] if len(begun) >= _SENTENCES else start

    def _judge(self, spans: Sequence[ScoredSpan]) -> None:
        above = [span for span in spans if span.score > self._assess.threshold and span.start >= self.sure]
        self.high = min(above, key=lambda span: span.start, default=None)
