"""Response field ``hallucination``: one model for every engine, for finished texts, and for reading it back.

Fields that were not set are left out of the wire form: a streamed chunk has the lists of its tokens alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from .figures import Part, figure
from .risk_control import Promise

_PerToken: TypeAlias = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Characters [start, end) of a text, their score, and the calibrated probability that they are wrong."""

    start: int
    end: int
    score: float
    p_wrong: float


class Frozen(Part):
    """A part of a response."""

    def wire(self) -> dict[str, Any]:
        """Convert to plain containers, without the fields that were not set."""
        return self.model_dump(exclude_unset=True)


class DomainDistance(Frozen):
    """Distance of a text from the training texts: ``unlike`` beyond the limits of either measure.

    For such texts P(wrong) may not be a probability. The ``distance`` of the judged unit is about 1 for
    similar texts; ``surprise`` of the whole text, and the range of similar texts, are None if unknown.
    """

    distance: float
    limit: float
    unlike: bool
    surprise: float | None = None
    surprise_range: tuple[float, float] | None = None


class Acted(Frozen):
    """What ``on_high`` did: the span that was too high, tokens not returned, and the scores of all draws."""

    action: str
    span: ScoredSpan | None = None
    discarded_tokens: int = 0
    scores: tuple[float | None, ...] = ()


class TokenScores(Frozen):
    """Lists with an entry for each of n tokens: those of a whole text, or of one streamed chunk."""

    token_scores: _PerToken = figure("one per token of the text; null for a token without a score", ())
    token_p_wrong: _PerToken = figure(
        "the same as probabilities; note that calibration was done on spans and whole texts", ()
    )
    token_offsets: tuple[tuple[int, int], ...] = figure(
        "`[start, end)` of each token in the choice's text, characters", ()
    )
    token_logprobs: _PerToken | None = figure(
        "log-probability of each token in nats, of the raw distribution", None
    )
    token_entropies: _PerToken | None = figure(
        "entropy of each token's raw distribution in nats; null from vLLM, which does not return "
        "whole distributions", None
    )  # fmt: skip
    reasoning: TokenScores | None = figure(
        "the same fields for the model's thinking, which has its own offsets; left out without thinking", None
    )


class Response(TokenScores):
    """A prober's judgement of a text: that of its worst span, if there is one."""

    score: float | None = figure(
        "the score of the worst span of the text; null if the text has nothing that the prober judges", None
    )
    p_wrong: float | None = figure("the calibrated probability of `score`; null without one", None)
    threshold: float = figure("the prober's threshold, or the request's")
    fires: bool = figure("whether `score` exceeds the threshold", False)
    spans: tuple[ScoredSpan, ...] = figure(
        '`[{"start", "end", "score", "p_wrong"}]`, in characters: entities, sentences for probers of '
        "sentences, or the whole text for probers of whole answers", ()
    )  # fmt: skip
    domain: DomainDistance | None = figure(
        '`{"distance", "limit", "surprise", "surprise_range", "unlike"}`: whether the text is '
        "unlike those the prober was trained on; `p_wrong` is then not a tested probability. The distance "
        "is the mean over the judged tokens, or of the pooled state; the surprise is of the whole text, and "
        "null if the prober has no range for it or the engine returns no entropies (vLLM). Null if the "
        "prober has no domain or nothing was judged", None
    )  # fmt: skip
    promise: Promise | None = figure(
        '`{"risk", "confidence", "groups", "passing", "wrong"}` if the threshold was chosen by '
        "`threshold=risk=..` and is used: with that confidence at most the share `risk` of what does not "
        "fire is wrong, in texts like the `groups` it was chosen on; not of a text that is `unlike` them. "
        "Else null. The entry of the model in `/v1/models` has it too", None
    )  # fmt: skip
    reasoning: Response | None = figure(
        "the same fields for the model's thinking; left out without thinking", None
    )
    acted: Acted | None = figure(
        "what `on_high` did (below); null if nothing, and left out of finished texts", None
    )
    not_scored: str | None = figure(
        "why the text has no score, such as a forced tool call; left out if it has one", None
    )
