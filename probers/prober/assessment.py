"""Assessment of a text by the scores of its tokens: the whole text, and its spans, also while it grows.

- Heads of the tokens of entities: a span for each entity of the text, scored by its tokens.
- Heads of the state before an entity: a span for each entity, scored before its first token.
- Heads of pooled states: one span, the whole text; or each piece of it for heads of spans, sentences
  or claims.
- Heads of the tokens of whole answers: each sentence, scored by its tokens.

The text's own score is that of its worst span. Without an entity, heads that were trained on the tokens of
whole texts score it by all of them, and heads of entities give no score. Heads of whole texts can also
judge every sentence, every token, or the text as one span: the ``unit``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from ..signals import surprise
from ..types import Generation, Span, UserError
from ..words import Recogniser, tokens_of, written_entities
from ..words.text import split_sentences
from ..words.thinking import part_at, part_of, place_in, tokens_in
from .response import DomainDistance, Response, ScoredSpan, TokenScores
from .token_scores import PIECES, Scorer, aggregate

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
#: Units judged one by one: the prober's own spans, sentences, tokens, or the text as a whole.
Unit = Literal["span", "sentence", "token", "answer"]
UNITS: tuple[str, ...] = get_args(Unit)
_PerToken: TypeAlias = Sequence[float | None]
_Pieces: TypeAlias = dict[Span, list[int]]  # their tokens


def units_of(bank: Scorer) -> tuple[str, ...]:
    """List the units that a prober can judge, its own first.

    Heads of entities were never tested on other tokens, and pooled states cover their whole unit.
    """
    spec = bank.spec
    if spec.pool == "tokens" and spec.position != "entity":
        return UNITS
    whole = spec.pool not in ("tokens", "predicting") and spec.position not in PIECES
    return ("answer",) if whole else ("span",)


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text, growing or finished, with what is known of its n tokens (UserError: lists of other lengths).

    Attributes:
        offsets: [start, end) of each token in ``text``, characters.
        scores, distances: one per token, None for a token without one; no ``distances`` without a domain.
        logprobs, entropies: one per token, nats; None if the engine returns none.
    """

    prompt: str
    text: str
    offsets: Sequence[Span] = ()
    scores: _PerToken = ()
    distances: _PerToken | None = None
    logprobs: _PerToken | None = None
    entropies: _PerToken | None = None

    def __post_init__(self) -> None:
        _check_lengths(self.offsets, **self._lists())

    @classmethod
    def of(cls, written: Generation, scores: _PerToken, distances: _PerToken | None = None) -> WrittenText:
        """Take a generation with ``scores`` and ``distances`` (n,) of its tokens."""
        records = written.logprobs.tolist(), written.entropies.tolist()
        return cls(written.prompt, written.text, written.offsets, scores, distances, *records)

    def first(self, count: int, text: str) -> WrittenText:
        """Cut the record to its first ``count`` tokens, which wrote ``text``."""
        lists: dict[str, Any] = {"offsets": self.offsets, **self._lists()}
        return replace(self, text=text, **{name: each and each[:count] for name, each in lists.items()})

    def part(self, span: Span, tokens: Sequence[int]) -> WrittenText:
        """Take characters [start, end) as a text of their own, with the ``tokens`` that wrote any of them."""
        inside, (start, end) = tokens_in(self.offsets, span, tokens), span
        lists: dict[str, Any] = {k: v and [v[i] for i in inside] for k, v in self._lists().items()}
        lists["offsets"] = [place_in(self.offsets, span, i) for i in inside]
        return replace(self, prompt=self.prompt + self.text[:start], text=self.text[start:end], **lists)

    def _lists(self) -> dict[str, _PerToken | None]:
        return {name: getattr(self, name) for name in ("scores", "distances", "logprobs", "entropies")}


def _check_lengths(offsets: Sequence[Span], **lists: _PerToken | None) -> None:
    for name, values in lists.items():
        if values is not None and len(values) != len(offsets):
            message = f"{name} has {len(values)} values for {len(offsets)} tokens: give one for each"
            raise UserError(message, "mismatch")


class Assessor:
    """Assessor of texts by one prober, which fires above ``threshold``; None means the prober's own.

    Each ``unit`` is judged by itself; None means the prober's own. UserError for one that it cannot judge.
    """

    def __init__(self, bank: Scorer, threshold: float | None = None, unit: str | None = None) -> None:
        known = units_of(bank)
        if unit is not None and unit not in known:
            message = f"unit={unit} cannot be judged by this prober: choose {' or '.join(known)}"
            raise UserError(message, "unsupported")
        self.bank, self.unit = bank, unit or known[0]
        if threshold is not None and (not isinstance(threshold, Real) or math.isnan(threshold)):
            raise UserError(f"threshold={threshold!r} must be a number")
        self.threshold = float(bank.threshold if threshold is None else threshold)
        same = self.threshold == bank.threshold and self.unit == known[0]
        self.promise = bank.promise if same else None
        spec = bank.spec
        self._pooled = spec.pool not in ("tokens", "predicting")
        self._part = part_at(spec.position)
        by_sentence = self.unit == "span" and spec.position in ("sentence", "claim", "token")
        self._sentences = by_sentence or self.unit == "sentence"
        by_entity = self.unit == "span" and not by_sentence and (not self._pooled or spec.position == "span")
        self._recognise: Recogniser | None = None  # of entities, and of the language of sentences
        if by_entity or self._sentences:
            self._recognise = Recogniser(bank.recogniser or "rules", quiet=True)

    def __call__(self, record: WrittenText) -> Response:
        """Assess a text by its worst span."""
        read = [i for i, score in enumerate(record.scores) if score is not None]
        values = np.array([record.scores[i] for i in read], dtype=np.float64)
        spans, judged = self._spans(record.prompt, record.text, [record.offsets[i] for i in read], values)
        worst = max((span.score for span in spans), default=None)
        how = self.bank.aggregate
        if worst is None and how is not None and self.bank.spec.position != "entity" and len(values):
            judged = list(range(len(values)))
            worst = float(aggregate(values, [(0, len(values))], how)[0])
        return Response(
            **self.token_scores(record).wire(), score=worst, spans=tuple(spans),
            p_wrong=None if worst is None else self._probabilities([worst])[0],
            threshold=self.threshold, fires=worst is not None and worst > self.threshold,
            domain=self._distance(record, [read[place] for place in judged]), promise=self.promise,
        )  # fmt: skip

    def token_scores(self, record: WrittenText) -> TokenScores:
        """List what is known of a text's tokens."""
        p_wrong = self._probabilities([score or 0.0 for score in record.scores])
        scored = zip(record.scores, p_wrong, strict=True)
        return TokenScores(
            token_scores=tuple(record.scores), token_offsets=tuple(record.offsets),
            token_p_wrong=tuple(None if score is None else p for score, p in scored),
            token_logprobs=None if record.logprobs is None else tuple(record.logprobs),
            token_entropies=None if record.entropies is None else tuple(record.entropies),
        )  # fmt: skip

    def _distance(self, record: WrittenText, judged: Sequence[int]) -> DomainDistance | None:
        """Average the distance over the tokens that judged a text: the limit is for means over spans."""
        domain, distances = self.bank.domain, record.distances
        if domain is None or distances is None or not judged:
            return None
        distance, surprised = float(np.mean([distances[token] or 0.0 for token in judged])), None
        known = [values for values in (record.logprobs, record.entropies) if values and None not in values]
        if domain.surprise is not None and len(known) == 2:
            surprised = surprise(*known)
        return DomainDistance(
            distance=distance, limit=domain.limit, unlike=bool(domain.unlike(distance, surprised)),
            surprise=surprised, surprise_range=domain.surprise,
        )  # fmt: skip

    def spans(
        self, prompt: str, text: str, offsets: Sequence[Span], scores: Sequence[float]
    ) -> list[ScoredSpan]:
        """Return only the spans of ``text`` after ``prompt``, of tokens that all have a score."""
        _check_lengths(offsets, scores=scores)
        return self._spans(prompt, text, offsets, np.asarray(scores, dtype=np.float64))[0]

    def _spans(
        self, prompt: str, text: str, offsets: Sequence[Span], values: np.ndarray
    ) -> tuple[list[ScoredSpan], list[int]]:
        """Find the spans, and the tokens whose states they are judged by."""
        if not len(values):
            return [], []
        how, pieces = self.bank.aggregate, self.pieces(prompt, text, offsets)
        if pieces is None and self.unit == "answer":
            pieces = {(0, len(text)): list(range(len(values)))}
        judged = None if pieces is None or self._pooled else list(range(len(values)))
        if pieces is None:
            pieces = self._entities(prompt, text, offsets, openings=how is not None)
            if how is None:  # heads of the state before an entity
                pieces = {place: tokens[:1] for place, tokens in pieces.items()}
        elif self._pooled:  # the state at the last token covers the whole piece
            pieces = {place: tokens[-1:] for place, tokens in pieces.items()}
        if judged is None:
            judged = [token for tokens in pieces.values() for token in tokens]
        each = (aggregate(values[tokens], [(0, len(tokens))], how or "max") for tokens in pieces.values())
        scores = [float(score) for (score,) in each]
        scored = zip(pieces, scores, self._probabilities(scores), strict=True)
        return [ScoredSpan(*place, score, p) for place, score, p in scored], judged

    def pieces(self, prompt: str, text: str, offsets: Sequence[Span]) -> _Pieces | None:
        """Return characters and tokens of the pieces that the prober judges alone; None: the whole text."""
        if self.unit == "token":
            return {(start, end): [token] for token, (start, end) in enumerate(offsets)}
        if self._sentences:
            assert self._recognise is not None
            return _covered(split_sentences(text, self._recognise.language), offsets)
        if self._part != "both":
            part = part_of(text, self._part)
            return _covered([] if part is None else [part], offsets)
        if self._pooled and self._recognise is not None:
            return self._entities(prompt, text, offsets, openings=True)
        return None

    def _entities(self, prompt: str, text: str, offsets: Sequence[Span], *, openings: bool) -> _Pieces:
        assert self._recognise is not None
        written = written_entities(text, self._recognise, prompt=prompt, openings=openings)
        return _covered([(entity.start, entity.end) for entity in written], offsets)

    def _probabilities(self, scores: Sequence[float] | np.ndarray) -> list[float]:
        return self.bank.probability(np.asarray(scores, dtype=np.float64)).tolist()


def _covered(places: Iterable[Span], offsets: Sequence[Span]) -> _Pieces:
    """Map places in a text to their tokens, where they have any."""
    return {place: tokens for place in places if (tokens := tokens_of(offsets, *place))}


def whole_words(text: str) -> str:
    """Return a growing text up to the end of its last whole word."""
    match = _WHOLE_WORDS.match(text)
    return match.group() if match else ""


class GrowingSpans:
    """Judge of the spans of one text after ``prompt`` while it grows, and of what may be shown before.

    A server that stops a text at the beginning of a span must not have shown any of it. Only later words tell
    where an entity or a sentence ends ("New York" may become "New York Times"), so a span is judged once
    three more words are whole, and text is shown up to the first possible unjudged span. In 250 answers of
    SmolLM2 with random scores, this rule ended the same answers at the same places as judging the whole
    answer, for entities and for sentences; it held back 22 characters of the text for entities, and 78 for
    sentences. Spans that only the whole text reveals are judged at its end.

    Attributes:
        high: the first span above the threshold of ``assess``, whose end may still move; None so far.
        sure: number of characters that may be shown.
    """

    def __init__(self, assess: Assessor, prompt: str) -> None:
        self._assess, self._prompt = assess, prompt[-_CONTEXT:]
        self._start = self._end = 0  # end of the last reading: characters, or tokens where these are judged
        self.high: ScoredSpan | None = None
        self.sure = 0

    def read(
        self, text: str, offsets: Sequence[Span], scores: Sequence[float], *, over: bool = False
    ) -> None:
        """Judge the text so far, or all if it is ``over``, by places and ``scores`` (n,) of its tokens."""
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

    def _read_words(self, text: str, offsets: Sequence[Span], scores: Sequence[float]) -> None:
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
