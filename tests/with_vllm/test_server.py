"""A served model through the official client: scores beside the text, streamed or not, and none is lost."""

import asyncio
import json
import os
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from helpers.thinking import CHATS, thinking_model
from helpers.thinking import TEMPLATE as CHAT_TEMPLATE
from helpers.tiny import byte_level
from tokenizers.processors import TemplateProcessing
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from written import make_bank, save_tiny, with_adapter

from probers.cli.settings import Model
from probers.model.causal_lm import CausalLM
from probers.model.pooling import as_stored
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.prober import Prober
from probers.prober.token_scores import text_scores
from probers.prompts import chat_text
from probers.serve.http import ApiError
from probers.serve.settings import Serve
from probers.serve.vllm.endpoint import Assessing, Scores
from probers.serve.vllm.prober import command
from probers.testbed.assets import model_path

KEY = "secret"
PROMPT = "Who does Lena Zaser work for?\nAnswer:"
TEMPLATE = "{% for m in messages %}Question: {{ m['content'] }}\nAnswer:{% endfor %}"


@contextmanager
def served(folder: Path, *flags: str, model: str = "testbed") -> Iterator[str]:
    """The URL of a server with the prober in ``folder``, which it also logs to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = Serve(model=Model(name=model, dtype="float32"), port=port, api_key=KEY)
    argv, environment = command(settings, str(folder))
    argv += ["--max-model-len", "256", "--max-num-seqs", "16", "--chat-template", TEMPLATE, *flags]
    log = (folder.parent / f"server-{port}.log").open("w")
    server = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=log, stderr=log)
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                httpx.get(f"{base}/health").raise_for_status()
                break
            except httpx.HTTPError:
                said = Path(log.name).read_text()[-2000:]
                assert server.poll() is None and time.monotonic() < deadline, said
                time.sleep(1)
        yield f"{base}/v1"
    finally:
        server.terminate()
        server.wait(60)
        log.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prober") / "prober"


@pytest.fixture(scope="module")
def bank(lm: CausalLM, folder: Path) -> Prober:
    return make_bank(lm, folder, "tokens", (6, 12))


@pytest.fixture(scope="module")
def url(bank: Prober, folder: Path) -> Iterator[str]:
    with served(folder, "--enforce-eager") as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=KEY)


def check_whole(response: Any, text: str) -> None:
    """The lists have one entry per token, and the tokens cover the text."""
    lists = [response[f"token_{name}"] for name in ("scores", "p_wrong", "offsets", "logprobs")]
    assert len({len(each) for each in lists}) == 1
    assert None not in response["token_scores"]
    assert [end for _, end in response["token_offsets"]][-1:] == [len(text)] * bool(text)
    assert response["token_entropies"] is None
    assert response["score"] is None or response["domain"]["unlike"] == (
        response["domain"]["distance"] > response["domain"]["limit"]
    )
    assert response["fires"] == (response["score"] > response["threshold"])
    assert all(text[span["start"] : span["end"]].strip() for span in response["spans"])


def check_scores(response: Any, read: Any, bank: Prober) -> None:
    """The scores and log-probabilities are those of our engine for the same tokens."""
    want = bank.score_states(as_stored(read.state, bank.spec.dtype))
    np.testing.assert_allclose(response["token_scores"], want, rtol=1e-3, atol=0.05)
    np.testing.assert_allclose(response["token_logprobs"], read.logprobs, atol=1e-3)


def test_an_answer_carries_the_scores_of_our_engine(
    client: openai.OpenAI, lm: CausalLM, bank: Prober
) -> None:
    for count in (1, 40):
        made = client.completions.create(model="testbed", prompt=PROMPT, max_tokens=count, temperature=0)
        (choice,) = made.choices
        response = choice.hallucination
        check_whole(response, choice.text)
        scored = lm.score([PROMPT], [choice.text], needs=bank.needs)[0]
        assert [tuple(span) for span in response["token_offsets"]] == list(scored.offsets)
        check_scores(response, scored, bank)
        wanted = Assessor(bank)(WrittenText.of(scored, *text_scores(bank, scored.state))).wire()
        places = [[(span["start"], span["end"]) for span in each["spans"]] for each in (response, wanted)]
        assert places[0] == places[1] and response["fires"] == wanted["fires"]
        assert response["score"] == pytest.approx(wanted["score"], rel=1e-3, abs=0.05)
        assert response["domain"]["limit"] == 30.0
        assert response["domain"]["distance"] == pytest.approx(wanted["domain"]["distance"], rel=1e-2)
        assert choice.logprobs is None and choice.token_ids is None


def test_a_finished_answer_is_scored_as_by_our_engine(url: str, lm: CausalLM, bank: Prober) -> None:
    passages = ["Lena Zaser works for the mill of Orlen.", "Orlen is a town of 900 people."]
    row = {"prompt": "Who does Lena Zaser work for?", "answer": " For the mill of Orlen, in the town."}
    chat = {"messages": [{"role": "user", "content": "Who is it?"}], "answer": "It is Lena Zaser."}

    def post(path: str, **body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {KEY}"}
        reply = httpx.post(f"{url}/{path}", json=body, headers=headers, timeout=120)
        return reply.status_code, reply.json()

    lm.tokenizer.chat_template = TEMPLATE
    for each in (row, row | {"passages": passages}, chat, row):  # the prefix cache holds the last
        status, made = post("score", model="testbed", **each)
        assert status == 200, made
        response, (want,) = made["hallucination"], bank.score(lm, [each])
        assert (made["object"], made["prompt"]) == ("score", want.prompt)
        assert made["text"] == want.text == each["answer"]
        wanted = want.response.wire()
        check_whole(response, made["text"])
        assert response.keys() == wanted.keys()
        assert response["token_offsets"] == [list(place) for place in wanted["token_offsets"]]
        np.testing.assert_allclose(response["token_scores"], wanted["token_scores"], rtol=1e-3, atol=0.05)
        np.testing.assert_allclose(response["token_logprobs"], wanted["token_logprobs"], atol=2e-3)
        assert response["score"] == pytest.approx(wanted["score"], rel=1e-3, abs=0.05)
    status, high = post("score", model="testbed", threshold=-1e6, **row)
    assert status == 200 and high["hallucination"]["fires"]
    status, tokens = post(
        "lettucedetect/token", contexts=passages, question=row["prompt"], answer=row["answer"]
    )
    assert "".join(each["token"] for each in tokens["predictions"]) == row["answer"]
    for wrong, refusal in ({"model": "other"}, 404), ({"unit": "claim"}, 400), ({"answer": ""}, 400):
        assert post("score", **{"model": "testbed", **row, **wrong})[0] == refusal
    assert httpx.post(f"{url}/score", json={"model": "testbed", **row}).status_code == 401
    # Passages that do not fit are left out from the end; an answer that does not is not scored.
    status, cut = post("score", model="testbed", **row, passages=passages * 40)
    assert status == 200 and cut["hallucination"]["token_scores"]
    status, long = post("score", model="testbed", **{**row, "answer": row["answer"] * 60})
    assert status == 200 and long["hallucination"] is None


def joined(pieces: Iterable[Any], part: str | None = None) -> dict[str, Any]:
    """The last chunk's field of a stream, with the lists of all chunks."""
    fields = [piece.hallucination for piece in pieces if getattr(piece, "hallucination", None)]
    fields = fields if part is None else [field[part] for field in fields if field.get(part)]
    lists = [name for name in fields[-1] if name.startswith("token_") and fields[-1][name] is not None]
    return fields[-1] | {name: [value for field in fields for value in field[name]] for name in lists}


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_tells_the_same_as_it_grows(client: openai.OpenAI, chat: bool) -> None:
    body: dict[str, Any] = {"model": "testbed", "max_tokens": 30, "temperature": 0}
    if chat:
        body["messages"] = [{"role": "user", "content": "Who does Lena Zaser work for?"}]
    else:
        body["prompt"] = PROMPT
    create: Any = client.chat.completions.create if chat else client.completions.create
    whole, chunks = create(**body).choices[0], list(create(**body, stream=True))
    text = whole.message.content if chat else whole.text
    pieces = [chunk.choices[0].delta.content or "" if chat else chunk.choices[0].text for chunk in chunks]
    assert "".join(pieces) == text
    last = chunks[-1].choices[0]
    assert last.finish_reason == whole.finish_reason
    response = joined(chunk.choices[0] for chunk in chunks)
    check_whole(response, text)
    np.testing.assert_allclose(response["token_scores"], whole.hallucination["token_scores"], atol=0.05)
    assert len(last.hallucination["token_scores"]) < 5 < len(response["token_scores"])


def test_an_offer_of_http_2_loses_no_body(url: str) -> None:
    """Claim: Java's standard client gets its answer, and one alone, also if its body comes by itself."""
    body = json.dumps({"model": "testbed", "prompt": PROMPT, "max_tokens": 2})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", httpx.URL(url).port), timeout=20) as link:
        link.sendall(head.encode())
        time.sleep(0.2)
        link.sendall(body.encode())
        heard = b""
        while b"usage" not in heard:
            more = link.recv(65536)
            assert more, heard
            heard += more
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(1)
    assert heard.startswith(b"HTTP/1.1 200 ") and b"x-request-id: " in heard.lower()


def test_several_prompts_and_choices_each_have_their_own(client: openai.OpenAI) -> None:
    prompts = [PROMPT, "The town of"]
    made = client.completions.create(
        model="testbed", prompt=prompts, n=2, max_tokens=12, temperature=0.9, seed=1, stop=["."], logprobs=1
    )
    assert len(made.choices) == 4
    for choice in made.choices:
        check_whole(choice.hallucination, choice.text)
        values = choice.hallucination["token_logprobs"]  # of six digits
        assert choice.logprobs.token_logprobs[: len(values)] == pytest.approx(values, rel=1e-5)


def requests(url: str) -> float:
    """How many the engine has answered, those to close a text included."""
    said = httpx.get(url.removesuffix("v1") + "metrics").text
    return sum(float(value) for value in re.findall(r"vllm:request_success_total\{.*\} (\S+)", said))


@pytest.mark.parametrize(("prompt", "stop"), [(PROMPT, []), (PROMPT, ["."]), (" town" * 226, [])])
def test_the_last_token_is_scored_and_costs_a_request_at_a_stop_string_alone(
    url: str, client: openai.OpenAI, prompt: str, stop: list[str]
) -> None:
    before = requests(url)
    extra = {"include_stop_str_in_output": True, "ignore_eos": True}
    made = client.completions.create(
        model="testbed", prompt=prompt, max_tokens=30, temperature=0, stop=stop, extra_body=extra
    )
    [choice] = made.choices
    assert choice.finish_reason == ("stop" if stop else "length")
    scores = choice.hallucination["token_scores"]
    assert made.usage.completion_tokens == len(scores) and (len(scores) == 30 or stop)
    full = made.usage.total_tokens == 256  # there is no room for the token after the last
    assert full == (prompt != PROMPT) == (scores[-1] is None)
    assert None not in scores[:-1]
    assert requests(url) - before in ((1, 2) if stop else (1,))  # the next step may be under way already


def test_the_requests_threshold_and_what_is_refused(client: openai.OpenAI) -> None:
    def ask(**extra: Any) -> Any:
        return client.completions.create(model="testbed", prompt=PROMPT, max_tokens=3, extra_body=extra)

    response = ask(hallucination={"threshold": -1e6}).choices[0].hallucination
    assert response["threshold"] == -1e6 and response["fires"]
    for extra in ({"hallucination": {"threshold": "high"}}, {"retrieval": {"trigger": "probing"}}):
        with pytest.raises(openai.BadRequestError, match=next(iter(extra))):
            ask(**extra)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt=PROMPT)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=client.base_url, api_key="no").models.list()


async def answers(url: str, count: int) -> list[Any]:
    """``count`` random requests, 16 at a time and every other one streamed: prompt, text, ids, our field."""
    rng, client = random.Random(0), openai.AsyncOpenAI(base_url=url, api_key=KEY, timeout=600)
    turn = asyncio.Semaphore(16)

    async def one(i: int) -> tuple[str, str, list[int], Any]:
        body: dict[str, Any] = {
            "model": "testbed", "prompt": f"Question {i % 50}: Who was born in {1900 + i % 37}?\nAnswer:",
            "max_tokens": rng.randint(1, 12), "temperature": 0.8, "seed": i,
            "extra_body": {"return_token_ids": True},
        }  # fmt: skip
        async with turn:
            if i % 2:
                made = [c.choices[0] async for c in await client.completions.create(**body, stream=True)]
            else:
                made = (await client.completions.create(**body)).choices
        ids = [token for c in made for token in c.token_ids or ()]
        return body["prompt"], "".join(c.text for c in made), ids, joined(made)

    return list(await asyncio.gather(*(one(i) for i in range(count))))


def test_no_score_of_many_requests_is_lost(url: str, lm: CausalLM, bank: Prober) -> None:
    check_answers(asyncio.run(answers(url, 300)), lm, bank)


def test_two_engines_behind_one_address(lm: CausalLM, bank: Prober, folder: Path) -> None:
    with served(folder, "--data-parallel-size", "2", "--enforce-eager") as url:
        made = asyncio.run(answers(url, 60))
        said = httpx.get(url.removesuffix("v1") + "metrics").text
    written = {
        match[1]: float(match[2])
        for match in re.finditer(r'vllm:generation_tokens_total\{engine="(\d)".*\} (\S+)', said)
    }
    assert set(written) == {"0", "1"} and min(written.values()) > 0
    check_answers(made, lm, bank)


def check_answers(made: list[Any], lm: CausalLM, bank: Prober) -> None:
    """Their scores are those of our engine for the same tokens."""
    prefixes = [tuple(ids[: len(response["token_scores"])]) for _, _, ids, response in made]
    scored = lm.score([prompt for prompt, *_ in made], prefixes, needs=bank.needs)
    for (_, text, _, response), want in zip(made, scored, strict=True):
        check_whole(response, text)
        check_scores(response, want, bank)


def test_a_prober_with_an_adapter_scores_the_answers_of_it(tmp_path: Path) -> None:
    """Claim: the model's name answers with the adapter, and is scored; the model as it is, is not."""
    model = save_tiny("llama", tmp_path / "model")
    lm, bare = (CausalLM.from_pretrained(model, dtype="float32") for _ in range(2))
    bank = with_adapter(lm, make_bank(lm, tmp_path / "plain", "tokens", (2,)), tmp_path / "prober")
    with served(tmp_path / "prober", "--enforce-eager", model=model) as address:
        client = openai.OpenAI(base_url=address, api_key=KEY)
        body: Any = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
        body["extra_body"] = {"return_token_ids": True}
        (choice,) = client.completions.create(model=model, **body).choices
        (base,) = client.completions.create(model=f"{model}-base", **body).choices
    ids = tuple(choice.token_ids[: len(choice.hallucination["token_scores"])])
    read, without = (each.score([PROMPT], [ids], needs=bank.needs)[0] for each in (lm, bare))
    check_scores(choice.hallucination, read, bank)
    assert np.abs(read.state - without.state).max() > 0.1 and base.hallucination is None


def test_a_server_says_which_option_is_refused_and_loads_no_model(folder: Path, bank: Prober) -> None:
    drafts = {"method": "draft_model", "model": str(model_path()), "num_speculative_tokens": 2}
    before = {*folder.parent.glob("server-*.log")}
    with pytest.raises(AssertionError), served(folder, "--speculative-config", json.dumps(drafts)):
        pass
    [log] = {*folder.parent.glob("server-*.log")} - before
    said = log.read_text()
    assert "vLLM cannot run --speculative-config with method=draft_model beside a prober" in said
    assert "Starting to load model" not in said


def complete(client: openai.OpenAI, *, stream: bool = False, **own: Any) -> Any:
    more = {name: own.pop(name) for name in ("prompt", "n", "seed", "temperature", "logprobs") if name in own}
    body = {"model": "testbed", "prompt": PROMPT, "max_tokens": 32, "temperature": 0, **more}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    made = client.completions.create(**body, extra_body={"hallucination": own})
    return list(made) if stream else made


@pytest.mark.parametrize("unit", ["span", "sentence"])
def test_on_high_stop_ends_before_the_first_unit_above(client: openai.OpenAI, unit: str) -> None:
    free = complete(client, unit=unit, logprobs=0).choices[0]
    spans = free.hallucination["spans"]
    for threshold in (float(np.median([s["score"] for s in spans])), max(s["score"] for s in spans) + 1):
        first = next((s for s in spans if s["score"] > threshold), None)
        options: dict[str, Any] = {"on_high": "stop", "threshold": threshold, "unit": unit}
        made = complete(client, **options)
        (choice,) = made.choices
        *chunks, usage = complete(client, stream=True, logprobs=0, **options)
        pieces = [c.choices[0] for c in chunks if c.choices]
        assert "".join(p.text for p in pieces) == choice.text
        assert pieces[-1].finish_reason == choice.finish_reason
        assert (choice.finish_reason == "content_filter") == (first is not None)
        assert choice.text == (free.text if first is None else free.text[: first["start"]])
        shown = [token for p in pieces if p.logprobs for token in p.logprobs.tokens]
        if first is not None:  # neither text nor tokens behind it are told
            assert shown == free.logprobs.tokens[: len(shown)] and "".join(shown) in choice.text
            assert usage.usage.completion_tokens == made.usage.completion_tokens == len(shown)


def test_on_high_abstain_and_retry(client: openai.OpenAI) -> None:
    score = complete(client).choices[0].hallucination["score"]
    for stream in (False, True):
        for threshold, above in ((score - 1, True), (score + 1, False)):
            options = {"on_high": "abstain", "threshold": threshold, "abstention": "No idea."}
            made = complete(client, stream=stream, **options)
            choices = [c.choices[0] for c in made if c.choices] if stream else made.choices
            assert ("".join(c.text for c in choices) == "No idea.") == above
            assert (choices[-1].finish_reason == "content_filter") == above
    free = [complete(client, temperature=1.2, seed=5 + k).choices[0] for k in range(3)]
    made = complete(client, on_high="retry", threshold=-1e9, draws=3, temperature=1.2, seed=5).choices[0]
    scores = [choice.hallucination["score"] for choice in free]
    assert made.text == free[int(np.argmin(scores))].text
    assert made.hallucination["acted"]["scores"] == pytest.approx(scores, rel=1e-3, abs=0.05)
    with pytest.raises(openai.BadRequestError):
        complete(client, on_high="stop", unit="answer")


def test_reasoning_that_a_parser_takes_apart_is_scored_with_the_answer(tmp_path: Path) -> None:
    model = str(thinking_model(tmp_path / "model"))
    lm = CausalLM.from_pretrained(model, dtype="float32")
    bank = make_bank(lm, tmp_path / "prober", "tokens", (1, 3))
    flags = ["--reasoning-parser", "deepseek_r1", "--enforce-eager", "--chat-template", CHAT_TEMPLATE]
    with served(tmp_path / "prober", *flags, model=model) as url:
        client = openai.OpenAI(base_url=url, api_key=KEY)
        messages: Any = [{"role": "user", "content": CHATS[0][0]}]
        body: Any = {"model": model, "messages": messages, "max_tokens": 80, "temperature": 0}
        choice = client.chat.completions.create(**body).choices[0]
        chunks = [c.choices[0] for c in client.chat.completions.create(**body, stream=True)]
    (generation,) = lm.generate([chat_text(lm.tokenizer, messages, "it")], max_new_tokens=80)
    (read,) = lm.score([generation.prompt], [generation.token_ids], needs=bank.needs)
    scores = bank.score_states(as_stored(read.state, bank.spec.dtype))
    response, message = choice.hallucination, choice.message
    for text, field, streamed in (
        (message.content, response, joined(chunks)),
        (message.reasoning, response["reasoning"], joined(chunks, "reasoning")),
    ):
        start = generation.text.index(text)
        tokens = [i for i, (a, b) in enumerate(generation.offsets) if a < start + len(text) and b > start]
        np.testing.assert_allclose(field["token_scores"], scores[tokens], rtol=1e-3, atol=0.05)
        assert streamed["token_scores"] == pytest.approx(field["token_scores"], rel=1e-3, abs=0.05)


def test_a_prompt_ends_without_the_tokenizers_marker() -> None:
    assessing = object.__new__(Assessing)
    assessing.tokenizer = tokenizer = deepcopy(byte_level())
    end = (tokenizer.eos_token, tokenizer.eos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(f"$A {end[0]}", special_tokens=[end])
    ids = tokenizer("The mill", add_special_tokens=False)["input_ids"]
    for given, taken in ((["The mill", "The mill"], [ids, ids]), ([1, 2], [1, 2])):
        request = CompletionRequest(model="m", prompt=given)
        assessing.unmarked(request)
        assert request.prompt == taken
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "add_special_tokens": True}
    with pytest.raises(ApiError) as refused:
        assessing.unmarked(ChatCompletionRequest(**chat))
    assert (refused.value.status, refused.value.param) == (400, "add_special_tokens")


def test_half_of_a_pair_of_surrogates_is_refused_before_vllm_reads_it() -> None:
    app = FastAPI()
    Scores().attach_router(app)
    body = json.dumps({"model": "m", "prompt": "a", "stop": ["\ud83d"]})
    with TestClient(app) as client:
        answer = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and "surrogates" in answer.text
