"""A prober's judgement of a text: the response of every engine, and the text with it.

:class:`Response` is the field ``hallucination``: one model for servers, finished texts, and reading it back.
It is built by :class:`.assessment.Assessor` and completed in :mod:`.scoring` (grounds, what was left out).
Fields that were not set are left out of its wire form: a streamed chunk has the lists of its tokens alone.
:class:`Scored` is a text with its response, shown as text in a terminal and coloured in a notebook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from ..signals.grounding import Ground
from ..types import count
from .figures import Part, figure
from .risk_control import Promise

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

_PerToken: TypeAlias = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ScoredSpan:
    """Characters [start, end) of a text, their score, and the calibrated probability that they are wrong."""

    start: int
    end: int
    score: float
    p_wrong: float


class DomainDistance(Part):
    """Distance of a text from the training texts: ``unlike`` beyond the limits of either measure.

    For such texts P(wrong) may not be a probability. The ``distance`` of the judged unit is about 1 for
    similar texts; ``surprise`` of the whole text, and the range of similar texts, are None if unknown.
    """

    distance: float
    limit: float
    unlike: bool
    surprise: float | None = None
    surprise_range: tuple[float, float] | None = None


class Acted(Part):
    """Action of ``on_high``: the span that was too high, tokens not returned, and the scores of all draws."""

    action: str
    span: ScoredSpan | None = None
    discarded_tokens: int = 0
    scores: tuple[float | None, ...] = ()


class Revised(Part):
    """A token whose score has changed after its chunk was sent, by its place among the text's tokens."""

    token: int
    score: float | None
    p_wrong: float | None


class TokenScores(Part):
    """Lists with an entry for each of n tokens: those of a whole text, or of one streamed chunk."""

    token_scores: _PerToken = figure("one per token of the text; null for a token without a score", ())
    token_p_wrong: _PerToken = figure(
        "the same as probabilities, but calibrated on spans and whole texts", ()
    )
    token_offsets: tuple[tuple[int, int], ...] = figure(
        "`[start, end)` of each token in the choice's text, characters (Unicode code points)", ()
    )
    token_logprobs: _PerToken | None = figure(
        "log-probability of each token in nats, of the raw distribution", None
    )
    token_entropies: _PerToken | None = figure(
        "entropy of each token's raw distribution in nats; null from vLLM", None
    )
    revised: tuple[Revised, ...] = figure(
        '`[{"token", "score", "p_wrong"}]` in the last chunk of a stream: new scores of tokens of earlier '
        "chunks, by their place from 0; left out if there are none", ()
    )  # fmt: skip
    reasoning: TokenScores | None = figure(
        "the same fields for the model's thinking, which has its own offsets; left out without thinking", None
    )

    def wire(self) -> dict[str, Any]:
        """Convert to plain containers, without the fields that were not set."""
        return self.model_dump(exclude_unset=True)

    def since(self, sent: Sequence[float | None]) -> Self:
        """Leave out the first tokens, ``sent`` before with these scores; name those with others now."""
        if not sent:
            return self
        now = enumerate(zip(sent, self.token_scores, self.token_p_wrong, strict=False))
        lists = {name: getattr(self, name) for name in self.model_fields_set if name.startswith("token_")}
        update: dict[str, Any] = {name: each and each[len(sent) :] for name, each in lists.items()}
        if changed := [(i, score, p) for i, (before, score, p) in now if score != before]:
            update["revised"] = tuple(Revised(token=i, score=score, p_wrong=p) for i, score, p in changed)
        return self.model_copy(update=update)


class Response(TokenScores):
    """A prober's judgement of a text: that of its worst span, if there is one."""

    score: float | None = figure(
        "the score of the worst span of the text; null if the text has nothing that the prober judges", None
    )
    p_wrong: float | None = figure("the calibrated probability of `score`; null without one", None)
    threshold: float = figure("the prober's threshold, or the request's")
    fires: bool = figure("whether `score` exceeds the threshold; false where nothing was judged", False)
    spans: tuple[ScoredSpan, ...] = figure(
        '`[{"start", "end", "score", "p_wrong"}]`, in characters: entities, sentences for probers of '
        "sentences, or the whole text for probers of whole answers", ()
    )  # fmt: skip
    domain: DomainDistance | None = figure(
        '`{"distance", "limit", "surprise", "surprise_range", "unlike"}`: whether the text is '
        "unlike those the prober was trained on; `p_wrong` is then not a tested probability. The distance "
        "is the mean over the judged tokens, or of the pooled state. The surprise is of the whole text, and "
        "null if the prober has no range for it or the engine returns no entropies (vLLM). Null if the "
        "prober has no domain or nothing was judged", None
    )  # fmt: skip
    grounds: tuple[Ground, ...] | None = figure(
        '`[{"start", "end", "source", "passage", "share", "evidence"}]` of each span, for probers that read '
        "passages: whether it rests on a `passage`, on the model's `memory` or on `neither`, and the passage "
        "that it points to; empty if the prompt shows no passage, and null from other probers", None
    )  # fmt: skip
    left_out: tuple[int, ...] = figure(
        "numbers, from 1, of the passages that did not fit into the model's context; left out if there are "
        "none", ()
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


#: Characters of a text in its repr.
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class ScoredPart(ScoredSpan):
    """A judged part with its text, and what it rests on for probers that read passages."""

    text: str
    fires: bool
    ground: Ground | None = None

    @property
    def origin(self) -> str:
        """Name what it rests on; "" where that is not known."""
        if self.ground is None:
            return ""
        names = {"passage": f"passage {self.ground.passage}", "memory": "from memory"}
        return names.get(self.ground.source, "unsupported")

    def __str__(self) -> str:
        origin = f"  ({self.origin})" if self.origin else ""
        return f"{self.p_wrong:4.0%}  {self.text}{origin}"


@dataclass(frozen=True, slots=True)
class Scored:
    """A text, the prompt before it, and a prober's judgement of it; None for a text that was too long.

    Attributes:
        id: the text's own id, or its place ("row 3").
        response: everything that is known of each token and part, as the server responds with it.
    """

    id: str
    prompt: str
    text: str
    response: Response | None

    @property
    def p_wrong(self) -> float | None:
        """Calibrated P(wrong) of the text, that of its worst part; None where nothing was judged."""
        return None if self.response is None else self.response.p_wrong

    @property
    def score(self) -> float | None:
        """Score of the text, which fires above the threshold; None where nothing was judged."""
        return None if self.response is None else self.response.score

    @property
    def fires(self) -> bool:
        """True where the score is above the threshold."""
        return self.response is not None and self.response.fires

    @property
    def domain(self) -> DomainDistance | None:
        """Distance from the prober's training texts; P(wrong) is no tested probability where ``unlike``."""
        return None if self.response is None else self.response.domain

    @property
    def spans(self) -> tuple[ScoredPart, ...]:
        """Judged parts, from left to right."""
        if self.response is None:
            return ()
        threshold = self.response.threshold
        grounds = {(each.start, each.end): each for each in self.response.grounds or ()}
        return tuple(
            ScoredPart(
                s.start, s.end, s.score, s.p_wrong, self.text[s.start : s.end], s.score > threshold,
                grounds.get((s.start, s.end)),
            )
            for s in self.response.spans
        )  # fmt: skip

    @property
    def warning(self) -> str:
        """Sentence on a text that is unlike the training texts or could not be judged; "" for others."""
        if self.response is None:
            return "not judged: too long for the model's context"
        if self.response.not_scored:
            return f"not judged: {self.response.not_scored}"
        if self.domain is None or not self.domain.unlike:
            return ""
        return "unlike the texts that the prober was trained on: P(wrong) is no tested probability"

    def to_dict(self) -> dict[str, Any]:
        """Return a row for a table, with its parts as a list."""
        unlike = None if self.domain is None else self.domain.unlike
        parts = [
            {"text": s.text, "start": s.start, "end": s.end, "p_wrong": s.p_wrong}
            | ({} if s.ground is None else {"source": s.ground.source, "passage": s.ground.passage})
            for s in self.spans
        ]
        return {
            "id": self.id, "prompt": self.prompt, "text": self.text, "p_wrong": self.p_wrong,
            "fires": self.fires, "unlike": unlike, "spans": parts,
        }  # fmt: skip

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}…"
        p_wrong = "not judged" if self.p_wrong is None else f"p_wrong={self.p_wrong:.2f}"
        return f"Scored({text!r}, {p_wrong}, fires={self.fires}, spans={len(self.spans)})"

    def __str__(self) -> str:
        """Mark the parts that fire as ``[part 96%]``; the text's own P(wrong) comes first."""
        text = self._marked(str, lambda part, chance: f"[{part.text} {chance}]", firing=True)
        chance = "   –" if self.p_wrong is None else f"{self.p_wrong:4.0%}"
        note = f"  ({self.warning})" if self.warning else ""
        return f"{chance}  {text}{note}"

    def _repr_html_(self) -> str:
        def mark(part: ScoredPart, chance: str) -> str:
            line = "border-bottom:2px solid #b3261e;" if part.fires else ""
            style = f"background:rgba(217,72,47,{0.6 * part.p_wrong:.2f});{line}"
            return f'<span style="{style}" title="P(wrong) {chance}">{escape(part.text)}</span>'

        chance = "not judged" if self.p_wrong is None else f"P(wrong) {self.p_wrong:.0%}"
        note = f"<br><i>{escape(self.warning)}</i>" if self.warning else ""
        text = self._marked(escape, mark)
        return f'<div style="white-space:pre-wrap">{text}</div><small>{chance}{note}</small>'

    def _marked(
        self, plain: Callable[[str], str], mark: Callable[[ScoredPart, str], str], *, firing: bool = False
    ) -> str:
        """Mark the parts, or those that are ``firing``, which do not overlap and are not the whole text."""
        shown, end = "", 0
        for part in sorted(self.spans, key=lambda part: part.start):
            whole = (part.start, part.end) == (0, len(self.text))
            if part.start >= end and not whole and (part.fires or not firing):
                chance = f"{part.p_wrong:.0%}{', ' if part.origin else ''}{part.origin}"
                shown += plain(self.text[end : part.start]) + mark(part, chance)
                end = part.end
        return shown + plain(self.text[end:])


class ScoredTexts(list[Scored]):
    """Scored texts in the order of the rows, with ``frame`` for pandas; a notebook shows them coloured."""

    @property
    def frame(self) -> pd.DataFrame:
        """Table with a row for each text: id, prompt, text, p_wrong, fires, unlike, spans."""
        import pandas as pd

        return pd.DataFrame([each.to_dict() for each in self])

    def __repr__(self) -> str:
        fires = sum(each.fires for each in self)
        return f"ScoredTexts({count(len(self), 'text')}, of which {fires} fire)"

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "<hr>".join(each._repr_html_() for each in self)
