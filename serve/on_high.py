"""Actions on a score above the threshold: ``on_high`` of a request, the same on both backends.

- ``warn`` reports it in the answer's ``hallucination`` and changes nothing.
- ``stop`` ends the text at the beginning of the first such span.
- ``abstain`` replaces the text by a sentence.
- ``retry`` draws again, at most ``draws`` times in all, and returns the text with the lowest score.

Selective generation: ``probers-score`` draws the risk-coverage curve of how much is answered, and how often
that is wrong (El-Yaniv and Wiener 2010).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probers.bank.assessment import Assessor, units_of
from probers.bank.bank import Prober
from probers.online.growing_spans import GrowingSpans, ScoredSpan
from probers.types import UserError

from .errors import ApiError
from .protocol import Hallucination

#: Reason given for a text that its score ended or replaced.
FINISH = "hallucination"


@dataclass(frozen=True, slots=True)
class OnHigh:
    """Setting ``on_high`` of a request, with the assessor that decides.

    Attributes:
        action: warn, stop, abstain or retry.
        draws: most texts that retry draws for an answer.
        abstention: the sentence of abstain.
    """

    assess: Assessor
    action: str
    draws: int
    abstention: str

    @classmethod
    def of(cls, asked: Hallucination | None, bank: Prober, abstention: str, *, greedy: bool) -> OnHigh:
        """Read a request, which is ``greedy`` if every draw is the same (ApiError: it cannot be done)."""
        asked = asked or Hallucination()
        try:
            assess = Assessor(bank, asked.threshold, asked.unit)
        except UserError as error:
            raise ApiError(400, str(error), "hallucination.unit") from None
        if asked.on_high == "stop" and assess.unit == "answer":
            told = "on_high=stop needs a part of the text to stop before, and here whole answers are judged"
            units = [unit for unit in units_of(bank) if unit != "answer"]
            remedy = f"ask for unit={' or '.join(units)}" if units else "ask for abstain or retry"
            raise ApiError(400, f"{told}: {remedy}", "hallucination.on_high")
        if asked.on_high == "retry" and greedy:
            told = "on_high=retry needs a temperature above 0: at 0 every draw is the same text"
            raise ApiError(400, told, "hallucination.on_high")
        return cls(assess, asked.on_high, asked.draws, asked.abstention or abstention)

    @property
    def holds(self) -> bool:
        """Tell whether nothing may be sent before everything is decided."""
        return self.action in ("abstain", "retry")

    def growing(self, prompt: str) -> GrowingSpans | None:
        """Make a judge of a text while it grows, if that can end the text."""
        return GrowingSpans(self.assess, prompt) if self.action in ("stop", "abstain") else None

    def acted(
        self, span: ScoredSpan | None = None, *, discarded: int = 0, scores: Sequence[float | None] = ()
    ) -> dict[str, Any]:
        """Make the field ``acted``: the span that scored too high, and the tokens that are not returned."""
        told = None if span is None else asdict(span)
        return {"action": self.action, "span": told, "discarded_tokens": discarded, "scores": list(scores)}

    def abstained(
        self, choice: Mapping[str, Any], high: ScoredSpan | None, tokens: int
    ) -> dict[str, Any] | None:
        """Make the whole choice with the sentence in place of its text of so many ``tokens``.

        It is None if the score is low enough; ``high`` is the span that has ended the text before, if any.
        """
        span = high or self._worst(choice["hallucination"])
        if span is None and not choice["hallucination"]["fires"]:
            return None
        field = self.assess.response("", "", self.assess.token_lists([], [], [], []))
        said: dict[str, Any] = {"text": self.abstention}
        if "message" in choice:
            said = {"message": {**choice["message"], "content": self.abstention}}
        field |= {"acted": self.acted(span, discarded=tokens)}
        return {**choice, **said, "finish_reason": FINISH, "logprobs": None, "hallucination": field}

    def chosen(
        self, fields: Sequence[Mapping[str, Any] | None], tokens: Sequence[int]
    ) -> tuple[int, dict[str, Any] | None]:
        """Choose the draw of ``retry`` that is returned, by its place, and make the field ``acted``.

        ``fields`` are those of all draws, None for a draw that is not scored, and ``tokens`` their numbers of
        tokens. The first draw is returned, with None as ``acted``, if it is the only one or its score is low
        enough. A draw without anything to judge is the best possible.
        """
        first = fields[0]
        if len(fields) == 1 or first is None or not first["fires"]:
            return 0, None
        scores = [None if field is None else field["score"] for field in fields]
        known = [i for i, field in enumerate(fields) if field is not None]
        place = min(known, key=[float("-inf") if score is None else score for score in scores].__getitem__)
        discarded = sum(tokens) - tokens[place]
        return place, self.acted(self._worst(first), discarded=discarded, scores=scores)

    def _worst(self, told: Mapping[str, Any]) -> ScoredSpan | None:
        """Find the worst span of an answer's ``hallucination``, if it is above the threshold."""
        above = [ScoredSpan(**span) for span in told["spans"] if span["score"] > self.assess.threshold]
        return max(above, key=lambda span: span.score, default=None)


def headers(choices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Summarise a whole answer for its headers: the choice with the highest score, and the action taken."""
    fields = [field for choice in choices if (field := choice.get("hallucination"))]
    if not fields:
        return {}
    worst = max(fields, key=lambda field: float("-inf") if field["score"] is None else field["score"])
    acted = [field["acted"]["action"] for field in fields if field.get("acted")]
    told = {"fires": str(any(field["fires"] for field in fields)).lower(), "action": (acted or ["none"])[0]}
    if worst["score"] is not None:
        told |= {"score": f"{worst['score']:.6g}", "p-wrong": f"{worst['p_wrong']:.6g}"}
    return {f"X-Hallucination-{name.title()}": value for name, value in told.items()}
