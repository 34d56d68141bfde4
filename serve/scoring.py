"""Scores of answers that exist already, by any writer: ``POST /v1/score``, and requests of other detectors.

A form is a request and its reply, and one entry of :data:`FORMS`. LettuceDetect's API asks for spans or for
tokens. The router of vllm-project/semantic-router asks its detector by a chat whose answer is JSON
(``backend: endpoint``, as LettuceDetect's generative models are asked too).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, ClassVar

from fastapi.responses import Response as HttpResponse
from pydantic import ConfigDict, Field, model_validator
from typing_extensions import Self

from probers.prober.response import Scored, ScoredPart
from probers.words.text import tokenize

from .answers import as_json
from .http import ApiError, new_id
from .protocol import Id, Message, Strict

#: Scores the row of a text, whose fields are those of files, with ``threshold`` and ``unit``.
Score = Callable[..., Scored]


class Form(Strict):
    """Request to score an answer.

    Attributes:
        path: where it is posted.
        lenient: an answer without a word has a reply, in which there is nothing.
    """

    path: ClassVar[str]
    lenient: ClassVar[bool] = True

    def row(self) -> dict[str, Any]:
        """Make the row of a text."""
        raise NotImplementedError

    def reply(self, one: Scored) -> Any:
        """Make the reply; ``response`` is None where there was nothing to score."""
        raise NotImplementedError


class ShownPassage(Strict):
    """Passage with a title."""

    text: str = Field(min_length=1)
    title: str | None = None


class ScoreRequest(Form):
    """An answer to score, after its prompt or its chat, with the passages that it should rest on.

    ``threshold`` and ``unit`` replace the prober's own, as in a request for text. ``hallucination`` in the
    reply is as in the response to a text that the server wrote.
    """

    path = "/v1/score"
    lenient = False

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
        row = self.model_dump(include={"answer", "prompt", "messages"}, exclude_none=True)
        shown = [each if isinstance(each, str) else each.model_dump() for each in self.passages]
        if any(isinstance(each, dict) for each in shown):
            shown = [{"text": each} if isinstance(each, str) else each for each in shown]
        return row | {"passages": shown}

    def reply(self, one: Scored) -> dict[str, Any]:
        return {
            "object": "score", "model": self.model, "text": one.text, "prompt": one.prompt,
            "hallucination": None if one.response is None else one.response.wire(),
        }  # fmt: skip


class LettuceSpans(Form):
    """Request of LettuceDetect's API for the parts of an answer that fire."""

    path = "/v1/lettucedetect/spans"

    contexts: list[str]
    question: str
    answer: str

    def row(self) -> dict[str, Any]:
        return {"prompt": self.question, "answer": self.answer, "passages": self.contexts}

    def reply(self, one: Scored) -> dict[str, Any]:
        return {
            "predictions": [
                {"start": part.start, "end": part.end, "text": part.text, "hallucination_score": part.p_wrong}
                for part in _fired(one)
            ]
        }


class LettuceTokens(LettuceSpans):
    """Request of LettuceDetect's API for every token with P(wrong), 0 where a token has no score."""

    path = "/v1/lettucedetect/token"

    def reply(self, one: Scored) -> dict[str, Any]:
        said = one.response
        each = [] if said is None else zip(said.token_offsets, said.token_p_wrong, strict=True)
        scores = [{"token": one.text[a:b], "hallucination_score": p or 0.0} for (a, b), p in each]
        return {"predictions": scores}


class RouterChat(Form):
    """Request of semantic-router's ``backend: endpoint``: a chat whose user's message quotes an answer.

    Its base address is ``/v1/semantic-router``. Of the taxonomy that it expects, a prober only knows that a
    part is not supported; an explanation is given if the schema has one.
    """

    path = "/v1/semantic-router/chat/completions"
    model_config = ConfigDict(extra="ignore")

    model: Id
    messages: list[Message] = Field(min_length=1)
    stream: bool = False
    response_format: dict[str, Any] | None = None

    def row(self) -> dict[str, Any]:
        if self.stream:
            raise ApiError(400, "a detector answers at once: send stream=false", "stream")
        quoted, mark, answer = self.messages[-1].text.rpartition("\n\nAnswer to verify:\n")
        if not mark:
            message = "the last message quotes no answer: write it after the line 'Answer to verify:'"
            raise ApiError(400, message, "messages")
        quoted = quoted.removeprefix("User request: ")
        first = "\n\nExcerpt 1:\n"
        question, _, context = quoted.partition(first if first in quoted else "\n\n")
        return {"prompt": question, "answer": answer, "passages": re.split(r"\n\nExcerpt \d+:\n", context)}

    def reply(self, one: Scored) -> dict[str, Any]:
        explains = '"explanation"' in json.dumps(self.response_format)
        spans = [
            {"text": part.text, "category": "unsupported_addition", "subcategory": "unspecified"}
            | ({"explanation": _explained(part)} if explains else {})
            for part in _fired(one)
        ]
        content = json.dumps({"hallucinated_spans": spans}, ensure_ascii=False)
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return {
            "id": new_id(), "object": "chat.completion", "created": int(time.time()), "model": self.model,
            "choices": [choice],
        }  # fmt: skip


#: The forms of requests that are answered.
FORMS: tuple[type[Form], ...] = (ScoreRequest, LettuceSpans, LettuceTokens, RouterChat)


def scored(request: Form, score: Score) -> HttpResponse:
    """Answer a request by ``score``.

    Other detectors' replies have no place for the reason why nothing was judged, which would look like a
    faithful answer: there it is an ApiError.
    """
    row, how = request.row(), request.model_dump(include={"threshold", "unit"})
    if not request.lenient:
        if not row["answer"].strip():
            raise ApiError(400, "answer is empty: send the text to judge", "answer")
        one = score(row, **how)
    elif not tokenize(row["answer"]):
        one = Scored("request", row["prompt"], row["answer"], None)
    else:
        one = score(row | {"passages": [text for text in row["passages"] if text.strip()]}, **how)
        if one.response is None:
            raise ApiError(400, "the answer is too long for the model's context: send a shorter one")
        if one.response.not_scored:
            raise ApiError(400, f"the answer was not judged, since {one.response.not_scored}: send passages")
    return HttpResponse(as_json(request.reply(one)), media_type="application/json")


def _fired(one: Scored) -> list[ScoredPart]:
    """List the parts with some text that fire."""
    return [part for part in one.spans if part.fires and part.text.strip()]


def _explained(part: ScoredPart) -> str:
    why = f"Not supported with a probability of {part.p_wrong:.2f}"
    return f"{why}; nearest is passage {part.ground.passage}." if part.ground else f"{why}."
