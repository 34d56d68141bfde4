"""Servers of others as engines: real forms of their answers through the client, and answers that lie."""

import json
import logging
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
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
from probers.types import Passage, Question, RunError, UserError

#: What a server answers to a body: a status and a body, and headers.
Said = tuple[int, Any] | tuple[int, Any, dict[str, str]]


@contextmanager
def serving(answer: Callable[[dict[str, Any]], Said], models: Any = None) -> Iterator[tuple[str, Any]]:
    """The address of a server that answers completions by a function of the body, and what came to it."""
    engine = SimpleNamespace(bodies=list[dict[str, Any]](), keys=list[str | None]())

    class Answering(Handler):
        def do_GET(self) -> None:
            self.send(200, {"data": [{"id": "m"}]} if models is None else models)

        def do_POST(self) -> None:
            body = json.loads(self.body())
            engine.bodies.append(body)
            engine.keys.append(self.headers.get("Authorization"))
            self.send(*answer(body))

    engine.handler = Answering
    with Server(Answering) as listening:
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
    # llama-cpp-python: a character whose bytes are spread over tokens.
    (classic(["a", "", ""], "a😀", text_offset=[5, 6, 6]), "a😀", [(0, 1), (1, 1), (1, 2)], 0),
    # Offsets in bytes, behind the text, in no order; a space that the text lacks; a stop that was cut off.
    (classic(["é", "é", "b"], "ééb", text_offset=[0, 2, 4]), "ééb", [(0, 1), (1, 2), (2, 3)], 0),
    (classic(["a", "b"], "ab", text_offset=[0, 900]), "ab", [(0, 1), (1, 2)], 0),
    (classic(["a", "b", "c"], "abc", text_offset=[0, 2, 1]), "abc", [(0, 1), (1, 2), (2, 3)], 0),
    (classic([" No", " one"], "No one"), "No one", [(0, 2), (2, 6)], 0),
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


def test_likeliest_tokens_of_one_text_are_told_apart_and_merged_ones_are_unknown(caplog):
    content = llama(("\ufffd", -1.0))["choices"][0]["logprobs"]
    content["content"][0]["top_logprobs"] = [{"token": "", "logprob": math.log(p)} for p in (0.4, 0.3, 0.2)]
    made = written({"choices": [{"text": "\ufffd", "finish_reason": "length", "logprobs": content}]})
    assert made.entropies[0] == pytest.approx(entropy([0.4, 0.3, 0.2, 0.1]), abs=1e-5)
    made = written(classic(["a", "b"], "ab", top_logprobs=[{"": -0.1}, {"b": -0.1, "c": -3.0}]))
    assert np.isnan(made.entropies).tolist() == [True, False] and "1 of 2 places" in caplog.text
    state: Any = Mock(lm=Mock(spec=RemoteLM))
    assert Entropy(reduction="max")(made, state).score == pytest.approx(float(made.entropies[1]))


@pytest.mark.parametrize("answer", [
    llama((" a", math.nan)), llama((" a", 2.0)), classic(["x"], "Paris"),
    classic(["a"], "ab", token_logprobs=[]), {"choices": []}, "data: {}\n\ndata: [DONE]\n\n", None,
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


def test_fewer_likeliest_tokens_are_asked_for_where_twenty_are_too_many():
    few = classic([" a"], " a", top_logprobs=[{" a": -0.1, " b": -3.0}])
    refused = 400, {"error": {"message": "at most 5 logprobs"}}
    with serving(lambda body: (200, few) if body["logprobs"] <= 5 else refused) as (url, _):
        lm = RemoteLM(url, "m")
    assert lm.top == 2 and "the 2 likeliest" in lm.description  # as many as it returns


def test_a_busy_server_is_asked_again_when_it_says():
    def answer(body: dict[str, Any]) -> Said:
        if len(engine.bodies) in (1, 3, 4):
            return 429, {"error": {"message": "busy"}}, {"Retry-After-Ms": "10"}
        return 200, llama((" a", -0.1))

    with serving(answer) as (url, engine):
        (made,) = RemoteLM(url, "m").generate(["x"], max_new_tokens=4, stop=["\n"])
    assert made.text == " a" and made.token_ids == (-1,) and len(engine.bodies) == 5
    assert engine.bodies[-1]["logprobs"] == 20 and engine.bodies[-1]["temperature"] == 0
    left = 1 - math.exp(-0.1) - math.exp(-9)
    assert made.entropies[0] == pytest.approx(entropy([math.exp(-0.1), math.exp(-9), left]), abs=1e-6)


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


@pytest.mark.parametrize(("status", "body", "models", "code", "named"), [
    (404, {"error": {"message": "nothing"}}, None, None, "nothing"),
    (400, {"error": {"message": "logprobs are off"}}, None, None, "logprobs are off"),
    (200, [1], None, "server", "no JSON"), (200, FIRST, [1], "server", ""),
    (200, FIRST, b"<html>", "server", ""),
    (200, llama((" a", -0.1), usage={"prompt_tokens": 31}), None, "unsupported", "chat template"),
])  # fmt: skip
def test_what_a_server_says_wrong_first_is_one_sentence(status, body, models, code, named):
    kind = RunError if code == "server" else UserError
    with serving(lambda request: (status, body), models) as (url, _), fails(code, url, named, kind=kind):
        RemoteLM(url, "m")
    with fails("network", "http://127.0.0.1:9/v1", kind=RunError):  # nobody is there
        RemoteLM("http://127.0.0.1:9/v1", "m")


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
    assert exits("rag", ["engine=http://user:hush@host/v1", "model=m"]) == 2
    assert not re.search("sk-secret|hush", f"{caught.value} {caplog.text}")
    for odd in ("sk-\u0441ecret", "sk\nsecret"):
        monkeypatch.setenv("OPENAI_API_KEY", odd)
        with fails("bad-value", "OPENAI_API_KEY") as caught:
            RemoteLM(url, "m")
        assert odd not in str(caught.value)


@pytest.mark.parametrize("option", [
    {"adapter": "a"}, {"quantization": {"load_in_4bit": True}}, {"device": "cuda"}, {"chat_template": "tool"},
    {"use_safetensors": False}, {"on_too_long": "truncate_left"},
], ids=lambda option: next(iter(option)))  # fmt: skip
def test_options_of_a_model_that_a_server_ignores_are_refused(option):
    settings = Rag(engine="http://127.0.0.1:9/v1")
    with fails("unsupported", f"model.{next(iter(option))}"):
        remote(replace(settings, model=replace(settings.model, **option)))
    with fails("conflict", "engine_options"):  # and these need an address
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
    monkeypatch.setattr(openai_client, "_LONGEST_PAUSE", 0.02)

    def loading(body: dict[str, Any]) -> Said:
        return (503, {"error": {"message": "Loading model"}}) if len(engine.bodies) < 12 else (200, FIRST)

    with serving(loading) as (url, engine):
        lm = RemoteLM(url, "m", timeout=20.0)
    # It is away; the next one on the port comes later.
    made: list[Any] = []
    asking = threading.Thread(target=lambda: made.extend(lm.generate(["x"], max_new_tokens=1)), daemon=True)
    asking.start()
    time.sleep(0.2)
    assert not made
    with Server(engine.handler, port=int(url.split(":")[2].split("/")[0])):
        asking.join(10)
    assert made[0].text == "1"


def test_a_request_that_is_not_answered_ends_after_its_time_or_at_an_interrupt(monkeypatch, caplog):
    monkeypatch.setattr(openai_client, "_QUIET", 0.1)
    hold = threading.Event()

    def silent(body: dict[str, Any]) -> Said:
        if body["max_tokens"] > 1:
            hold.wait(10)
        return 200, FIRST

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    with serving(silent) as (url, _):
        with fails("timeout", "0.3 s", kind=RunError):
            RemoteLM(url, "m", timeout=0.3).generate(["x"], max_new_tokens=4)
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
        answers = (tmp_path / "out" / "engine.jsonl").read_bytes().count(b"\n")
        broken, before = False, len(engine.bodies)
        cli.run("compare", typed)
    assert answers and not (tmp_path / "out" / "engine.jsonl").exists()
    assert sum(body["max_tokens"] > 1 for body in engine.bodies[before:]) == 4 - answers
