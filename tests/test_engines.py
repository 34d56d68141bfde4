"""Servers of others as engines: real forms of their answers through the client, and answers that lie."""

import json
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.http_fakes import Handler, Server
from helpers.refusals import exits, fails
from scipy.stats import entropy

from probers.cli import main as cli
from probers.cli import openai_client
from probers.model.language_model import Sampling
from probers.rag import RAG, triggers
from probers.rag.build import check_readable, remote
from probers.rag.remote import RemoteLM
from probers.rag.retrievers.bm25 import BM25
from probers.rag.settings import Rag
from probers.rag.triggers import Entropy, Flare, Never
from probers.types import Passage, Question, RunError

#: What a server answers to a body: a status and a body, and headers.
Said = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class Engine:
    """A server that answers completions by a function of the body; ``bodies`` are those that came."""

    def __init__(self, answer: Callable[[dict[str, Any]], Said], models: Any = None) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        engine = self

        class Answering(Handler):
            def do_GET(self) -> None:
                self.send(200, {"data": [{"id": "m"}]} if models is None else models)

            def do_POST(self) -> None:
                body = json.loads(self.body())
                engine.bodies.append(body)
                engine.keys.append(self.headers.get("Authorization"))
                self.send(*answer(body))

        self.handler = Answering


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Said], models: Any = None) -> Iterator[tuple[str, Engine]]:
    engine = Engine(answer, models)
    with Server(engine.handler) as listening:
        yield f"{listening.url}/v1", engine


def llama(*tokens: tuple[str, float], text: str | None = None, finish: str = "stop", **more: Any) -> Any:
    """An answer in the form of llama-server, whose other fields are null, as a proxy passes them on."""
    content = [
        {"id": 1, "token": token, "bytes": list(token.encode()), "logprob": p, "top_logprobs": [
            {"id": 1, "token": token, "bytes": [], "logprob": p}, {"id": 2, "token": token, "logprob": -9.0},
        ]}
        for token, p in tokens
    ]  # fmt: skip
    logprobs = {"content": content, "tokens": None, "token_logprobs": None, "text_offset": None}
    text = "".join(token for token, _ in tokens) if text is None else text
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs, "hallucination": None}
    return {"choices": [choice], "usage": None, "object": "text_completion"} | more


def classic(tokens: list[str], text: str, **logprobs: Any) -> Any:
    """An answer in OpenAI's own form."""
    tops = [{token: -0.1, f"{token}?": -3.0} for token in tokens]
    lists = {"tokens": tokens, "token_logprobs": [-0.1] * len(tokens), "top_logprobs": tops} | logprobs
    return {"choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": lists}]}


FIRST = llama(("1", -0.1), usage={"prompt_tokens": 2, "completion_tokens": 1})


def only(answer: Any) -> Callable[[dict[str, Any]], Said]:
    """The answer to every prompt but the client's first."""
    return lambda body: (200, FIRST if body["max_tokens"] == 1 else answer)


def written(answer: Any, **how: Any) -> Any:
    with serving(only(answer)) as (url, _):
        (made,) = RemoteLM(url, "m").generate(["Where?"], max_new_tokens=8, **how)
    return made


@pytest.mark.parametrize(("answer", "text", "offsets", "lost"), [
    (llama((" Paris", -0.25), (".", -0.4)), " Paris.", [(0, 6), (6, 7)], 0),
    # The end token is no token of the text, an empty answer has none.
    (llama(("No", -0.1), ("", -0.2)), "No", [(0, 2)], 0),
    (llama(("", -0.2)), "", [], 0),
    # A stop string took the full stop's entry with it; half a character is left at the end.
    (llama((" It", -0.1), (" is", -0.1), text=" It is."), " It is", [(0, 3), (3, 6)], 1),
    (llama(("、", -1.0), ("メ", -2.0), text="、メ\ufffd", finish="length"), "、メ", [(0, 1), (1, 2)], 1),
    # llama-cpp-python: a character whose bytes are spread over tokens, at the end and within.
    (classic(["a", "", ""], "a😀", text_offset=[5, 6, 6]), "a😀", [(0, 1), (1, 1), (1, 2)], 0),
    (classic(["", "", "b"], "éb", text_offset=[0, 0, 1]), "éb", [(0, 0), (0, 1), (1, 2)], 0),
    # Offsets in bytes, behind the text, in no order, too few; a space that the text lacks.
    (classic(["é", "é", "b"], "ééb", text_offset=[0, 2, 4]), "ééb", [(0, 1), (1, 2), (2, 3)], 0),
    (classic(["a", "b"], "ab", text_offset=[0, 900]), "ab", [(0, 1), (1, 2)], 0),
    (classic(["a", "b", "c"], "abc", text_offset=[0, 2, 1]), "abc", [(0, 1), (1, 2), (2, 3)], 0),
    (classic(["a", "b"], "ab", text_offset=[0]), "ab", [(0, 1), (1, 2)], 0),
    (classic([" No", " one"], "No one"), "No one", [(0, 2), (2, 6)], 0),
    (classic([" No", " one"], "No one", text_offset=[0, 3]), "No one", [(0, 2), (2, 6)], 0),
    # More tokens than text: a stop was cut off.
    (classic(["a", "b", "c"], "ab"), "ab", [(0, 1), (1, 2)], 0),
])  # fmt: skip
def test_answers_in_the_forms_of_other_servers(answer, text, offsets, lost):
    made = written(answer)
    assert (made.text, list(made.offsets), made.lost) == (text, offsets, lost)
    assert len(made.logprobs) == len(made.entropies) == len(made.token_ids) == len(offsets)
    assert np.isfinite(made.logprobs).all() and np.isfinite(made.entropies).all()


#: Answers of a real llama-server.
RECORDED = Path(__file__).parents[2] / "shared" / "engines" / "answers"


@pytest.mark.parametrize(("name", "text", "tokens", "stop", "lost"), [
    ("stop", " Paris.", 2, "eos", 0), ("empty", "", 0, "eos", 0), ("japanese", "、メモ", 3, "length", 1),
    ("draw1", "-was-a-t", 6, "length", 0),
])  # fmt: skip
def test_recorded_answers_through_the_client(name, text, tokens, stop, lost):
    if not (file := RECORDED / f"{name}.json").is_file():
        pytest.skip(f"{file} is missing")
    made = written(json.loads(file.read_text()))
    assert (made.text, len(made.token_ids), made.stop, made.lost) == (text, tokens, stop, lost)
    assert made.unlikely == {"draw1": 2}.get(name, 0)


def test_likeliest_tokens_of_one_text_are_told_apart():
    content = llama(("\ufffd", -1.0))["choices"][0]["logprobs"]
    content["content"][0]["top_logprobs"] = [{"token": "", "logprob": math.log(p)} for p in (0.4, 0.3, 0.2)]
    made = written({"choices": [{"text": "\ufffd", "finish_reason": "length", "logprobs": content}]})
    assert made.entropies[0] == pytest.approx(entropy([0.4, 0.3, 0.2, 0.1]), abs=1e-5)


def test_a_place_with_fewer_likeliest_tokens_is_unknown_and_told(caplog):
    merged = classic(["a", "b"], "ab", top_logprobs=[{"": -0.1}, {"b": -0.1, "c": -3.0}])
    made = written(merged)
    assert np.isnan(made.entropies).tolist() == [True, False] and "1 of 2 places" in caplog.text
    state: Any = Mock(lm=Mock(spec=RemoteLM))
    assert Entropy(reduction="max")(made, state).score == pytest.approx(float(made.entropies[1]))


@pytest.mark.parametrize("answer", [
    llama((" a", math.nan)), llama((" a", 2.0)), classic(["x"], "Paris"),
    classic(["a"], "ab", token_logprobs=[]),
    {"choices": []}, {"choices": None}, "data: {}\n\ndata: [DONE]\n\n", [1], None,
    llama(("a", -0.1), usage={"prompt_tokens": "many"}), classic([], "text", top_logprobs=[]),
])  # fmt: skip
def test_one_answer_that_lies_is_left_out_and_the_others_stay(answer, caplog):
    def each(body: dict[str, Any]) -> Said:
        return (200, answer) if body["prompt"] == "bad" else only(llama((" a", -0.1)))(body)

    with serving(each) as (url, _):
        lm = RemoteLM(url, "m")
        good, bad = lm.generate(["good", "bad"], max_new_tokens=4, names=["q1", "q2"])
        with fails("server", url, kind=RunError):  # nothing else came
            lm.generate(["bad", "bad"], max_new_tokens=4)
    assert (good.text, bad.text, bad.stop, bad.token_ids) == (" a", "", "skipped", ())
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "q2" in line and "\n" not in line


def test_a_negative_count_of_tokens_is_none():
    assert written(llama(("a", -0.1), usage={"prompt_tokens": -5})).prompt_ids == ()


def test_each_copy_of_a_prompt_is_drawn_with_its_own_seed(caplog):
    def drawn(body: dict[str, Any]) -> Said:
        return 200, llama((str(body.get("seed", 1) % 1000), -0.1))

    def seeds(prompts: list[str], seed: int = 1) -> list[int]:
        engine.bodies.clear()
        lm.generate(prompts, max_new_tokens=4, sampling=Sampling(seed=seed))
        return [body["seed"] for body in engine.bodies]

    with serving(drawn) as (url, engine):
        lm = RemoteLM(url, "m", at_once=1)
        first = seeds(["a", "a", "b", "a"])
        assert len({*first}) == 4 and all(0 <= each < 2**31 for each in first)
        assert seeds(["b", "a", "a"]) == [first[2], *first[:2]] and not {*seeds(["a"], 2)} & {*first}
        assert "equal texts" not in caplog.text
    with serving(only(llama((" a", -0.1)))) as (url, _):
        RemoteLM(url, "m").generate(["a", "a", "b", "b"], max_new_tokens=4, sampling=Sampling())
    assert "drew equal texts for every prompt" in caplog.text


def test_tokens_that_are_not_the_likeliest_are_told_once_and_options_are_sent(caplog):
    unlikely = llama((" a", -0.1), (" b", -0.1))
    unlikely["choices"][0]["logprobs"]["content"][1]["logprob"] = -3.0
    with serving(only(unlikely)) as (url, engine):
        lm = RemoteLM(url, "m", options={"repeat_penalty": 1.0})
        for _ in range(2):
            lm.generate(["a", "b"], max_new_tokens=4)
    assert caplog.text.count("2 of 4 (50.0%)") == 1 and "engine_options" in caplog.text
    assert all(body["repeat_penalty"] == 1.0 for body in engine.bodies)
    with fails("conflict", "engine_options.seed"):
        RemoteLM(url, "m", options={"seed": 2})


@pytest.mark.parametrize(("entries", "top"), [(20, 20), (5, 5), (1, 1), (30, 20)])
def test_the_record_says_how_many_likeliest_tokens_come(entries, top):
    answer = classic(["a"], "a", top_logprobs=[{str(i): -0.1 - i for i in range(entries)}])
    with serving(lambda body: (200, answer)) as (url, _):
        assert f"the {top} likeliest" in RemoteLM(url, "m").description


def test_without_log_probabilities_only_triggers_that_read_none_run(caplog):
    said = {"choices": [{"text": " It is Rome. Yes.", "finish_reason": "stop", "logprobs": None}]}

    def either(body: dict[str, Any]) -> Said:
        refused = 400, {"error": {"message": "unknown field logprobs"}}
        return refused if body.get("logprobs") == 20 else (200, said)

    passages = BM25([Passage("1", "Rome is a city.", "Rome")])
    with serving(either) as (url, engine):
        lm = RemoteLM(url, "m")
        assert lm.top == 0 and "llama-server" in caplog.text and "none" in lm.description
        for refused in (Flare(), Entropy(), triggers.FixedLength(), triggers.SemanticEntropy()):
            with fails("unsupported", refused.name, url):
                check_readable(lm, refused, None)
        for name in ("never", "always", "random", "verbalised", "llm_judge", "fixed_sentence"):
            answer = RAG(lm, passages, name, "question", prompt="testbed")(Question("q", "Where?"))
            assert answer.text.strip().startswith("It is Rome."), name
        with fails("unsupported", "query=flare"):
            RAG(lm, passages, Never(), "flare")
        assert "logprobs" not in engine.bodies[-1]


def test_a_completion_that_goes_through_a_chat_template_is_refused():
    chat = llama((" a", -0.1), usage={"prompt_tokens": 31})
    with serving(lambda body: (200, chat)) as (url, _), fails("unsupported", "31 tokens", "chat template"):
        RemoteLM(url, "m")


@pytest.mark.parametrize("models", [[1], b"<html>", {"data": 1}, b"null", {"data": [{"name": "m"}]}])
def test_a_list_of_models_that_is_none_is_one_sentence(models):
    with serving(only(FIRST), models) as (url, _), fails("server", url, kind=RunError):
        RemoteLM(url, "m")


def test_an_alias_that_is_not_listed_is_tried(caplog):
    with serving(only(llama(("a", -0.1)))) as (url, _):
        assert RemoteLM(url, "alias").generate(["x"], max_new_tokens=4)[0].text == "a"
    assert "does not list model=alias" in caplog.text
    refused = 404, {"error": {"message": "The model `other` does not exist"}}
    with serving(lambda body: refused) as (url, _), fails("model", "'other'", "one of m"):
        RemoteLM(url, "other")


def test_a_key_is_stripped_and_shown_nowhere(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    echo = 401, {"error": {"message": "Incorrect API key provided: sk-secret."}}
    with serving(only(llama(("a", -0.1)))) as (url, engine):
        RemoteLM(url, "m")
    assert {*engine.keys} == {"Bearer sk-secret"}
    with serving(lambda body: echo) as (url, _), fails("server", "OPENAI_API_KEY", "***") as caught:
        RemoteLM(url, "m")
    assert "sk-secret" not in f"{caught.value} {caplog.text}"
    for odd in ("sk-\u0441ecret", "sk\nsecret", "sk-s\x00"):
        monkeypatch.setenv("OPENAI_API_KEY", odd.replace("\x00", "\x01"))
        with fails("bad-value", "OPENAI_API_KEY") as caught:
            RemoteLM(url, "m")
        assert odd not in str(caught.value)


def test_the_password_of_an_address_is_not_shown(caplog):
    assert exits("rag", ["engine=http://user:hush@host/v1", "model=m"]) == 2
    assert "hush" not in caplog.text


@pytest.mark.parametrize(("option", "value"), [
    ("adapter", "a"), ("quantization", {"load_in_4bit": True}), ("revision", "main"), ("gguf", "f.gguf"),
    ("device", "cuda"), ("dtype", "float16"), ("attn", "eager"), ("device_map", "auto"),
    ("chat_template", "tool"), ("trust_remote_code", True), ("use_safetensors", False),
    ("on_too_long", "truncate_left"),
])  # fmt: skip
def test_options_of_a_model_that_a_server_ignores_are_refused(option, value):
    settings = Rag(engine="http://127.0.0.1:9/v1")
    with fails("unsupported", f"model.{option}"):
        remote(replace(settings, model=replace(settings.model, **{option: value})))


def test_engine_options_need_an_address():
    with fails("conflict", "engine_options"):
        remote(Rag(engine_options={"repeat_penalty": 1.0}))


BEYOND = "request (5001 tokens) exceeds the available context size (2048 tokens), try increasing it"


def test_a_prompt_that_is_too_long_is_named_and_the_others_stay(caplog, tmp_path):
    def each(body: dict[str, Any]) -> Said:
        if body["prompt"] == "long":
            return 400, {"error": {"type": "exceed_context_size_error", "message": BEYOND}}
        return only(llama((" a", -0.1)))(body)

    with serving(each) as (url, engine):
        left, other = RemoteLM(url, "m", on_too_long="skip").generate(
            ["long", "b"], max_new_tokens=4, names=["q1", "q2"]
        )
        assert (left.stop, other.text) == ("skipped", " a") and "q1" in caplog.text
        lm = RemoteLM(url, "m", at_once=1)
        lm.keep(tmp_path / "engine.jsonl")
        with fails("too-long", "q1", "5001"):
            lm.generate(["long", "b"], max_new_tokens=4, names=["q1", "q2"])
        again = RemoteLM(url, "m")
        again.keep(tmp_path / "engine.jsonl")
        engine.bodies.clear()
        assert again.generate(["b"], max_new_tokens=4)[0].text == " a" and not engine.bodies
        assert len(again.generate(["b"], max_new_tokens=5)) == len(engine.bodies) == 1  # another request


def test_a_server_that_loads_or_is_away_is_waited_for(monkeypatch):
    monkeypatch.setattr(openai_client, "_PAUSE", 0.01)
    seen: list[int] = []

    def loading(body: dict[str, Any]) -> Said:
        seen.append(1)
        return (503, {"error": {"message": "Loading model"}}) if len(seen) < 12 else (200, FIRST)

    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE", 0.02)
    with serving(loading) as (url, engine):
        lm = RemoteLM(url, "m", timeout=20.0)
        port = int(url.split(":")[2].split("/")[0])
    # It is away; the next one on the port comes later.
    made: list[Any] = []
    asking = threading.Thread(target=lambda: made.extend(lm.generate(["x"], max_new_tokens=1)), daemon=True)
    asking.start()
    time.sleep(0.2)
    assert not made
    monkeypatch.setattr(
        "helpers.http_fakes.ThreadingHTTPServer", lambda _, handler: _listening(port, handler), raising=True
    )
    with Server(engine.handler):
        asking.join(10)
    assert made[0].text == "1"


def _listening(port: int, handler: Any) -> Any:
    from http.server import ThreadingHTTPServer

    return ThreadingHTTPServer(("127.0.0.1", port), handler)


def test_a_request_that_is_not_answered_ends_after_its_time():
    hold = threading.Event()

    def silent(body: dict[str, Any]) -> Said:
        if body["max_tokens"] > 1:
            hold.wait(5)
        return 200, FIRST

    with serving(silent) as (url, _):
        lm = RemoteLM(url, "m", timeout=0.3)
        with fails("timeout", "0.3 s", kind=RunError):
            lm.generate(["x"], max_new_tokens=4)
        hold.set()


def test_an_interrupt_ends_a_run_over_a_silent_server_at_once(monkeypatch, caplog):
    monkeypatch.setattr(openai_client, "_QUIET", 0.1)
    hold = threading.Event()

    def silent(body: dict[str, Any]) -> Said:
        if body["max_tokens"] > 1:
            hold.wait(10)
        return 200, FIRST

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    with serving(silent) as (url, _):
        lm, started = RemoteLM(url, "m"), time.monotonic()
        threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            lm.generate(["x", "y"], max_new_tokens=4)
        assert time.monotonic() - started < 3 and f"waiting for engine={url}" in caplog.text
        hold.set()
    signal.signal(signal.SIGINT, before)


def test_a_comparison_keeps_its_answers_until_it_is_complete(tmp_path):
    broken = True

    def each(body: dict[str, Any]) -> Said:
        if broken and len(engine.bodies) > 3:
            return 403, {"error": {"message": "no more"}}
        return only(llama((" a", -0.1)))(body)

    with serving(each) as (url, engine):
        typed = [
            f"engine={url}", "model=m", "questions=testbed", "limit=4", "answer_tokens=0", "batch_size=1",
            "triggers=[never,probing]", "sweep=0", "resamples=100", f"out={tmp_path / 'out'}",
        ]  # fmt: skip
        with fails("server"):
            cli.run("compare", typed)
        kept = (tmp_path / "out" / "engine.jsonl").read_bytes().count(b"\n")
        broken, before = False, len(engine.bodies)
        cli.run("compare", typed)
    assert kept and not (tmp_path / "out" / "engine.jsonl").exists()
    assert sum(body["max_tokens"] > 1 for body in engine.bodies[before:]) == 4 - kept
