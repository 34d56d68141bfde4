"""Requests that nobody would send: an error in OpenAI's form for each, and no row that stays."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.serving import PROMPT, Running, bank_for, running

from probers import CausalLM

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
    *(name for body in BODIES.values() for name in body), "entropies", "max_completion_tokens", "top_p", "n",
    "stop", "seed", "stream", "stream_options", "logprobs", "top_logprobs", "hallucination", "retrieval",
    "tools", "echo", "suffix", "user", "logit_bias", "presence_penalty", "best_of", "response_format",
    "metadata", "\x00", "__proto__", "prompt.0",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308, "", "a", "\x00", "\ud800", "🎈",
    "a" * 5000, [], [[]], [0], [-1], [2**40], ["a", "b"], [["a"]], [0, "a"], [None], {}, {"a": 1},
    {"role": "user"}, [{"role": "user", "content": None}], [{"role": "tool", "content": "x"}],
    [{"content": "x"}], [{"role": "user", "content": [{"type": "image_url"}]}], {"include_usage": True},
    {"include_usage": 1}, {"threshold": 1e308}, {"threshold": "x"}, {"trigger": "never"},
    {"trigger": "probing", "k": 0}, {"trigger": "flare", "threshold": -1}, {"trigger": "../x"},
    {"trigger": "rind", "query": "qfs", "k": 20}, {"trigger": "entropy", "query": "x"},
    {"trigger": "always", "max_retrievals": 0}, {"type": "json_object"},
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    with running(lm, bank_for(lm), corpus=True, max_tokens=8) as found:
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


@pytest.mark.slow
def test_requests_made_of_the_openapi_page(server: Running, tmp_path: Path) -> None:
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
        "--checks", "not_a_server_error", "--max-examples", "1000", "--seed", "1", "--no-color",
        "--exclude-path", "/metrics",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    assert server.idle()
