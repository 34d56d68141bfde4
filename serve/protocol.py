"""OpenAI's requests and errors.

The fields follow OpenAI's API reference; docs/serving.md describes the additional ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from probers.types import ProbersError, UserError

#: OpenAI's fields that are not offered, and their values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "parallel_tool_calls": (True, False), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "audio": (), "prediction": (), "reasoning_effort": (),
    "web_search_options": (), "verbosity": (), "service_tier": ("auto", "default"), "store": (False,),
    "metadata": ({},),
}  # fmt: skip
#: OpenAI's fields without effect on the answer.
_IGNORED = ("user", "safety_identifier", "prompt_cache_key")
#: Fields of a message that answers carry, and that ask for nothing where they are empty.
_OF_ANSWERS = (
    "refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning_content", "reasoning",
)  # fmt: skip

Tokens = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1)]
PartName = Annotated[str, Field(min_length=1, max_length=100)]
Threshold = Annotated[float, Field(allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1)]
UpTo20 = Annotated[int, Field(ge=0, le=20)]


@dataclass(eq=False)
class ApiError(Exception):
    """An error in OpenAI's form, with HTTP's ``status`` and the wrong field as ``param``.

    A refused client may retry after ``retry`` seconds.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry: int | None = None

    @classmethod
    def of(cls, error: ProbersError) -> ApiError:
        """Make the error of one of our own."""
        return cls(400 if isinstance(error, UserError) else 500, str(error))

    def body(self) -> dict[str, Any]:
        """The body of the response."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    """``stream_options``."""

    include_usage: bool = False


class Hallucination(_Strict):
    """``hallucination`` of a request.

    Attributes:
        threshold: a score in place of the prober's threshold.
        unit: what is judged by itself; None is the prober's own.
        on_high: what is done with a score above the threshold (:mod:`probers.serve.on_high`).
        draws: most texts that ``retry`` draws for an answer.
        abstention: the sentence of ``abstain``; None is the server's.
    """

    threshold: Threshold | None = None
    unit: Literal["span", "sentence", "token", "answer"] | None = None
    on_high: Literal["warn", "stop", "abstain", "retry"] = "warn"
    draws: Annotated[int, Field(ge=2, le=8)] = 3
    abstention: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class Retrieval(_Strict):
    """``retrieval`` of a request, in names of ``probers-rag``; missing fields are the server's."""

    trigger: PartName
    query: PartName | None = None
    threshold: Threshold | None = None
    k: Annotated[int, Field(ge=1, le=20)] | None = None
    max_retrievals: UpTo20 | None = None


class _Asking(_Strict):
    """The fields of both requests."""

    model: str
    max_tokens: Limit | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=16)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    hallucination: Hallucination | None = None
    retrieval: Retrieval | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, values: Any) -> Any:
        """Drop fields without effect; refuse fields that are not offered, by name."""
        if not isinstance(values, Mapping):
            return values
        stops = values.get("stop")
        if stops == "" or (isinstance(stops, list) and "" in stops):
            raise ApiError(400, "stop has an empty string, which would end every text: leave it out", "stop")
        for name, value in values.items():
            if value is not None and value not in _NEUTRAL.get(name, (value,)):
                told = f"{name} is not supported by this server: leave it out"
                raise ApiError(400, told, name, "unsupported_parameter")
        return {name: value for name, value in values.items() if name not in (*_NEUTRAL, *_IGNORED)}

    @property
    def most(self) -> int | None:
        """The most tokens asked for; None leaves it to the server."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """Strings that end the text."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """Tell whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Asking):
    """``POST /v1/completions``."""

    kind: ClassVar[Literal["text_completion"]] = "text_completion"

    prompt: str | Tokens | Texts | Annotated[list[Tokens], Field(min_length=1)]
    logprobs: UpTo20 | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, each as text or ids."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)

    @property
    def alternatives(self) -> int | None:
        """Number of likeliest tokens per place; None leaves log-probabilities out."""
        return self.logprobs


class Part(_Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)] | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        content = self.content or ()
        return content if isinstance(content, str) else "".join(part.text for part in content)


def _message(given: Any, at: str) -> Any:
    """A message without the empty fields of answers; refuses what this server cannot read, by its place."""
    if not isinstance(given, Mapping):
        return given
    for name in _OF_ANSWERS:
        if given.get(name):
            told = f"{at}: {name} is not supported by this server: leave it out"
            raise ApiError(400, told, f"{at}.{name}")
    parts = given.get("content")
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            where = f"{at}.content[{place}]"
            told = f"{where}: a part of type {kind} is not read: send parts of type text"
            raise ApiError(400, told, where)
    return {name: value for name, value in given.items() if name not in _OF_ANSWERS}


class ChatRequest(_Asking):
    """``POST /v1/chat/completions``."""

    kind: ClassVar[Literal["chat.completion"]] = "chat.completion"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: UpTo20 | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _read_messages(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Alternatives per token, as for completions."""
        return (self.top_logprobs or 0) if self.logprobs else None


Request = CompletionRequest | ChatRequest
