"""Requests that nobody would send, and those of OpenAI's types: answers and errors of OpenAI's form."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from helpers.serving import PROMPT, Running, bank_for, running
from hypothesis import HealthCheck, given, settings
from openai.types import Completion, completion_create_params
from openai.types.chat import ChatCompletion
from openai.types.chat import completion_create_params as chat_params
from pydantic import TypeAdapter

from probers import CausalLM
from probers.words.thinking import Thinking

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "testbed", "prompt": PROMPT, "max_tokens": 2, "temperature": 0},
    "/v1/chat/completions": {
        "model": "testbed", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2,
    },
    "/v1/replay": {
        "trigger": "flare", "options": {"threshold": 0.5}, "text": "A b. C.", "logprobs": [-1.0, -0.5],
        "offsets": [[0, 4], [4, 7]], "spans": [{"start": 0, "end": 1, "score": 1.0, "p_wrong": 0.5}],
    },
}  # fmt: skip
FIELDS = [
    *(name for body in BODIES.values() for name in body), "top_p", "n", "stop", "seed", "stream", "logprobs",
    "stream_options", "hallucination", "retrieval", "tools", "echo", "logit_bias", "\x00", "prompt.0",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 2**63, 10**400, 0.5, 1e308, "", "a", "\x00", "\ud800", "🎈", "a" * 5000, [], [[]], [0],
    [-1], [2**40], ["a", "b"], [0, "a"], [None], {}, {"a": 1}, [{"role": "user", "content": None}],
    [{"role": "tool", "content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}],
    {"include_usage": True}, {"threshold": 1e308}, {"threshold": "x"}, {"trigger": "never"},
    {"trigger": "probing", "k": 0}, {"trigger": "../x"}, {"trigger": "rind", "query": "qfs", "k": 20},
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    lm.tokenizer.chat_template = f"{turns}{{{{ tools or '' }}}}"
    with running(lm, bank_for(lm), corpus=True, max_tokens=8, thinking=Thinking(), waiting=64) as found:
        yield found


def mangled(draw: random.Random) -> tuple[str, bytes]:
    """A path and a body of which some fields, or some bytes, are not what they should be."""
    path = draw.choice(list(BODIES))
    body = dict(BODIES[path])
    for _ in range(draw.choice((0, 1, 1, 2))):
        if draw.random() < 0.1:
            body.pop(draw.choice(list(body)), None)
        body[draw.choice(FIELDS)] = draw.choice(VALUES)
    if body.get("stream") is True and draw.random() < 0.8:
        del body["stream"]
    raw = bytearray(json.dumps(body).encode())
    while draw.random() < 0.15:
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    return path, bytes(raw)


def send(server: Running, count: int, seed: int) -> dict[int, int]:
    """How often each status came."""
    draw, seen = random.Random(seed), dict[int, int]()
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(count):
            path, body = mangled(draw)
            answer = client.post(path, content=body, headers={"content-type": "application/json"})
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (path, body[:300], answer.text)
            if answer.status_code != 200:
                assert set(answer.json()["error"]) == {"message", "type", "param", "code"}, body
                assert answer.json()["error"]["message"].strip()
    assert server.idle()
    assert "probers_running_texts 0.0" in httpx.get(f"{server.url}/metrics").text
    return seen


@pytest.mark.parametrize(("count", "seed"), [(400, 1), pytest.param(10_000, 2, marks=pytest.mark.slow)])
def test_mangled_requests(server: Running, count: int, seed: int) -> None:
    seen = send(server, count, seed)
    assert seen[200] > 20 and seen[400] > 150


# Requests as OpenAI's client types describe them

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


@pytest.mark.long
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
