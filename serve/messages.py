"""Messages of a chat in the form of OpenAI's API, and in the form that a chat template reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .errors import ApiError

#: Fields of a message that answers carry; empty ones ask for nothing.
_OF_ANSWERS = ("refusal", "annotations", "audio", "function_call")

Id = Annotated[str, Field(min_length=1, max_length=200)]


class Strict(BaseModel):
    """Part of a request without unknown fields and without values of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Part(Strict):
    """Part of a message's content."""

    type: Literal["text"]
    text: str


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


class Message(Strict):
    """Message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(min_length=1)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    tool_call_id: Id | None = None

    @property
    def text(self) -> str:
        content = self.content or ()
        return content if isinstance(content, str) else "".join(part.text for part in content)


def read_message(given: Any, at: str) -> Any:
    """Remove the empty fields of answers from a message; refuse unsupported fields by their place."""
    if not isinstance(given, Mapping):
        return given
    for name in _OF_ANSWERS:
        if given.get(name):
            raise ApiError(400, f"{at}: {name} is not supported by this server: leave it out", f"{at}.{name}")
    kept = {name: value for name, value in given.items() if name in Message.model_fields or value}
    content = kept.get("content")
    if isinstance(content, list) and content:
        kept["content"] = [_part(part, f"{at}.content[{place}]") for place, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise ApiError(400, f"{at}.content must be a string or a list of parts of type text", f"{at}.content")
    reasoning = kept.pop("reasoning", None)  # vLLM's name of it
    if reasoning and not kept.get("reasoning_content"):
        kept["reasoning_content"] = reasoning
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
    return kept


def _part(part: Any, at: str) -> Any:
    """Check a part of a content and drop its empty fields (ApiError)."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise ApiError(400, f"{at}: parts of type {kind} are not supported: send parts of type text", at)
    if not isinstance(part.get("text"), str):
        raise ApiError(400, f"{at}.text must be a string", f"{at}.text")
    for name, value in part.items():
        if name not in Part.model_fields and value:
            raise ApiError(400, f"{at}: {name} is not supported by this server: leave it out", f"{at}.{name}")
    return {"type": "text", "text": part["text"]}


def check_tools(messages: Sequence[Message]) -> None:
    """Refuse results of tools that nobody has called, and calls whose arguments are no JSON (ApiError)."""
    called = set[str]()
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        for number, call in enumerate(message.tool_calls or ()):
            at = f"{where}.tool_calls[{number}]"
            if message.role != "assistant":
                told = f"{where}: only an assistant's message has tool_calls"
                raise ApiError(400, told, f"{where}.tool_calls")
            _arguments(call, at)
            called.add(call.id)
        if message.role == "tool" and message.tool_call_id not in called:
            told = f"{where}: tool_call_id={message.tool_call_id} is no earlier call's: give the id of one"
            raise ApiError(400, told, f"{where}.tool_call_id")
        if message.role != "tool" and message.tool_call_id is not None:
            told = f"{where}: only a message of role tool has a tool_call_id"
            raise ApiError(400, told, f"{where}.tool_call_id")


def _arguments(call: ToolCall, at: str) -> dict[str, Any]:
    try:
        found = json.loads(call.function.arguments or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        where = f"{at}.function.arguments"
        raise ApiError(400, f"{where} is no JSON object: {call.function.arguments[:80]!r}", where)
    return found


def _call(call: ToolCall, at: str) -> dict[str, Any]:
    """Convert a call to the form that templates read, with its arguments as a mapping."""
    function = {"name": call.function.name, "arguments": _arguments(call, at)}
    return {"id": call.id, "type": call.type, "function": function}


def for_template(messages: Sequence[Message], template: str) -> list[dict[str, Any]]:
    """Convert messages to the form that a chat template reads.

    The developer's role becomes the system's if the template does not know it (ApiError: it knows no tools).
    """
    found = list[dict[str, Any]]()
    for place, message in enumerate(messages):
        role = "system" if message.role == "developer" and "developer" not in template else message.role
        if (role == "tool" or message.tool_calls) and "tool" not in template:
            told = f"messages[{place}]: the model's chat template knows no tools: leave the message out"
            raise ApiError(400, told, f"messages[{place}]")
        own: dict[str, Any] = {"role": role, "content": message.text}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(message, name)) is not None:
                own[name] = value
        if message.tool_calls:
            own["tool_calls"] = [_call(call, f"messages[{place}]") for call in message.tool_calls]
        found.append(own)
    return found
