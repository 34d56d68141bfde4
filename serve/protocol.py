"""OpenAI's requests and errors: what is taken, what is refused by name, and how it is told.

The fields follow OpenAI's API reference for ``/v1/completions`` and ``/v1/chat/completions``; what a
response carries besides is in docs/serving.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: Fields of OpenAI's that are not offered, and the values of them that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "parallel_tool_calls": (True, False), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "audio": (), "prediction": (), "reasoning_effort": (),
    "web_search_options": (), "verbosity": (), "service_tier": ("auto", "default"), "store": (False,),
    "metadata": ({},),
}  # fmt: skip
_RETRY = 2  # seconds after which one that was sent away may come again
#: Those that say nothing of the answer.
_IGNORED = ("user", "safety_identifier", "prompt_cache_key")

Tokens = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]
Prompts = (
    str | Tokens | Annotated[list[str], Field(min_length=1)] | Annotated[list[Tokens], Field(min_length=1)]
)
Stop = Annotated[str, Field(min_length=1)]


class ApiError(Exception):
    """An answer in OpenAI's form of errors.

    Args:
        status: of HTTP.
        param: the field that is wrong.
        code: OpenAI's word for what is wrong.
        retry: seconds after which to come again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry = status, message, param, code, retry

    def body(self) -> dict[str, Any]:
        """As JSON."""
        kinds = {401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Strict):
    """``stream_options``."""

    include_usage: bool = False


class Hallucination(_Strict):
    """``hallucination`` of a request: the threshold in place of the prober's."""

    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None


class Retrieval(_Strict):
    """``retrieval`` of a request; what is left out is as the server was started with.

    Attributes:
        trigger, query: names as of ``probers-rag``.
        threshold: of the trigger.
    """

    trigger: Annotated[str, Field(min_length=1, max_length=100)]
    query: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    k: Annotated[int, Field(ge=1, le=20)] | None = None
    max_retrievals: Annotated[int, Field(ge=0, le=20)] | None = None


class _Asking(_Strict):
    """What both requests have."""

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
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
        """Drop what asks for nothing; what asks for something that is not offered is refused by name."""
        if not isinstance(values, Mapping):
            return values
        left = {}
        for name, value in values.items():
            neutral = _NEUTRAL.get(name)
            if name in cls.model_fields or (neutral is None and name not in _IGNORED):
                left[name] = value
            elif neutral is not None and value is not None and value not in neutral:
                raise ApiError(
                    400, f"{name} is not supported by this server: leave it out", param=name,
                    code="unsupported_parameter",
                )  # fmt: skip
        return left

    @property
    def stops(self) -> list[str]:
        """Strings that end the text."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends in its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Asking):
    """``POST /v1/completions``."""

    kind: ClassVar[Literal["text_completion"]] = "text_completion"

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(min_length=1)]
        | Annotated[list[Tokens], Field(min_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One entry per prompt: text, or ids."""
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return list(given)

    @property
    def alternatives(self) -> int | None:
        """Likeliest tokens to tell at each place; None tells no log-probabilities."""
        return self.logprobs


class Part(_Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Strict):
    """A message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[Part], Field(min_length=1)]
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Asking):
    """``POST /v1/chat/completions``."""

    kind: ClassVar[Literal["chat.completion"]] = "chat.completion"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def alternatives(self) -> int | None:
        """As of :class:`CompletionRequest`."""
        return (self.top_logprobs or 0) if self.logprobs else None


Request = CompletionRequest | ChatRequest


def busy() -> ApiError:
    """That too many texts wait, and when to come again."""
    told = "too many texts wait already: try again later"
    return ApiError(429, told, code="rate_limit_exceeded", retry=_RETRY)
