"""What a prober says of a written text, from the scores of its tokens: the whole, and where in it.

- Heads of the tokens of entities: a span for each entity of the text, scored by its tokens.
- Heads of the state before an entity: a span for each entity, scored before its first token.
- Heads of pooled states: one span, the whole text.

The text's own score is that of its worst span. Without an entity, heads that were trained on the tokens of
whole texts score it by all of them, and heads of entities say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..entities import Recogniser, tokens_of, with_scores, written_entities
from ..online.scores import aggregate
from ..types import Generation

if TYPE_CHECKING:
    from .bank import ProbeBank


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """A part of a text.

    Attributes:
        start, end: [start, end) in the text, characters.
        score: fires above the prober's threshold.
        p_wrong: calibrated probability that it is wrong.
    """

    start: int
    end: int
    score: float
    p_wrong: float


@dataclass(frozen=True, slots=True)
class DomainDistance:
    """How far what was judged lies from the texts that the prober was trained on.

    Attributes:
        distance: about 1 within them.
        limit: of the prober.
        unlike: the distance is above the limit: scores and probabilities were never tested on such texts.
    """

    distance: float
    limit: float
    unlike: bool


@dataclass(frozen=True, slots=True)
class Assessment:
    """What a prober says of a text.

    Attributes:
        score, p_wrong: of the worst span; None where the text has none to judge.
        threshold: above which a score fires.
        fires: whether the text's does.
        token_scores: (n,) one per token: of it alone, of what would begin with it, or of the text up to
            it, as the heads read.
        token_p_wrong: (n,) the same as probabilities. Calibration is of spans and whole texts.
        spans: from left to right.
        domain: None where the prober does not know, or nothing was judged.
    """

    score: float | None
    p_wrong: float | None
    threshold: float
    fires: bool
    token_scores: tuple[float, ...]
    token_p_wrong: tuple[float, ...]
    spans: tuple[ScoredSpan, ...]
    domain: DomainDistance | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain containers, as responses carry it."""
        return asdict(self)


class Assessor:
    """Assesses texts by one prober.

    Args:
        threshold: fires above it; None is the prober's own.
    """

    def __init__(self, bank: ProbeBank, threshold: float | None = None) -> None:
        self._bank = bank
        self.threshold = float(bank.threshold if threshold is None else threshold)
        of_entities = bank.spec.pool in ("tokens", "predicting")
        self._recognise = Recogniser(bank.recogniser or "rules", quiet=True) if of_entities else None

    def __call__(
        self,
        prompt: str,
        text: str,
        offsets: Sequence[tuple[int, int]],
        scores: Sequence[float],
        *,
        accepted: str = "",
        distances: Sequence[float] | None = None,
    ) -> Assessment:
        """What the prober says of ``text``.

        Args:
            prompt: what it was written behind.
            offsets: [start, end) of each of its n tokens, characters.
            scores: (n,) of its tokens, from :class:`probers.online.scores.GrowingScores`.
            accepted: the part of the same text with which the prompt ends.
            distances: (n,) of its tokens from the prober's domain, from there as well.
        """
        values = np.asarray(scores, dtype=np.float64)
        spans, judged = self._spans(prompt, text, offsets, values, accepted)
        worst = max((span.score for span in spans), default=None)
        of_all = self._bank.aggregate is not None and self._bank.spec.position != "entity"
        if worst is None and of_all and len(values):
            assert self._bank.aggregate is not None
            judged = list(range(len(values)))
            worst = float(aggregate(values, [(0, len(values))], self._bank.aggregate)[0])
        return Assessment(
            score=worst,
            p_wrong=None if worst is None else self._probabilities([worst])[0],
            threshold=self.threshold,
            fires=worst is not None and worst > self.threshold,
            token_scores=tuple(map(float, values)),
            token_p_wrong=tuple(self._probabilities(values)),
            spans=tuple(spans),
            domain=self._distance(judged, distances),
        )

    def token_lists(
        self,
        scores: Sequence[float | None],
        offsets: Sequence[Sequence[int]],
        logprobs: Sequence[float | None],
        entropies: Sequence[float] | None = None,
    ) -> dict[str, Any]:
        """Lists of (some of) a text's tokens in a response, an entry per token.

        Args:
            scores: None for a token that was not scored.
            offsets: [start, end) in the text, characters.
            logprobs, entropies: nats.
        """
        known = self._probabilities([score or 0.0 for score in scores])
        p_wrong = [None if score is None else p for score, p in zip(scores, known, strict=True)]
        return {
            "token_scores": scores, "token_p_wrong": p_wrong, "token_offsets": offsets,
            "token_logprobs": logprobs, "token_entropies": entropies,
        }  # fmt: skip

    def response(
        self,
        prompt: str,
        text: str,
        lists: Mapping[str, Any],
        distances: Sequence[float | None] | None = None,
    ) -> dict[str, Any]:
        """Make the field ``hallucination`` of a response (docs/serving.md).

        Args:
            lists: of all tokens, from :meth:`token_lists`.
            distances: (n,) of the tokens from the prober's domain.
        """
        scores, offsets = lists["token_scores"], lists["token_offsets"]
        read = [token for token, score in enumerate(scores) if score is not None]
        far = None if distances is None else [distances[token] or 0.0 for token in read]
        assessed = self(prompt, text, [offsets[i] for i in read], [scores[i] for i in read], distances=far)
        return {**assessed.to_dict(), **lists}

    def of_generation(
        self, written: Generation, scores: Sequence[float], distances: Sequence[float] | None = None
    ) -> dict[str, Any]:
        """:meth:`response` of a generation; ``scores`` and ``distances`` are (n,) of its tokens."""
        recorded = written.offsets, written.logprobs.tolist(), written.entropies.tolist()
        lists = self.token_lists(scores, *recorded)
        return self.response(written.prompt, written.text, lists, distances)

    def _distance(self, judged: Sequence[int], distances: Sequence[float] | None) -> DomainDistance | None:
        """The mean over the tokens by which a text was judged, as the limit is of means over spans."""
        domain = self._bank.domain
        if domain is None or distances is None or not judged:
            return None
        distance = float(np.mean([distances[token] for token in judged]))
        return DomainDistance(distance, domain.limit, domain.unlike(distance))

    def _spans(
        self, prompt: str, text: str, offsets: Sequence[tuple[int, int]], values: np.ndarray, accepted: str
    ) -> tuple[list[ScoredSpan], list[int]]:
        """The spans, and the tokens whose states they were judged by."""
        if not len(values):
            return [], []
        bank = self._bank
        if self._recognise is None:
            return self._scored([(0, len(text))], [float(values[-1])]), [len(values) - 1]
        predicting = bank.spec.pool == "predicting"
        found = written_entities(
            text, self._recognise, prompt=prompt, accepted=accepted, openings=not predicting
        )
        if predicting:
            begun = with_scores(found, offsets, values)
            places = [(each.entity.start, each.entity.end) for each in begun]
            return self._scored(places, [each.score for each in begun]), [each.tokens[0] for each in begun]
        whole = [(entity, tokens_of(offsets, entity.start, entity.end)) for entity in found]
        whole = [(entity, tokens) for entity, tokens in whole if tokens]
        bounds = [(tokens[0], tokens[-1] + 1) for _, tokens in whole]
        assert bank.aggregate is not None  # heads of single tokens
        scores = aggregate(values, bounds, bank.aggregate) if bounds else np.zeros(0)
        judged = [token for _, tokens in whole for token in tokens]
        return self._scored([(entity.start, entity.end) for entity, _ in whole], scores.tolist()), judged

    def _scored(self, places: Sequence[tuple[int, int]], scores: Sequence[float]) -> list[ScoredSpan]:
        each = zip(places, scores, self._probabilities(scores), strict=True)
        return [ScoredSpan(start, end, float(score), p) for (start, end), score, p in each]

    def _probabilities(self, scores: Sequence[float] | np.ndarray) -> list[float]:
        return [float(p) for p in self._bank.probability(np.asarray(scores, dtype=np.float64))]
