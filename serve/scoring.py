"""Scores of answers that exist already: ``POST /v1/score``, and the requests of LettuceDetect's API.

A text is read by the server's model after its question and passages, between the steps of the texts that are
being written. The answer may be by any writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator
from typing_extensions import Self

from probers.prober.response import Scored

from .endpoint import Served
from .protocol import ApiError, Id, Strict
from .scheduler import SharedLM


class ShownPassage(Strict):
    """Passage with a title."""

    text: str = Field(min_length=1)
    title: str | None = None


class ScoreRequest(Strict):
    """An answer to score, after its prompt or its chat, with the passages that it should rest on.

    ``threshold`` and ``unit`` replace the prober's own, as in a request for text.
    """

    model: Id
    answer: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    passages: list[str | ShownPassage] = Field(default_factory=list, max_length=256)
    threshold: float | None = None
    unit: str | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt is not None and self.messages is not None:
            raise ValueError("both prompt and messages: send one of them")
        return self

    def row(self) -> dict[str, Any]:
        """Make the row of a text, whose fields are those of files."""
        row = self.model_dump(include={"answer", "prompt", "messages"}, exclude_none=True)
        shown = [each if isinstance(each, str) else each.model_dump() for each in self.passages]
        if any(isinstance(each, dict) for each in shown):
            shown = [{"text": each} if isinstance(each, str) else each for each in shown]
        return row | {"passages": shown}


class Detection(Strict):
    """Request of LettuceDetect's API: an answer to a question from some contexts."""

    contexts: list[str]
    question: str
    answer: str


class Scoring:
    """Endpoints that score finished answers by one prober."""

    def __init__(self, served: Served) -> None:
        self._served, self._scheduler = served, served.scheduler

    def score(self, request: ScoreRequest) -> dict[str, Any]:
        """Score an answer; ``hallucination`` is as in the response to a text that the server wrote."""
        self._served.check_name(request.model)
        one = self._score(request.row(), threshold=request.threshold, unit=request.unit)
        response = None if one.response is None else one.response.wire()
        return {
            "object": "score", "model": request.model, "text": one.text, "prompt": one.prompt,
            "hallucination": response,
        }  # fmt: skip

    def spans(self, request: Detection) -> dict[str, Any]:
        """List the parts of an answer that fire, in LettuceDetect's form."""
        if not request.answer.strip():
            return {"predictions": []}
        return {
            "predictions": [
                {"start": s.start, "end": s.end, "text": s.text, "hallucination_score": s.p_wrong}
                for s in self._detect(request).spans if s.fires
            ]
        }  # fmt: skip

    def tokens(self, request: Detection) -> dict[str, Any]:
        """List the tokens of an answer with P(wrong), in LettuceDetect's form; 0 without a score."""
        if not request.answer.strip():
            return {"predictions": []}
        one = self._detect(request)
        if one.response is None:
            return {"predictions": []}
        each = zip(one.response.token_offsets, one.response.token_p_wrong, strict=True)
        return {
            "predictions": [
                {"token": one.text[start:end], "hallucination_score": p or 0.0} for (start, end), p in each
            ]
        }

    def _detect(self, request: Detection) -> Scored:
        row = {"prompt": request.question, "answer": request.answer, "passages": request.contexts}
        return self._score(row)

    def _score(self, row: Mapping[str, Any], **how: Any) -> Scored:
        prober = self._served.scorer or self._scheduler.bank
        if prober is None:
            message = "this server has no prober that scores finished answers: start it with prober="
            raise ApiError(400, message, code="no_prober")
        (one,) = prober.score(SharedLM(self._scheduler), [row], **how)
        return one
