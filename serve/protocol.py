"""OpenAI's requests, with the messages of a chat, and errors in its form.

The fields follow OpenAI's API reference; docs/serving.md describes the additional ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from probers.data.records import half_in

from .http import ApiError

Id = Annotated[str, Field(min_length=1, max_length=200)]


class Strict(BaseModel):
    """Part of a request without unknown fields and without values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Lenient(Strict):
    """Part of a message without the empty fields that answers carry: they ask for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value or name in cls.model_fields}


class Part(Lenient):
    """Part of a message's content; others than text are refused, and marks for a cache are passed over."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


def _parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Function(Strict):
    """Function that a message has called, with JSON as ``arguments``."""

    name: Id
    arguments: str = "{}"


class ToolCall(Strict):
    """Call of a tool in an answer that is sent back."""

    id: Id
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None  # as streamed; it asks for nothing


class Declared(Strict):
    """Function that the model may call; ``parameters`` are a JSON schema."""

    name: Id
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """Tool of a request."""

    type: Literal["function"]
    function: Declared


class Message(Lenient):
    """Message of a chat; ``reasoning`` is vLLM's name of ``reasoning_content``."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[Part], Field(min_length=1), BeforeValidator(_parts)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Id | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content or ())


def check_tools(messages: Sequence[Message]) -> None:
    """Refuse results of tools that nobody has called, and calls whose arguments are no JSON (ApiError)."""
    called = set[str]()
    for place, message in enumerate(messages):
        where, given = f"messages[{place}]", message.tool_call_id
        if message.tool_calls and message.role != "assistant":
            raise ApiError(400, f"{where}: only an assistant's message has tool_calls", f"{where}.tool_calls")
        for number, call in enumerate(message.tool_calls or ()):
            _arguments(call, f"{where}.tool_calls[{number}]")
            called.add(call.id)
        problem = ""
        if message.role == "tool" and given not in called:
            problem = f"tool_call_id={given} is no earlier call's: give the id of one"
        elif message.role != "tool" and given is not None:
            problem = "only a message of role tool has a tool_call_id"
        if problem:
            raise ApiError(400, f"{where}: {problem}", f"{where}.tool_call_id")


def _arguments(call: ToolCall, at: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        where = f"{at}.function.arguments"
        raise ApiError(400, f"{where} is no JSON object: {call.function.arguments[:80]!r}", where)
    return arguments


def for_template(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Convert messages to the form that a chat template reads.

    The developer's role becomes the system's if the template does not know it (ApiError: it knows no tools).
    """
    turns = list[dict[str, Any]]()
    for place, message in enumerate(messages):
        where, calls = f"messages[{place}]", message.tool_calls or ()
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        if (role == "tool" or calls) and "tool" not in template:
            problem = "the model's chat template knows no tools: leave the message out"
            raise ApiError(400, f"{where}: {problem}", where)
        called = [call.model_dump(include={"id", "type", "function"}) for call in calls]
        for each, call in zip(called, calls, strict=True):
            each["function"]["arguments"] = _arguments(call, where)
        fields = {
            "name": message.name, "tool_call_id": message.tool_call_id, "tool_calls": called or None,
            "reasoning_content": message.reasoning_content or message.reasoning,
        }  # fmt: skip
        fields = {name: value for name, value in fields.items() if value is not None}
        turns.append({"role": role, "content": message.text, **fields})
    return turns


#: OpenAI's fields that are not supported, and their values without effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "best_of": (1,),
    "echo": (False,), "suffix": ("",), "functions": ([],),
    "function_call": ("none", "auto"), "parallel_tool_calls": (True, False), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "audio": (), "prediction": (), "moderation": (),
    "web_search_options": (), "verbosity": ("medium",), "service_tier": ("auto", "default"),
    "store": (False,),
}  # fmt: skip
#: OpenAI's fields without effect on the answer.
_IGNORED = (
    "user", "safety_identifier", "metadata", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options",
)  # fmt: skip
Tokens = Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(min_length=1)]
Texts = Annotated[list[str], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1)]
PartName = Annotated[str, Field(min_length=1, max_length=100)]
Threshold = Annotated[float, Field(allow_inf_nan=False)]
Limit = Annotated[int, Field(ge=1)]
UpTo20 = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(Strict):
    """``stream_options``; obfuscation, which pads chunks against eavesdroppers, is not offered."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


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
    """Fields of both requests; ``asks`` names the one with the prompt."""

    asks: ClassVar[str]
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
        """Drop fields without effect; refuse unsupported fields by name, and strings that are no Unicode."""
        if not isinstance(values, Mapping):
            return values
        if (place := half_in(values)) is not None:
            problem = f"{place or 'a field'} holds half of a pair of surrogates: send valid Unicode"
            raise ApiError(400, problem, place or None)
        stops = values.get("stop")
        if stops == "" or (isinstance(stops, list) and "" in stops):
            raise ApiError(400, "stop has an empty string, which would end every text: leave it out", "stop")
        for name, value in values.items():
            if value is not None and value not in _NEUTRAL.get(name, (value,)):
                problem = f"{name} is not supported by this server: leave it out"
                raise ApiError(400, problem, name, "unsupported_parameter")
        left_out = (*_NEUTRAL, *_IGNORED)
        return {name: value for name, value in values.items() if value is not None and name not in left_out}

    @property
    def most_by(self) -> str:
        """Name the field of :attr:`most`."""
        longer = getattr(self, "max_completion_tokens", None)
        return "max_tokens" if longer is None else "max_completion_tokens"

    @property
    def most(self) -> int | None:
        """Return the most tokens asked for; None leaves it to the server."""
        return getattr(self, self.most_by)  # type: ignore[no-any-return]

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Asking):
    """``POST /v1/completions``."""

    kind: ClassVar[Literal["text_completion"]] = "text_completion"
    asks = "prompt"

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
    asks = "messages"

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[PartName, bool | int | float | str | None] | None = None
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: UpTo20 | None = None

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        check_tools(self.messages)
        if self.tool_choice not in (None, "none", "auto"):
            problem = "a tool call cannot be forced here, since nothing constrains what is written"
            raise ApiError(400, f"tool_choice: {problem}: ask for auto, or use backend=vllm", "tool_choice")
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
                field = "reasoning_effort" if name == "enable_thinking" and self.reasoning_effort else name
                problem = f"{field}: the model's chat template does not read {name}: leave it out"
                raise ApiError(400, problem, field, "unsupported_parameter")
        return for_template(self.messages, template), more

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


Request = CompletionRequest | ChatRequest
