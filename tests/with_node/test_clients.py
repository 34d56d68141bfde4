"""Clients of Node read every score, by the code of docs/clients.md, and take every answer."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.documents import page
from helpers.serving import Running, bank_for, running

from probers import CausalLM

HERE = Path(__file__).parent
BLOCKS = [block.text for block in page("docs/clients.md").blocks if block.language == "javascript"]
ASKED = {
    "model": "testbed", "messages": [{"role": "user", "content": "Who wrote Emma?"}], "max_tokens": 24,
    "temperature": 0, "hallucination": {"threshold": 2.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    lm.tokenizer.chat_template = "{% for m in messages %}Question: {{ m.content }}\nAnswer:{% endfor %}"
    with running(lm, bank_for(lm), rows=16, waiting=16) as server:
        yield server


def run(code: str, server: Running) -> str:
    """What a module of JavaScript prints."""
    code = code.replace("http://127.0.0.1:8000", server.url).replace("smollm2", "testbed")
    command = [os.environ["NODE"], "--input-type=module", "--eval", code]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("code", BLOCKS, ids=["openai", "ai", "langchain"])
def test_what_the_docs_read_is_what_the_server_said(server: Running, code: str) -> None:
    field = httpx.post(f"{server.url}/v1/chat/completions", json=ASKED).json()["choices"][0]["hallucination"]
    whole, spans, p_wrong = map(json.loads, run(code, server).split())
    assert whole == spans == field["spans"] and p_wrong == field["token_p_wrong"]
    assert len(spans) > 1 and len(p_wrong) > 8


HEAD = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "-", maxRetries: 0 });
const messages = [{ role: "user", content: "Who wrote Emma?" }];
const asked = { model: "testbed", messages, max_tokens: 24, temperature: 0 };
const out = (value) => console.log(JSON.stringify(value));
"""


def test_what_the_score_ended_is_a_reason_that_clients_know_and_one_that_leaves_frees_its_row(
    server: Running,
) -> None:
    code = """
    for (const on_high of ["stop", "abstain"]) {
      const acting = { ...asked, hallucination: { on_high, threshold: -1000 } };
      const made = await client.chat.completions.create(acting);
      const reasons = [];
      for await (const chunk of await client.chat.completions.create({ ...acting, stream: true }))
        reasons.push(chunk.choices[0].finish_reason);
      out([made.choices[0].finish_reason, reasons.at(-1), made.choices[0].hallucination.acted.action]);
    }
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 500, stream: true });
    for await (const chunk of stream) break;
    """
    lines = [json.loads(line) for line in run(HEAD + code, server).splitlines()]
    assert lines == [["content_filter", "content_filter", action] for action in ("stop", "abstain")]
    assert server.idle()


def test_errors_have_their_types(server: Running) -> None:
    code = """
    const told = async (make) => { try { out(await make()); } catch (error) {
      out([error.constructor.name, error.status, error.code, error.param, Boolean(error.requestID)]); } };
    await told(() => client.chat.completions.create({ ...asked, temperature: 9 }));
    await told(() => client.chat.completions.create({ ...asked, model: "other" }));
    await told(() => client.responses.create({ model: "testbed", input: "Hi" }));
    await told(() => client.files.create({ file: new File(["x"], "x.txt"), purpose: "batch" }));
    """
    assert [json.loads(line) for line in run(HEAD + code, server).splitlines()] == [
        ["BadRequestError", 400, None, "temperature", True],
        ["NotFoundError", 404, "model_not_found", "model", True],
        *[["NotFoundError", 404, "unknown_url", None, True]] * 2,
    ]


def test_the_page_adds_up_the_chunks_of_a_stream(server: Running) -> None:
    body = {"model": "testbed", "prompt": "🙂 Lena Zaser was born in", "max_tokens": 40, "temperature": 0}
    field = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"][0]["hallucination"]
    lines = httpx.post(f"{server.url}/v1/completions", json={**body, "stream": True}).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    changed = {"token": 1, "score": 7, "p_wrong": 0.5}
    chunks[-1]["choices"][0]["hallucination"]["revised"] = [changed]
    code = f"""
    import {{ add, begin }} from "../../serve/page/recording.js";
    const recording = begin({{}});
    const finals = {json.dumps(chunks)}.map((chunk) => add(recording, chunk).final);
    console.log(JSON.stringify([recording, finals.filter(Boolean).length]));
    """
    recording, finals = json.loads(run(code, server))
    assert finals == 1 and recording["offsets"] == field["token_offsets"]
    assert recording["scores"] == [7 if i == 1 else each for i, each in enumerate(field["token_scores"])]
    assert recording["whole"]["spans"] == field["spans"] and recording["logprobs"] == field["token_logprobs"]


def test_a_text_beyond_the_basic_plane_is_cut_by_code_points(server: Running) -> None:
    code = """
    const made = await client.completions.create({ model: "testbed", prompt: "🙂 Lena Zaser 🙂 was born in",
      max_tokens: 24, temperature: 0 });
    const { text, hallucination: { spans } } = made.choices[0];
    out([text, spans, spans.map(({ start, end }) => [...text].slice(start, end).join(""))]);
    """
    text, spans, cut = json.loads(run(HEAD + code, server))
    assert cut == [text[span["start"] : span["end"]] for span in spans] and cut
