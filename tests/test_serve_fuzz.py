"""Answers of the form of OpenAI's types, and its errors for requests that nobody would send."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.serving import PROMPT, Running, bank_for, running
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

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
    with running(lm, bank_for(lm), corpus=True, max_tokens=8, thinking=Thinking(), waiting=64) as server:
        yield server


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


@pytest.mark.parametrize(("path", "form"), [
    ("/v1/completions", Completion), ("/v1/chat/completions", ChatCompletion),
])  # fmt: skip
def test_answers_are_of_the_form_of_openais_types(server: Running, path: str, form: Any) -> None:
    """Every value has its type, and every required field is there; only our own fields are more."""
    body = {**BODIES[path], "max_tokens": 8, "temperature": 0, "stop": ["zzz"]}
    body |= {"logprobs": True, "top_logprobs": 3} if form is ChatCompletion else {"logprobs": 3}
    made = form.model_validate_json(httpx.post(f"{server.url}{path}", json=body).text, strict=True)
    chunks = []
    if form is ChatCompletion:  # in a stream of the other, OpenAI's reason is not yet there either
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        *lines, done = httpx.post(f"{server.url}{path}", json=body).text.strip().split("\n\n")
        texts = [line.removeprefix("data: ") for line in lines]
        chunks = [ChatCompletionChunk.model_validate_json(text, strict=True) for text in texts]
        assert done == "data: [DONE]" and chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == made.usage.completion_tokens
    for one in (made, *chunks):
        more = {*(one.model_extra or {}), *(name for each in one.choices for name in each.model_extra or {})}
        assert more <= {"hallucination"}
