"""OpenAI's requests and errors.

The fields follow OpenAI's API reference; docs/serving.md describes the additional ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from .errors import ApiError
from .messages import Message, Strict, Tool, check_tools, for_template, read_message

#: OpenAI's fields that are not supported, and their values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "functions": ([],),
    "function_call": ("none", "auto"), "parallel_tool_calls": (True, False), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "audio": (), "prediction": (),
    "web_search_options": (), "verbosity": (), "service_tier": ("auto", "default"), "store": (False,),
    "metadata": ({},),
}  # fmt: skip
#: OpenAI's fields without effect on the answer.
_IGNORED = ("user", "safety_identifier", "prompt_cache_key")
Tokens = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1)]
PartName = Annotated[str, Field(min_length=1, max_length=100)]
Threshold = Annotated[float, Field(allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1)]
UpTo20 = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(Strict):
    """``stream_options``."""

    include_usage: bool = False


class Hallucination(Strict):
    """``hallucination`` of a request.

    Attributes:
        threshold: a score in place of the prober's threshold.
        unit: unit that is judged by itself; None is the prober's own.
        on_high: action on a score above the threshold (:mod:`probers.serve.on_high`).
        draws: most texts that ``retry`` draws for an answer.
        abstention: the sentence of ``abstain``; None is the server's.
    """

    threshold: Threshold | None = None
    unit: Literal["span", "sentence", "token", "answer"] | None = None
    on_high: Literal["warn", "stop", "abstain", "retry"] = "warn"
    draws: Annotated[int, Field(ge=2, le=8)] = 3
    abstention: Annotated[str, Field(min_length=1, max_length=1000)] | None = None


class Retrieval(Strict):
    """``retrieval`` of a request, named as in ``probers-rag``; missing fields are the server's."""

    trigger: PartName
    query: PartName | None = None
    threshold: Threshold | None = None
    k: Annotated[int, Field(ge=1, le=20)] | None = None
    max_retrievals: UpTo20 | None = None


class _Asking(Strict):
    """Fields of both requests."""

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
        """Drop fields without effect; refuse unsupported fields by name."""
        if not isinstance(values, Mapping):
            return values
        stops = values.get("stop")
        if stops == "" or (isinstance(stops, list) and "" in stops):
            raise ApiError(400, "stop has an empty string, which would end every text: leave it out", "stop")
        for name, value in values.items():
            if value is not None and value not in _NEUTRAL.get(name, (value,)):
                told = f"{name} is not supported by this server: leave it out"
                raise ApiError(400, told, name, "unsupported_parameter")
        left_out = (*_NEUTRAL, *_IGNORED)
        return {name: value for name, value in values.items() if value is not None and name not in left_out}

    @property
    def most(self) -> int | None:
        """Return the most tokens asked for; None leaves it to the server."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        """List the strings that end the text."""
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
        """List the prompts, each as text or ids."""
        given: Any = self.prompt
        return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)

    @property
    def alternatives(self) -> int | None:
        """Return the number of likeliest tokens per place; None leaves log-probabilities out."""
        return self.logprobs


class ChatRequest(_Asking):
    """``POST /v1/chat/completions``."""

    kind: ClassVar[Literal["chat.completion"]] = "chat.completion"

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[PartName, bool | int | float | str | None] | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: UpTo20 | None = None

    @field_validator("messages", mode="before")
    @classmethod
    def _read_messages(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        return [read_message(message, f"messages[{place}]") for place, message in enumerate(given)]

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        check_tools(self.messages)
        if self.tool_choice not in (None, "none", "auto"):
            told = "a tool call cannot be forced here, since nothing constrains what is written"
            raise ApiError(400, f"tool_choice: {told}: ask for auto, or use backend=vllm", "tool_choice")
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true: add it", "top_logprobs")
        return self

    def turns(self, template: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Convert to messages and variables for a chat template (ApiError: it does not read one of them)."""
        more: dict[str, Any] = {**(self.chat_template_kwargs or {})}
        if self.tools and self.tool_choice != "none":
            more["tools"] = [tool.model_dump(exclude_none=True) for tool in self.tools]
        if self.reasoning_effort == "none" and "reasoning_effort" not in template:
            more["enable_thinking"] = False
        elif self.reasoning_effort is not None:
            more["reasoning_effort"] = self.reasoning_effort
        for name in more:
            if name not in template:
                asked = "reasoning_effort" if name == "enable_thinking" and self.reasoning_effort else name
                told = f"{asked}: the model's chat template does not read {name}: leave it out"
                raise ApiError(400, told, asked, "unsupported_parameter")
        return for_template(self.messages, template), more

    @property
    def most(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """Return the number of alternatives per token, as for completions."""
        return (self.top_logprobs or 0) if self.logprobs else None


Request = CompletionRequest | ChatRequest
