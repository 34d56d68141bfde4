"""Texts that a model writes, judged, and acted on where their score is above the threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..model.causal_lm import CausalLM
from ..model.language_model import Sampling
from ..prompts import chat_text
from ..types import Generation, UserError
from .assessment import Assessor, Bank, WrittenText
from .online.scores import check_growing, text_needs, text_scores
from .response import Acted, Response, ScoredSpan
from .scored import Scored

#: What is done with a text whose score is above the threshold.
OnHigh = Literal["warn", "stop", "abstain", "retry"]


@dataclass(frozen=True, slots=True)
class Action:
    """What is done with a text whose score is above the threshold.

    Attributes:
        on_high: "warn" changes nothing; "stop" ends the text before its first such part, where whole answers
            are judged at the first token from which the text so far is above; "abstain" replaces it by a
            sentence; "retry" draws again and takes the text with the lowest score.
        draws: most texts that "retry" draws for a prompt.
        temperature, seed: of these draws.
        abstention: the sentence of "abstain".
    """

    on_high: OnHigh = "warn"
    draws: int = 3
    temperature: float = 0.7
    seed: int = 0
    abstention: str = "I am not sure."

    def __post_init__(self) -> None:
        if self.on_high not in get_args(OnHigh):
            choices = ", ".join(get_args(OnHigh))
            raise UserError(f"on_high={self.on_high} is unknown: choose {choices}", "unknown-choice")
        if self.draws < 1:
            raise UserError(f"draws={self.draws} must be at least 1")


class JudgedWriter:
    """Writer whose texts a prober judges; ``threshold`` and ``unit`` replace the prober's own.

    UserError for a prober of another model, or a unit that it cannot judge.
    """

    def __init__(
        self, lm: CausalLM, prober: Bank, action: Action, threshold: float | None, unit: str | None
    ) -> None:
        check_growing(prober, whole=True)
        prober.check_model(lm.spec)
        self._lm, self._prober, self._action = lm, prober, action
        self._assess = Assessor(prober, threshold, unit)

    def __call__(
        self, prompts: Sequence[str | Sequence[Mapping[str, str]]], max_new_tokens: int, **how: Any
    ) -> list[Scored]:
        """Continue texts, or answer chats; ``how`` are ``stop``, .. of :class:`.language_model.Decoding`."""
        texts = [
            each if isinstance(each, str) else chat_text(self._lm.tokenizer, each, "a prompt of messages")
            for each in prompts
        ]
        retries = self._action.on_high == "retry"
        written = self._write(texts, max_new_tokens, how, 0 if retries else None)
        if retries:
            self._retry(texts, written, max_new_tokens, how)
        return [self._acted(number, generation) for number, generation in enumerate(written, 1)]

    def _write(
        self, prompts: Sequence[str], tokens: int, how: Mapping[str, Any], draw: int | None
    ) -> list[Generation]:
        """Write a text for each prompt; a ``draw`` has its own random numbers."""
        if draw is not None:
            how = {**how, "sampling": Sampling(self._action.temperature, seed=self._action.seed + draw)}
        return self._lm.generate(prompts, max_new_tokens=tokens, needs=text_needs(self._prober), **how)

    def _retry(
        self, prompts: Sequence[str], written: list[Generation], tokens: int, how: Mapping[str, Any]
    ) -> None:
        """Draw texts that fire again, all of a round together; keep each prompt's with the lowest score."""
        best = [self._judge(generation) for generation in written]
        for draw in range(1, self._action.draws):
            high = [place for place, response in enumerate(best) if response.fires]
            if not high:
                break
            more = self._write([prompts[place] for place in high], tokens, how, draw)
            for place, generation in zip(high, more, strict=True):
                response = self._judge(generation)
                if _rank(response) < _rank(best[place]):
                    written[place], best[place] = generation, response

    def _record(self, written: Generation) -> WrittenText:
        """Score the tokens of a text."""
        if not written.token_ids:
            return WrittenText(written.prompt, written.text)
        assert written.state is not None
        pieces = self._assess.pieces(written.prompt, written.text, written.offsets)
        scores = text_scores(self._prober, written.state, None if pieces is None else list(pieces.values()))
        return WrittenText.of(written, *scores)

    def _judge(self, written: Generation) -> Response:
        return self._assess(self._record(written))

    def _acted(self, number: int, written: Generation) -> Scored:
        record = self._record(written)
        response, text = self._assess(record), written.text
        on_high = self._action.on_high
        high = self._first_high(record, response)
        if on_high == "stop" and high is not None:
            count = sum(end <= high.start for _, end in written.offsets)
            text = text[: high.start].rstrip()
            acted = Acted(action=on_high, span=high, discarded_tokens=len(written.token_ids) - count)
            response = self._assess(record.first(count, text)).model_copy(update={"acted": acted})
        elif on_high == "abstain" and response.fires:
            acted = Acted(action=on_high, span=high, discarded_tokens=len(written.token_ids))
            text = self._action.abstention
            response = self._assess(WrittenText(written.prompt, "")).model_copy(update={"acted": acted})
        return Scored(f"prompt {number}", written.prompt, text, response)

    def _first_high(self, record: WrittenText, response: Response) -> ScoredSpan | None:
        """Find the first part above the threshold; of whole answers the token that brings them above it."""
        spans = response.spans
        if self._assess.unit == "answer":
            each = zip(record.offsets, record.scores, response.token_p_wrong, strict=True)
            spans = tuple(ScoredSpan(*place, score or 0.0, p or 0.0) for place, score, p in each)
        return next((span for span in spans if span.score > self._assess.threshold), None)


def _rank(response: Response) -> float:
    """Order responses by score; a text without anything to judge is the best possible."""
    return float("-inf") if response.score is None else response.score
