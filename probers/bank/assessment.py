"""Assessment of a finished text by the scores of its tokens: the whole text, and its spans.

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

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from ..entities import Recogniser, tokens_of, with_scores, written_entities
from ..online.growing_spans import ScoredSpan
from ..online.scores import PIECES, Scorer, aggregate
from ..text import ENGLISH, split_sentences
from ..thinking import part_at, part_of
from ..types import Generation, UserError
from ..uncertainty import surprise
from .domain import Domain
from .risk_control import Promise


class Bank(Scorer, Protocol):
    """The part of :class:`probers.bank.bank.Prober` that this module uses."""

    @property
    def promise(self) -> Promise | None: ...
    @property
    def domain(self) -> Domain | None: ...


#: Units judged one by one: the prober's own spans, sentences, tokens, or the text as a whole.
Unit = Literal["span", "sentence", "token", "answer"]
UNITS: tuple[str, ...] = get_args(Unit)


def units_of(bank: Bank) -> tuple[str, ...]:
    """List the units that a prober can judge, its own first.

    Only heads of the tokens of whole texts have other units than their own: heads of entities were never
    tested on other tokens, and pooled states cover their whole unit.
    """
    spec = bank.spec
    if spec.pool == "tokens" and spec.position != "entity":
        return UNITS
    whole = spec.pool not in ("tokens", "predicting") and spec.position not in PIECES
    return ("answer",) if whole else ("span",)


@dataclass(frozen=True, slots=True)
class DomainDistance:
    """Distance of a text from the training texts: ``unlike`` beyond the limits of either measure.

    For such texts P(wrong) may not be a probability. The ``distance`` of the judged unit is about 1 for
    similar texts; ``surprise`` of the whole text, and the range of similar texts, are None if unknown.
    """

    distance: float
    limit: float
    unlike: bool
    surprise: float | None = None
    surprise_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Assessment:
    """A prober's judgement of a text: that of its worst span, if there is one.

    ``token_scores`` and ``token_p_wrong`` (n,) judge each token alone, what would begin with it, or
    the text up to it, as the heads read; calibration is for spans and whole texts. ``promise`` is the
    threshold's, and does not hold for texts that are ``domain.unlike`` those it was chosen on.
    """

    score: float | None
    p_wrong: float | None
    threshold: float
    fires: bool
    token_scores: tuple[float, ...]
    token_p_wrong: tuple[float, ...]
    spans: tuple[ScoredSpan, ...]
    domain: DomainDistance | None = None
    promise: Promise | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain containers for a response."""
        return asdict(self)


class Assessor:
    """Assessor of texts by one prober, which fires above ``threshold``; None means the prober's own.

    Each ``unit`` is judged by itself; None means the prober's own. UserError for one that it cannot judge.
    """

    def __init__(self, bank: Bank, threshold: float | None = None, unit: str | None = None) -> None:
        known = units_of(bank)
        if unit is not None and unit not in known:
            told = f"unit={unit} cannot be judged by this prober of {bank.spec.position} states"
            raise UserError(f"{told}: choose {' or '.join(known)}", "unsupported")
        self._bank, self.unit = bank, unit or known[0]
        self.threshold = float(bank.threshold if threshold is None else threshold)
        same = self.threshold == bank.threshold and self.unit == known[0]
        self.promise = bank.promise if same else None
        spec = bank.spec
        self._pooled = spec.pool not in ("tokens", "predicting")
        self._part = part_at(spec.position)
        own = self.unit == "span" and spec.position in ("sentence", "claim", "token")
        self._sentences = own or self.unit == "sentence"
        of_entities = self.unit == "span" and not own and (not self._pooled or spec.position == "span")
        recognise = None
        if of_entities or (self._sentences and bank.recogniser):  # it also tells the language
            recognise = Recogniser(bank.recogniser or "rules", quiet=True)
        self._recognise = recognise if of_entities else None
        self._borders = ENGLISH if recognise is None else recognise.language.borders

    def __call__(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]], scores: Sequence[float], *,
        distances: Sequence[float] | None = None, surprised: float | None = None,
    ) -> Assessment:  # fmt: skip
        """Assess ``text``, written after ``prompt``.

        ``offsets`` are [start, end) of its n tokens in characters; ``scores`` and ``distances`` (n,) are from
        :class:`probers.online.scores.GrowingScores`; ``surprised`` is :func:`probers.uncertainty.surprise`
        of the text, None if unknown.
        """
        values = np.asarray(scores, dtype=np.float64)
        spans, judged = self._spans(prompt, text, offsets, values)
        worst = max((span.score for span in spans), default=None)
        how = self._bank.aggregate
        if worst is None and how is not None and self._bank.spec.position != "entity" and len(values):
            judged = list(range(len(values)))
            worst = float(aggregate(values, [(0, len(values))], how)[0])
        return Assessment(
            score=worst,
            p_wrong=None if worst is None else self._probabilities([worst])[0],
            threshold=self.threshold,
            fires=worst is not None and worst > self.threshold,
            token_scores=tuple(values.tolist()),
            token_p_wrong=tuple(self._probabilities(values)),
            spans=tuple(spans),
            domain=self._distance(judged, distances, surprised),
            promise=self.promise,
        )

    def token_lists(
        self, scores: Sequence[float | None], offsets: Sequence[Sequence[int]],
        logprobs: Sequence[float | None], entropies: Sequence[float] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """List (some of) a text's tokens for a response; a token without a score has None.

        ``offsets`` are [start, end) in the text, in characters; log-probabilities and entropies are in nats.
        """
        known = self._probabilities([score or 0.0 for score in scores])
        p_wrong = [None if score is None else p for score, p in zip(scores, known, strict=True)]
        return {
            "token_scores": scores, "token_p_wrong": p_wrong, "token_offsets": offsets,
            "token_logprobs": logprobs, "token_entropies": entropies,
        }  # fmt: skip

    def response(
        self, prompt: str, text: str, lists: Mapping[str, Any],
        distances: Sequence[float | None] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Make the field ``hallucination`` of a response (docs/serving.md).

        ``lists`` covers all n tokens, from :meth:`token_lists`; ``distances`` (n,) are theirs, if known.
        """
        scores, offsets = lists["token_scores"], lists["token_offsets"]
        read = [token for token, score in enumerate(scores) if score is not None]
        far = None if distances is None else [distances[token] or 0.0 for token in read]
        assessed = self(
            prompt, text, [offsets[i] for i in read], [scores[i] for i in read],
            distances=far, surprised=_surprise(lists["token_logprobs"], lists["token_entropies"]),
        )  # fmt: skip
        return {**assessed.to_dict(), **lists}

    def of_generation(
        self,
        written: Generation,
        scores: Sequence[float | None],
        distances: Sequence[float | None] | None = None,
    ) -> dict[str, Any]:
        """Make the :meth:`response` for a generation; ``scores`` and ``distances`` are (n,) of its tokens."""
        recorded = written.offsets, written.logprobs.tolist(), written.entropies.tolist()
        return self.response(written.prompt, written.text, self.token_lists(scores, *recorded), distances)

    def _distance(
        self, judged: Sequence[int], distances: Sequence[float] | None, surprised: float | None
    ) -> DomainDistance | None:
        """Average the distance over the tokens that judged a text: the limit is for means over spans."""
        domain = self._bank.domain
        if domain is None or distances is None or not judged:
            return None
        distance = float(np.mean([distances[token] for token in judged]))
        surprised = None if domain.surprise is None else surprised
        unlike = domain.unlike(distance, surprised)
        return DomainDistance(distance, domain.limit, unlike, surprised, domain.surprise)

    def spans(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]], scores: Sequence[float]
    ) -> list[ScoredSpan]:
        """Return only the spans of :meth:`__call__`."""
        return self._spans(prompt, text, offsets, np.asarray(scores, dtype=np.float64))[0]

    def _spans(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]], values: np.ndarray
    ) -> tuple[list[ScoredSpan], list[int]]:
        """Find the spans, and the tokens whose states they are judged by."""
        if not len(values):
            return [], []
        pieces = self.pieces(prompt, text, offsets)
        if self.unit == "answer" and self._part == "both":
            score = self._of_piece(values)
            judged = [len(values) - 1] if self._pooled else list(range(len(values)))
            return self._scored([(0, len(text))], [score]), judged
        if pieces is not None:
            spans = self._scored(list(pieces), [self._of_piece(values[tokens]) for tokens in pieces.values()])
            last = [tokens[-1] for tokens in pieces.values()]
            return spans, last if self._pooled else list(range(len(values)))
        assert self._recognise is not None
        if (how := self._bank.aggregate) is None:  # heads of the state before an entity
            begun = with_scores(written_entities(text, self._recognise, prompt=prompt), offsets, values)
            places = [(each.entity.start, each.entity.end) for each in begun]
            return self._scored(places, [each.score for each in begun]), [each.tokens[0] for each in begun]
        found = written_entities(text, self._recognise, prompt=prompt, openings=True)
        read = [(e, tokens) for e in found if (tokens := tokens_of(offsets, e.start, e.end))]
        scores = aggregate(values, [(tokens[0], tokens[-1] + 1) for _, tokens in read], how)
        spans = self._scored([(entity.start, entity.end) for entity, _ in read], scores)
        return spans, [token for _, tokens in read for token in tokens]

    def _of_piece(self, values: np.ndarray) -> float:
        """Score a piece by its tokens' scores: of pooled heads the last one, which covers all of it."""
        if self._pooled:
            return float(values[-1])
        return float(aggregate(values, [(0, len(values))], self._bank.aggregate or "max")[0])

    def pieces(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], list[int]] | None:
        """Return characters and tokens of the pieces that the prober judges alone; None: the whole text."""
        if self.unit == "token":
            return {(start, end): [token] for token, (start, end) in enumerate(offsets)}
        if self._sentences:
            places = list(split_sentences(text, self._borders))
        elif self._part != "both":
            found = part_of(text, self._part)
            places = [] if found is None else [found]
        elif self._pooled and self._recognise is not None:
            entities = written_entities(text, self._recognise, prompt=prompt, openings=True)
            places = [(each.start, each.end) for each in entities]
        else:
            return None
        return {(a, b): tokens for a, b in places if (tokens := tokens_of(offsets, a, b))}

    def _scored(
        self, places: Sequence[tuple[int, int]], scores: Sequence[float] | np.ndarray
    ) -> list[ScoredSpan]:
        each = zip(places, scores, self._probabilities(scores), strict=True)
        return [ScoredSpan(start, end, float(score), p) for (start, end), score, p in each]

    def _probabilities(self, scores: Sequence[float] | np.ndarray) -> list[float]:
        return [float(p) for p in self._bank.probability(np.asarray(scores, dtype=np.float64))]


def _surprise(logprobs: Sequence[float | None], entropies: Sequence[float] | None) -> float | None:
    """Compute the surprise of a text; None if some of its probabilities are unknown."""
    if entropies is None or not len(entropies) or any(each is None for each in (*logprobs, *entropies)):
        return None
    return surprise(logprobs, entropies)
