"""Requests as OpenAI's client types describe them: no server errors, and every answer is of their form."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from helpers.serving import Running, bank_for, running
from hypothesis import HealthCheck, given, settings
from openai.types import Completion, completion_create_params
from openai.types.chat import ChatCompletion
from openai.types.chat import completion_create_params as chat_params
from pydantic import TypeAdapter

from probers import CausalLM
from probers.words.thinking import Thinking

pytestmark = pytest.mark.long

#: Fields that are offered; of all others only the neutral values are accepted (probers/serve/protocol.py).
OFFERED = (
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stop",
    "seed", "logprobs", "top_logprobs", "user", "tools", "tool_choice",
)  # fmt: skip
_WORD = {"type": "string", "minLength": 1, "maxLength": 40}
#: Bounds of the API reference, which the client's types do not have; small ones where they cost time.
BOUNDS: dict[str, Any] = {
    **{key: {"enum": [1, 2, 4]} for key in ("max_tokens", "max_completion_tokens")}, "n": {"enum": [1, 2]},
    "logprobs": {"enum": [0, 1, 5, None]}, "top_logprobs": {"enum": [0, 3, 20]},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "seed": {"enum": [-1, 0, 7, 2**62]},
    "stop": {"anyOf": [_WORD, {"type": "array", "items": _WORD, "maxItems": 4}, {"type": "null"}]},
    "prompt": {"anyOf": [_WORD, {"type": "array", "items": _WORD, "minItems": 1, "maxItems": 3}]},
}  # fmt: skip
PLAIN = {
    "type": "object", "required": ["role", "content"], "additionalProperties": False,
    "properties": {"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": _WORD},
}  # fmt: skip
ERROR = {
    "type": "object", "required": ["error"],
    "properties": {"error": {
        "type": "object", "required": ["message", "type", "param", "code"],
        "properties": {"message": {"type": "string", "minLength": 1}, "type": {"type": "string"}},
    }},
}  # fmt: skip


def document() -> dict[str, Any]:
    """An OpenAPI document of the two endpoints, made of the types of the official client."""
    schemas: dict[str, Any] = {}

    def component(name: str, schema: dict[str, Any]) -> dict[str, str]:
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
        return {"$ref": f"#/components/schemas/{name}"}

    def request(name: str, kind: Any) -> dict[str, str]:
        form = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
        form["properties"] = {key: value for key, value in form["properties"].items() if key in OFFERED}
        form["properties"]["model"] = {"const": "testbed"}
        chat = "messages" in form["properties"]
        bounds = {**BOUNDS, "logprobs": {"type": "boolean"}} if chat else BOUNDS
        form["properties"] |= {key: bounds[key] for key in form["properties"].keys() & bounds.keys()}
        if chat:
            messages = form["properties"]["messages"]
            # Half of them plain: most of the client's kinds of messages are refused here, by name.
            messages |= {"minItems": 1, "maxItems": 2, "items": {"anyOf": [PLAIN, messages["items"]]}}
        return component(name, {**form, "additionalProperties": False})

    paths = {}
    for path, asked, answer in (
        ("/completions", completion_create_params.CompletionCreateParamsNonStreaming, Completion),
        ("/chat/completions", chat_params.CompletionCreateParamsNonStreaming, ChatCompletion),
    ):
        form = answer.model_json_schema(ref_template="#/components/schemas/{model}")
        told = component(answer.__name__, form)
        error = {"description": "refused", "content": {"application/json": {"schema": ERROR}}}
        paths[path] = {"post": {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": request(f"{answer.__name__}Request", asked)}},
            },
            "responses": {
                "200": {"description": "answer", "content": {"application/json": {"schema": told}}},
                "400": error, "404": error,
            },
        }}  # fmt: skip
    info = {"title": "OpenAI", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    lm.tokenizer.chat_template = f"{turns}{{{{ tools or '' }}}}"
    with running(lm, bank_for(lm), thinking=Thinking(), waiting=64) as found:
        yield found


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_requests_of_the_published_form_get_answers_of_theirs(server: Running, path: str) -> None:
    operation = schemathesis.openapi.from_dict(document())[path]["POST"]
    seen = Counter[int]()

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        answer = httpx.post(f"{server.url}/v1{path}", json=case.body, timeout=60)
        assert answer.status_code in (200, 400, 404), answer.text
        case.validate_response(answer, checks=[schemathesis.checks.not_a_server_error])
        operation.validate_response(answer)
        seen[answer.status_code] += 1

    check()
    assert seen[200] >= 5, seen
