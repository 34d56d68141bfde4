"""Actions on a score above the threshold: ``on_high`` of a request, the same on both backends.

- ``warn`` reports it in the answer's ``hallucination`` and changes nothing.
- ``stop`` ends the text at the beginning of the first such span.
- ``abstain`` replaces the text by a sentence.
- ``retry`` draws again, at most ``draws`` times in all, and returns the text with the lowest score.

Selective generation: ``probers-score`` draws the risk-coverage curve of how much is answered, and how often
that is wrong (El-Yaniv and Wiener 2010).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from probers.prober.assessment import Assessor, GrowingSpans, WrittenText, units_of
from probers.prober.prober import Prober
from probers.prober.response import Acted, Response, ScoredSpan, TokenScores
from probers.types import Span, UserError

from .http import ApiError
from .protocol import Hallucination

Scores = TypeVar("Scores", bound=TokenScores)

#: Reason given for a text that its score ended or replaced: OpenAI's, since strict clients know no other.
FINISH = "content_filter"


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
    def of(cls, wanted: Hallucination | None, bank: Prober, abstention: str, *, greedy: bool) -> OnHigh:
        """Read a request, which is ``greedy`` if every draw is the same (ApiError: it cannot be done)."""
        wanted = wanted or Hallucination()
        try:
            assess = Assessor(bank, wanted.threshold, wanted.unit)
        except UserError as error:
            raise ApiError(400, str(error), "hallucination.unit") from None
        if wanted.on_high == "stop" and assess.unit == "answer":
            why = "on_high=stop needs a part of the text to stop before, and here whole answers are judged"
            units = [unit for unit in units_of(bank) if unit != "answer"]
            remedy = f"ask for unit={' or '.join(units)}" if units else "ask for abstain or retry"
            raise ApiError(400, f"{why}: {remedy}", "hallucination.on_high")
        if wanted.on_high == "retry" and greedy:
            why = "on_high=retry needs a temperature above 0: at 0 every draw is the same text"
            raise ApiError(400, why, "hallucination.on_high")
        return cls(assess, wanted.on_high, wanted.draws, wanted.abstention or abstention)

    @property
    def holds(self) -> bool:
        """Tell whether nothing may be sent before everything is decided."""
        return self.action in ("abstain", "retry")

    def nothing(self, **fields: Any) -> dict[str, Any]:
        """Make the field of a text without tokens, with further fields."""
        return self.assess(WrittenText("", "", logprobs=())).model_copy(update=fields).wire()

    def abstained(
        self, choice: Mapping[str, Any], high: ScoredSpan | None, tokens: int
    ) -> dict[str, Any] | None:
        """Make the whole choice with the sentence in place of its text of so many ``tokens``.

        It is None with another action or a score that is low enough; ``high`` is the span that has ended the
        text before, if any.
        """
        if self.action != "abstain":
            return None
        response = Response.model_validate(choice["hallucination"])
        span = high or self._worst(response)
        if span is None and not response.fires:
            return None
        text: dict[str, Any] = {"text": self.abstention}
        if "message" in choice:
            text = {"message": {**choice["message"], "content": self.abstention}}
        acted = Acted(action=self.action, span=span, discarded_tokens=tokens)
        field = self.nothing(token_entropies=(), acted=acted)
        return {**choice, **text, "finish_reason": FINISH, "logprobs": None, "hallucination": field}

    def chosen(self, draws: Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> tuple[int, dict[str, Any]]:
        """Choose the draw of ``retry`` that is returned; return its place, and it with the field ``acted``.

        ``draws`` are whole choices, some perhaps without scores, and ``tokens`` their numbers of tokens. The
        first is returned as it is if it is the only one or its score is low enough. A draw without
        anything to judge is the best possible.
        """
        fields = [draw["hallucination"] and Response.model_validate(draw["hallucination"]) for draw in draws]
        first = fields[0]
        if len(fields) == 1 or first is None or not first.fires:
            return 0, dict(draws[0])
        scores: list[Any] = [None if field is None else field.score for field in fields]
        scored = [i for i, field in enumerate(fields) if field is not None]
        place = min(scored, key=lambda i: float("-inf") if scores[i] is None else scores[i])
        discarded, worst = sum(tokens) - tokens[place], self._worst(first)
        acted = Acted(action=self.action, span=worst, discarded_tokens=discarded, scores=tuple(scores))
        field = fields[place].model_copy(update={"acted": acted}).wire()
        return place, {**draws[place], "hallucination": field}

    def _worst(self, response: Response) -> ScoredSpan | None:
        """Find the worst span of an answer, if it is above the threshold."""
        above = [span for span in response.spans if span.score > self.assess.threshold]
        return max(above, key=lambda span: span.score, default=None)


class Judgement:
    """Judgement of one text of a response while it grows: the same for every engine that writes it.

    Methods take the text so far as a ``record``, and in it the characters of the reasoning (``thought``) and
    of the answer (``answer``), None for one that is not there. Without ``acting`` nothing is judged.
    """

    def __init__(self, acting: OnHigh | None, prompt: str) -> None:
        self._acting, self._growing = acting, None
        self._sent: tuple[list[float | None], list[float | None]] = [], []  # scores: of answer, of reasoning
        if acting is not None and acting.action in ("stop", "abstain"):
            self._growing = GrowingSpans(acting.assess, prompt)

    @property
    def high(self) -> ScoredSpan | None:
        """Span that has ended the text."""
        return None if self._growing is None else self._growing.high

    @property
    def sure(self) -> int | None:
        """Number of characters of the answer that may be sent; None is all of them."""
        return None if self._growing is None else self._growing.sure

    def read(self, record: WrittenText, answer: Span | None, tokens: int, *, over: bool = False) -> None:
        """Judge the answer in the first ``tokens``."""
        if self._growing is None or answer is None or self.high is not None:
            return
        part = record.part(answer, range(tokens))
        known = [i for i, score in enumerate(part.scores) if score is not None]
        scores = [part.scores[i] or 0.0 for i in known]
        self._growing.read(part.text, [part.offsets[i] for i in known], scores, over=over)

    def cut(self, answer: Span | None) -> Span | None:
        """Return the characters of the answer before the span that has ended it."""
        return answer if answer is None or self.high is None else (answer[0], answer[0] + self.high.start)

    def returned(self, record: WrittenText, answer: Span | None, tokens: int) -> int:
        """Count those of the first ``tokens`` whose text is returned."""
        if self.high is None or (cut := self.cut(answer)) is None:
            return tokens
        return sum(end <= cut[1] for _, end in record.offsets[:tokens])

    def chunk(
        self, record: WrittenText, thought: Span | None, answer: Span | None, tokens: Sequence[int]
    ) -> dict[str, Any]:
        """Make the field of a chunk: the lists of its tokens."""
        assert self._acting is not None
        scores = _both(self._acting.assess.token_scores, record, (thought, answer), tokens)
        for sent, each in zip(self._sent, (scores, scores.reasoning), strict=True):
            sent += each.token_scores if each else ()
        return scores.wire()

    def whole(
        self, record: WrittenText, thought: Span | None, answer: Span | None, tokens: int, *, written: int
    ) -> dict[str, Any]:
        """Make the field of a finished text, of which the first ``tokens`` of ``written`` are returned.

        Its lists begin after the tokens that chunks had.
        """
        assert self._acting is not None
        response = _both(self._acting.assess, record, (thought, self.cut(answer)), range(tokens))
        answers, thoughts = self._sent
        update: dict[str, Any] = {"acted": None}
        if self.high is not None:
            discarded, action = written - tokens, self._acting.action
            update["acted"] = Acted(action=action, span=self.high, discarded_tokens=discarded)
        if response.reasoning is not None:
            update["reasoning"] = response.reasoning.since(thoughts)
        return response.since(answers).model_copy(update=update).wire()


def _both(
    assess: Callable[[WrittenText], Scores], record: WrittenText, parts: Sequence[Span | None],
    tokens: Sequence[int],
) -> Scores:  # fmt: skip
    """Assess the answer, and the reasoning before it if there is one."""
    thought, span = parts
    answer = assess(record.part(span or (len(record.text),) * 2, tokens))
    if thought is None:
        return answer
    return answer.model_copy(update={"reasoning": assess(record.part(thought, tokens))})


def headers(choices: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Summarise a whole answer for its headers: the choice with the highest score, and the action taken."""
    fields = [field for choice in choices if (field := choice.get("hallucination"))]
    if not fields:
        return {}
    worst = max(fields, key=lambda field: float("-inf") if field["score"] is None else field["score"])
    acted = [field["acted"]["action"] for field in fields if field.get("acted")]
    values = {"fires": str(any(field["fires"] for field in fields)).lower(), "action": (acted or ["none"])[0]}
    if worst["score"] is not None:
        values |= {"score": f"{worst['score']:.6g}", "p-wrong": f"{worst['p_wrong']:.6g}"}
    return {f"X-Hallucination-{name.title()}": value for name, value in values.items()}
