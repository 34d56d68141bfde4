"""The server: what it answers is what the engine and the prober say, whoever else is served."""

import itertools
import json
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import httpx
import numpy as np
import openai
import pytest
import torch
from helpers.serving import PROMPT, QUESTION, Running, bank_for, running

from probers import CausalLM
from probers.model.blocks import decoder_layers
from probers.model.decode import Request as Wanted
from probers.model.language_model import Sampling
from probers.model.tokens import encode_prompts, shown_bytes, token_bytes, token_offsets
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.token_scores import GrowingScores, GrowingSentences, text_needs, text_scores
from probers.rag import RAG
from probers.rag.triggers import Flare, Rind
from probers.serve.answers import Choice, Frame, as_json
from probers.serve.continuous import LiveText
from probers.serve.http import ApiError
from probers.serve.on_high import Judgement, OnHigh
from probers.serve.protocol import ChatRequest
from probers.serve.scheduler import Scheduler
from probers.types import RunError

PROMPTS = [PROMPT, "Question: Where was Lena Zaser born?\nAnswer:", "Lena Zaser was born in", "The"]


@pytest.fixture(scope="module")
def server(lm):
    with running(lm, bank_for(lm), corpus=True) as server:
        yield server


@pytest.fixture(scope="module")
def chatting():
    lm = CausalLM.from_pretrained("testbed", dtype="float32")
    form = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if tools %}{% endif %}"
    lm.tokenizer.chat_template = form
    with running(lm, None) as server:
        yield server


def completion(server: Running, prompt: Any = PROMPT, **options: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0, **options}
    return server.client.completions.create(model="testbed", prompt=prompt, **options)


@pytest.mark.parametrize(("pool", "position"), [
    ("tokens", "generated"), ("predicting", "entity"), ("mean", "generated"), ("last", "generated"),
    ("sequence", "generated"), ("mean", "sentence"), ("last", "sentence"),
])  # fmt: skip
def test_scores_are_those_of_a_pass_over_the_whole_text(lm, pool, position):
    """Each sentence may be pooled by itself; then its score is not that of the text so far."""
    bank = bank_for(lm, sequence=True) if pool == "sequence" else bank_for(lm, pool)
    bank = replace(bank, spec=replace(bank.spec, position=position))
    with running(lm, bank) as server:
        made = completion(server, PROMPTS, n=1, max_tokens=60)
    assert [c.index for c in made.choices] == [0, 1, 2, 3]
    alone, later = lm.generate(PROMPTS, max_new_tokens=60), []
    for choice, states in zip(made.choices, alone, strict=True):
        response, assess = choice.hallucination, Assessor(bank)
        assert choice.text == states.text
        (read,) = lm.score([states.prompt], [states.token_ids], needs=text_needs(bank))
        together, _ = text_scores(bank, read.state)
        scores = together
        if pieces := assess.pieces(states.prompt, states.text, states.offsets):
            scores, _ = text_scores(bank, read.state, list(pieces.values()))
            later += [(scores[tokens[-1]], together[tokens[-1]]) for tokens in list(pieces.values())[1:]]
        wanted = {"scores": scores, "p_wrong": bank.probability(scores), "logprobs": states.logprobs}
        for name, values in {**wanted, "entropies": states.entropies}.items():
            np.testing.assert_allclose(response[f"token_{name}"], values, atol=1e-4)
        assert [tuple(each) for each in response["token_offsets"]] == list(states.offsets)
        whole = assess(WrittenText.of(states, scores))
        assert response["fires"] == whole.fires and response["threshold"] == bank.threshold
        for mine, other in zip(response["spans"], whole.spans, strict=True):
            assert (mine["start"], mine["end"]) == (other.start, other.end)
            assert mine["score"] == pytest.approx(other.score, abs=1e-4)
        assert (whole.score is None) == (response["score"] is None) == (response["p_wrong"] is None)
        assert response["score"] == pytest.approx(whole.score, abs=1e-4)
    if position == "sentence":
        assert len(later) > 2 and (pool == "last") == all(a == pytest.approx(b, abs=1e-4) for a, b in later)


def test_a_sentence_is_known_by_what_comes_later(lm):
    """Claim: a beginning that later words withdraw or move is scored again; other texts are as alone."""
    bank = bank_for(lm, "mean")
    bank = replace(bank, spec=replace(bank.spec, position="sentence"), recogniser=None)
    words = [
        ["It", " is", " at", " 5", " p.m", ".", " New", " York", " time.", " No.", " Yes", " and", " no."],
        ["Yahoo", "!", " (", "so", ")", " is", " one", "."],
    ]
    ends = [list(itertools.accumulate(map(len, each))) for each in words]
    states = [torch.randn(len(each), len(bank.spec.layers), lm.width) for each in words]
    growing = GrowingSentences(bank)
    for step in range(len(words[0])):
        here = [i for i in (0, 1) if step < len(words[i])]
        written = [("".join(words[i][: step + 1]), ends[i][: step + 1]) for i in here]
        growing.add_each(here, torch.stack([states[i][step] for i in here]), written)
    for i in (0, 1):
        offsets = list(zip([0, *ends[i]], ends[i], strict=False))
        pieces = Assessor(bank).pieces("", "".join(words[i]), offsets)
        assert pieces is not None and len(pieces) == (3, 1)[i]
        wanted, _ = text_scores(bank, states[i].numpy(), list(pieces.values()))
        np.testing.assert_allclose(growing.scores(i), wanted, atol=1e-5)


def test_a_stream_is_the_whole_response_in_pieces(server):
    whole = completion(server, logprobs=2)
    chunks = list(completion(server, logprobs=2, stream=True, stream_options={"include_usage": True}))
    *pieces, last, usage = chunks
    assert "".join(c.choices[0].text for c in (*pieces, last)) == whole.choices[0].text
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    response, wanted = last.choices[0].hallucination, whole.choices[0].hallucination
    assert response["spans"] == wanted["spans"] and len(pieces) > 2
    assert len(response["token_scores"]) < len(wanted["token_scores"])
    lists: dict[str, Any] = {}
    for chunk in (*pieces, last):
        for name, values in chunk.choices[0].hallucination.items():
            if name.startswith("token_"):
                lists.setdefault(name, []).extend(values)
    assert lists == {name: wanted[name] for name in wanted if name.startswith("token_")}
    assert "spans" not in pieces[0].choices[0].hallucination
    tokens = [t for c in (*pieces, last) for t in c.choices[0].logprobs.tokens]
    assert tokens == whole.choices[0].logprobs.tokens and "".join(tokens) == whole.choices[0].text
    assert usage.choices == [] and usage.usage.completion_tokens == len(tokens)


@pytest.mark.parametrize("thinks", [False, True])
def test_scores_that_change_after_their_chunk_are_revised(lm, thinks):
    """Claim: lists of all chunks with the revised scores are those of the whole text, of each part."""
    words = ["Dr", ".", " No", " lived", ".", " In", " 1920", " it", " rained", "."]
    ends, text = list(itertools.accumulate(map(len, words))), "".join(words)
    offsets = list(zip([0, *ends], ends, strict=False))
    middle = ends[4] if thinks else 0
    parts = ((0, middle) if thinks else None, (middle, len(text)))
    before, after = ([float(i + late * (i in (1, 6))) for i in range(10)] for late in (False, True))
    bank = bank_for(lm)
    acting = OnHigh.of(None, replace(bank, spec=replace(bank.spec, position="sentence")), "", greedy=True)

    def record(count: int, scores: list[float]) -> WrittenText:
        return WrittenText("", text[: ends[count - 1]], offsets[:count], scores[:count])

    streamed = Judgement(acting, "")
    whole = Judgement(acting, "").whole(record(10, after), *parts, 10, written=10)
    chunks = [streamed.chunk(record(n + 1, before), *parts, [n]) for n in range(9)]
    last = streamed.whole(record(10, after), *parts, 10, written=10)
    for name in ("answer", *["reasoning"] * thinks):
        wanted, final, *each = [f if name == "answer" else f["reasoning"] for f in (whole, last, *chunks)]
        scores = [score for field in (*each, final) for score in field["token_scores"]]
        assert scores != list(wanted["token_scores"]) and len(final["token_scores"]) < 2
        for change in final["revised"]:
            scores[change["token"]] = change["score"]
            assert change["p_wrong"] == wanted["token_p_wrong"][change["token"]]
        assert scores == list(wanted["token_scores"]) and wanted["spans"] == final["spans"]


@pytest.mark.parametrize("text", ["Zoë 🙂🙃 wrote 日本語 in 1920.", "🙂", "e\u0301🏽"])
def test_tokens_that_share_a_character_have_all_of_it_in_every_chunk(lm, text):
    """Claim: offsets of a growing text are those of the whole; a part of a character waits for the rest."""
    ids = lm.tokenizer(text, add_special_tokens=False)["input_ids"]
    (prompt,) = encode_prompts(lm.tokenizer, [PROMPT], ["p"])
    live = LiveText(Wanted(prompt, len(ids) + 1), lm.tokenizer, lm.stops(()))
    for count, token in enumerate(ids, 1):
        before = len(live.offsets)
        live.accept(token, (0.0, 0.0), [])
        whole = not lm.tokenizer.decode(ids[:count]).endswith("\ufffd")
        assert len(live.offsets) == (count if whole else before)
    assert tuple(live.offsets) == token_offsets(lm.tokenizer, ids, prompt.ids)[1]


@pytest.mark.parametrize("body", [
    {"hallucination": {"on_high": "abstain", "threshold": 1e6}}, {"retrieval": {"trigger": "never"}},
])  # fmt: skip
def test_no_line_of_a_stream_grows_with_the_text(server, body):
    """Claim: whatever is held back, no line is longer than readers take, and the lists are whole."""
    options = {} if "retrieval" in body else {"logprobs": 20}
    request = {"model": "testbed", "prompt": QUESTION, "max_tokens": 48, "temperature": 0, **options, **body}
    lines = post(server, json.dumps({**request, "stream": True})).text.split("\n\n")
    whole = post(server, json.dumps(request)).json()["choices"][0]
    choices = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    assert max(map(len, lines)) < 30_000
    scored = [each["hallucination"] for each in choices if each.get("hallucination")]
    for name in ("token_scores", "token_offsets"):
        assert [value for each in scored for value in each[name]] == whole["hallucination"][name]
        assert max(len(each[name]) for each in scored) <= 32
    assert "".join(each["text"] for each in choices) == whole["text"]


def test_streams_beside_each_other_are_those_alone(server, lm):
    def stream(i: int) -> str:
        pieces = completion(server, PROMPTS[i % 4], stream=True, max_tokens=10 + i)
        return "".join(c.choices[0].text for c in pieces)

    with ThreadPoolExecutor(10) as pool:
        texts = list(pool.map(stream, range(10)))
    assert server.idle()
    for i, text in enumerate(texts):
        assert text == lm.generate([PROMPTS[i % 4]], max_new_tokens=10 + i)[0].text


def test_choices_are_drawn_by_seed(server, lm):
    made = completion(server, n=3, temperature=1.3, seed=5)
    generations = lm.generate([PROMPT] * 3, max_new_tokens=24, sampling=Sampling(1.3, seed=5))
    assert [c.text for c in made.choices] == [g.text for g in generations]
    assert made.usage.prompt_tokens == len(generations[0].prompt_ids)  # read once
    for seed in (5, 6):
        again = completion(server, n=3, temperature=1.3, seed=seed)
        assert ([c.text for c in again.choices] == [c.text for c in made.choices]) == (seed == 5)


def test_stops_cut_before_and_say_so(server):
    whole = completion(server).choices[0]
    cut = completion(server, stop=["works"]).choices[0]
    assert cut.text == whole.text[: whole.text.index("works")] and cut.finish_reason == "stop"
    assert completion(server, max_tokens=3).choices[0].finish_reason == "length"
    streamed = "".join(c.choices[0].text for c in completion(server, stop=["works"], stream=True))
    assert streamed == cut.text


def test_token_ids_and_a_threshold_of_the_request(server, lm):
    ids = lm.tokenizer(PROMPT)["input_ids"]
    made = completion(server, ids, extra_body={"hallucination": {"threshold": -1e6}}).choices[0]
    assert made.text == completion(server).choices[0].text
    assert made.hallucination["fires"] and made.hallucination["threshold"] == -1e6
    never = completion(server, extra_body={"hallucination": {"threshold": 1e6}}).choices[0]
    assert not never.hallucination["fires"]


@pytest.mark.parametrize(("trigger", "rule"), [("flare", Flare), ("rind", Rind)])
def test_retrieval_is_the_loop_of_a_request(server, lm, trigger, rule):
    served = server.served.retrieving
    rag = RAG(lm, served.retriever, rule(threshold=0.05), "answer", served.prompt, draft=0, **served.options)
    alone = rag(QUESTION)
    body = {"retrieval": {"trigger": trigger, "threshold": 0.05}}
    made = completion(server, QUESTION, max_tokens=None, extra_body=body).choices[0]
    assert made.text == alone.text
    assert made.retrieval["answer"] == alone.answer
    assert made.retrieval["retrievals"] == alone.retrievals > 0
    events = {name: [e for e in made.retrieval["events"] if e["type"] == name]
              for name in ("query", "passages", "discarded", "judged")}  # fmt: skip
    rounds = [each for each in alone.rounds if each.query]
    assert [event["query"] for event in events["query"]] == [each.query for each in rounds]
    fetched = [tuple(passage["id"] for passage in event["passages"]) for event in events["passages"]]
    assert fetched == [each.passage_ids for each in rounds]
    left = [each.text[len(each.accepted) :] for each in rounds if each.text != each.accepted]
    assert [event["text"] for event in events["discarded"]] == left
    scores = [event["score"] for event in events["judged"]]
    np.testing.assert_allclose(scores, [r.decision.score for r in alone.rounds if r.decision], atol=1e-5)
    chunks = list(completion(server, QUESTION, max_tokens=None, stream=True, extra_body=body))
    assert "".join(c.choices[0].text for c in chunks) == alone.text
    drafts = [c for c in chunks if (getattr(c.choices[0], "retrieval", None) or {}).get("type") == "draft"]
    assert len(drafts) > len(alone.rounds)


def test_a_prober_asks_for_retrieval(server):
    bodies = [{"retrieval": {"trigger": "probing", "threshold": threshold}} for threshold in (1e5, -1e5)]
    never, often = (completion(server, QUESTION, extra_body=each).choices[0].retrieval for each in bodies)
    assert (never["retrievals"], often["retrievals"]) == (0, 2)
    judged = [e for e in often["events"] if e["type"] == "judged"]
    draft = next(e for e in often["events"] if e["type"] == "draft")
    assert len(draft["scores"]) == len(draft["offsets"]) == len(draft["entropies"])
    assert draft["score"] == pytest.approx(judged[0]["score"]) and draft["spans"]
    body = {"retrieval": {"trigger": "never"}, "hallucination": {"threshold": -1e6}}
    assert completion(server, QUESTION, extra_body=body).choices[0].hallucination["fires"]
    body["hallucination"] = {"threshold": 1e6}
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "extra_body": body}
    *_, last, usage = completion(server, QUESTION, **options)
    assert not last.choices[0].hallucination["fires"] and last.choices[0].finish_reason == "stop"
    assert usage.choices == [] and usage.usage.total_tokens > usage.usage.prompt_tokens > 0


def test_retrieval_and_plain_requests_share_one_thread_of_the_model(lm):
    threads, first = set(), decoder_layers(lm.model)[0]
    hook = first.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread().name))
    requests = [(prompt, None) for prompt in PROMPTS]
    requests += [(QUESTION, {"retrieval": {"trigger": "rind", "threshold": 0.05}})] * 4
    with running(lm, bank_for(lm), corpus=True) as server, ThreadPoolExecutor(8) as pool:

        def ask(given: Any) -> Any:
            return completion(server, given[0], extra_body=given[1]).choices[0]

        alone = [*map(ask, requests[:5])]
        threads.clear()
        answers = list(pool.map(ask, requests))
    hook.remove()
    assert threads == {"scheduler"} and len(answers) == 8
    for made, expected in zip(answers, [*alone, *alone[4:] * 3], strict=True):
        assert made.text == expected.text
        scores = [each.hallucination["token_scores"] for each in (made, expected)]
        np.testing.assert_allclose(*scores, atol=1e-4)


def test_a_state_that_overflows_ends_its_text_alone(lm):
    bank = bank_for(lm, "mean")
    good, bad = torch.ones(2, lm.width), torch.full((2, lm.width), torch.inf)
    steps = [(good, good), (2 * good, bad), (3 * good, 3 * good)]
    scores, alone = GrowingScores(bank), GrowingScores(bank)
    (first, second, third) = (scores.add_each(["a", "b"], torch.stack(step)) for step in steps)
    assert isinstance(second[1], RunError)
    wanted = [alone.add_each(["x"], n * good[None])[0] for n in (1, 2, 3)]
    assert [first[0], second[0], third[0]] == pytest.approx(wanted, abs=1e-5)
    half = GrowingScores(replace(bank_for(lm), spec=replace(bank_for(lm).spec, dtype="float16")))
    results = half.add_each(["a", "b"], torch.stack([good, 1e6 * good]))  # too large for the prober's format
    assert isinstance(results[0], float) and isinstance(results[1], RunError)


def test_a_dead_thread_ends_what_waits_and_fails_the_health_check(lm, monkeypatch):
    with running(lm, None) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        monkeypatch.setattr("probers.serve.scheduler.Scheduler._publish", lambda *_: 1 / 0)
        for _ in range(2):  # while it dies, and when it is dead
            with pytest.raises(openai.InternalServerError):
                completion(server)
        assert httpx.get(f"{server.url}/health").status_code == 503
        with pytest.raises(RunError):
            server.served.scheduler.call(lambda: 1)
        monkeypatch.undo()


def test_alternatives_are_true_bytes_in_the_forms_of_openai(lm, server):
    for count in (0, 20):
        made = completion(server, "Lena Zaser 😀", logprobs=count, max_tokens=8).choices[0].logprobs
        assert [len(top) for top in made.top_logprobs] == [max(1, count)] * len(made.tokens)
        for token, logprob, top in zip(made.tokens, made.token_logprobs, made.top_logprobs, strict=True):
            assert top[token] == pytest.approx(logprob) == max(top.values())
    for token in range(300):
        spelled = token_bytes(lm.tokenizer, token)
        decoded = shown_bytes(spelled)
        if not decoded.startswith("bytes:"):
            assert decoded.encode() == spelled
    # What JSON does not have, and a token that sampling had ruled out.
    assert json.loads(as_json({"x": [math.inf, math.nan, 1 / 3]})) == {"x": [None, None, 0.333333]}
    text = Mock(row=Mock(ids=[40]), logprobs=[-math.inf], tops=[], text="a", offsets=[(0, 1)])
    choice = Choice(Frame("chat.completion", "m"), 0, text, lm.tokenizer, 0, None)
    assert choice._logprobs([0])["logprobs"]["content"][0]["logprob"] == -9999.0


@pytest.mark.parametrize("fields", [
    {"refusal": None, "annotations": [], "audio": None, "reasoning": None, "parsed": None, "images": []},
    {"content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i.", "annotations": []}]},
    {"tool_calls": [{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}]},
])  # fmt: skip
def test_an_answer_can_be_sent_back(fields):
    message = {"role": "assistant", "content": "Hi.", **fields}
    request = ChatRequest.model_validate({"model": "m", "messages": [message]})
    assert request.messages[0].text == "Hi."


#: Changes of a good request, the field that ``param`` names, and what the message says of it.
REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"model": "other"}, "model", "'testbed'"), ({"prompt": None}, "prompt", ""),
    ({"prompt": ""}, "prompt", "empty"), ({"prompt": [10**9]}, "prompt", "1000000000"),
    ({"prompt": ["a", 5]}, "prompt[1]", ""), ({"prompt": [[1, "a"]]}, "prompt[0][1]", ""),
    ({"prompt": "word " * 3000}, "prompt", "maximum context length"),
    ({"prompt": "\ud800"}, "prompt", "surrogates"), ({"stop": ["a", "b\ud83d"]}, "stop[1]", "surrogates"),
    ({"metadata": {"\ud83d": "a"}}, "metadata", "surrogates"), ({"\ud83d": 1}, None, "surrogates"),
    ({"max_tokens": 0}, "max_tokens", ""), ({"max_tokens": 10**6}, "max_tokens", "1000000"),
    ({"max_tokens": "4"}, "max_tokens", ""), ({"temperature": 3}, "temperature", ""),
    ({"top_p": 0}, "top_p", ""), ({"n": 0}, "n", ""), ({"stop": ["a", ""]}, "stop", "empty string"),
    ({"stop": ["a"] * 17}, "stop", ""), ({"echo": True}, "echo", ""), ({"verbosity": "low"}, "verbosity", ""),
    ({"tempreature": 1}, "tempreature", "Unrecognized request argument supplied"),
    ({"presence_penalty": 0.5}, "presence_penalty", ""),
    ({"moderation": {"mode": "block"}}, "moderation", ""),
    ({"hallucination": {"str": 1}}, "hallucination.str", ""),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", ""),
    ({"retrieval": {}}, "retrieval.trigger", ""),
    ({"retrieval": {"trigger": "nonsense"}}, "retrieval.trigger", "'nonsense'"),
    ({"retrieval": {"trigger": "oracle"}}, "retrieval.trigger", "oracle"),
    ({"retrieval": {"trigger": "never", "threshold": 1}}, "retrieval.trigger", "threshold"),
    *(({"retrieval": {"trigger": "never"}, **more}, next(iter(more)), value) for more, value in (
        ({"n": 2}, "one greedy answer"), ({"prompt": "a \ud800"}, "surrogates"), ({"stop": ["."]}, ""),
        ({"max_tokens": 10**6}, "1000000"), ({"prompt": ["a", "b"]}, "one question"),
    )),
]  # fmt: skip


def post(server: Running, content: str, path: str = "completions") -> httpx.Response:
    headers = {"content-type": "application/json"}
    return httpx.post(f"{server.url}/v1/{path}", content=content, headers=headers)


@pytest.mark.parametrize(("change", "param", "value"), REFUSED, ids=lambda v: str(v)[:40])
def test_mistakes_are_told_as_openai_tells_them(server, change, param, value):
    body = {"model": "testbed", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, **change}
    answer = post(server, json.dumps(body))
    assert answer.status_code == (404 if "model" in change else 400), answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param
    assert value in error["message"] and (param or "") in error["message"]
    assert server.idle()


def test_fields_of_openai_that_ask_for_nothing_are_taken(server):
    fields: dict[str, Any] = {
        "presence_penalty": 0, "best_of": 1, "echo": False, "logit_bias": {}, "user": "someone",
        "stream_options": {"include_obfuscation": False}, "prompt_cache_key": "a", "store": False,
        "safety_identifier": "a", "metadata": {"task": "b"}, "verbosity": "medium",
    }  # fmt: skip
    made = completion(server, extra_body=fields)
    assert made.choices[0].text == completion(server).choices[0].text


@pytest.mark.parametrize(("fields", "param"), [
    ({"max_completion_tokens": 10**6}, "max_completion_tokens"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": "word " * 3000}]}, "messages"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "Hi", "refusal": "No."}]}, "messages[0].refusal"),
    *(({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]},
       f"messages[0].content[1].{name}") for part, name in (
        ({"type": "text", "text": "\ud800"}, "text"), ({"type": "text", "text": None}, "text"),
        ({"type": "image_url"}, "type"),
    )),
    ({"tool_choice": {"type": "x"}}, "tool_choice"),
    ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs.a"),
])  # fmt: skip
def test_param_of_a_chat_is_what_was_sent(chatting, fields, param):
    body = {"model": "testbed", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}
    answer = post(chatting, json.dumps(body), "chat/completions")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text
    part = {"type": "text", "text": "Hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    body |= {**dict.fromkeys(fields), "messages": [{"role": "user", "content": [part]}]}
    good = httpx.post(f"{chatting.url}/v1/chat/completions", json=body)
    assert good.status_code == 200, good.text


@pytest.mark.parametrize(("content", "headers", "status", "part"), [
    ("{", {}, 400, "JSON"), ("[]", {}, 400, "the body"), ("", {}, 400, "the body"),
    ("{}", {"content-type": "text/plain"}, 415, "application/json"),
    ("x" * 4_000_001, {}, 413, "more than 4000000 bytes"),
    ([b"x" * 500_000] * 10, {}, 413, "more than 4000000 bytes"),  # in chunks
    (b'{"model": "\xff"}', {}, 400, "UTF-8"), (b"{}", {"content-encoding": "br"}, 415, "br"),
    ('{"max_tokens": ' + "9" * 5000 + "}", {}, 400, "digits"),
    ('{"model": "testbed", "prompt": "a", "temperature": 1e999}', {}, 400, "temperature"),
    ("{}", {f"x-{i}": "a" for i in range(300)}, 431, "headers"),
], ids=lambda value: str(value)[:30])  # fmt: skip
def test_bodies_that_are_none(server, content, headers, status, part):
    headers = {"content-type": "application/json", **headers}
    answer = httpx.post(f"{server.url}/v1/completions", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert part in error["message"] and len(error["message"]) < 200


@pytest.mark.parametrize(("method", "path", "status", "part"), [
    ("POST", "/v1/responses", 404, "/v1/chat/completions"), ("GET", "/models", 404, "end with /v1"),
    ("POST", "/v1/files", 404, "POST /v1/files"),  # an upload, no JSON
    ("POST", "/v1/v1/chat/completions", 404, "not offered"), ("GET", "/v1/completions", 405, "send POST"),
    ("PUT", "/health", 405, "send GET"),
])  # fmt: skip
def test_what_is_not_offered_says_so(server, method, path, status, part):
    form = {"content-type": "multipart/form-data"}
    answer = httpx.request(method, server.url + path, content="--x", headers=form)
    error = answer.json()["error"]
    assert answer.status_code == status and part in error["message"] and path in error["message"]
    assert error["code"] == ("unknown_url" if status == 404 else None)
    assert (answer.headers.get("allow") is not None) == (status == 405)


def test_models_and_other_paths(server):
    (entry,) = server.client.models.list().data
    assert entry.id == "testbed" and entry.prober["pool"] == "tokens" and entry.chat is False
    assert {"probing", "flare", "rind", "never"} <= set(entry.triggers)
    assert not {"oracle", "adaptive", "before_entity", "probing_before"} & set(entry.triggers)
    assert httpx.get(f"{server.url}/page/page.js").status_code == 200
    assert httpx.get(f"{server.url}/page/nothing").status_code == 404
    with pytest.raises(openai.NotFoundError) as refused:
        server.client.models.retrieve("other")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="chat template"):
        server.client.chat.completions.create(model="testbed", messages=[{"role": "user", "content": "Hi"}])


def test_counts_have_no_name_that_a_client_chooses(lm):
    """Claim: a series for each route and for "other"; converse: what is offered has its own."""
    with running(lm, None, api_key="secret") as server:
        for i in range(20):
            for path in (f"/v1/{i}", f"/{i}/x", f"/v1/models/{i}", f"/page/{i}"):
                httpx.get(server.url + path)
        completion(server, max_tokens=1)
        page = httpx.get(f"{server.url}/metrics", headers={"authorization": "bearer secret"}).text
    series = set(re.findall(r'requests_total{path="(.*?)",status="(\d+)"}', page))
    models, pages = ("/v1/models/{name:path}", "401"), ("/page", "404")
    assert series == {("other", "404"), models, pages, ("/v1/completions", "200")}
    assert 'probers_request_seconds_count{path="/v1/completions"} 1.0' in page


def test_answers_and_log_lines_have_the_name_of_their_request_and_texts_are_logged_if_asked(
    lm, chatting, monkeypatch, caplog
):
    completion(chatting, "The secret word", max_tokens=2)
    assert "secret" not in caplog.text
    with running(lm, None, log_requests=True) as server:
        completion(server, "The secret\x1b[31m word", max_tokens=2)
        assert "secret" in caplog.text and "\x1b" not in caplog.text
        answers = [httpx.get(f"{server.url}{path}") for path in ("/health", "/v1/models", "/", "/no")]
        bodies = ("{", '{"model": "testbed", "prompt": "a", "max_tokens": 1}')
        answers += [post(server, content) for content in bodies]
        names = [answer.headers["x-request-id"] for answer in answers]
        assert len(set(names)) == len(names) and names[-1] in caplog.text and names[0] not in caplog.text
        monkeypatch.setattr("probers.serve.endpoint.Endpoint._acting", lambda *_: 1 / 0)
        answer = post(server, '{"model": "testbed", "prompt": "a"}')
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
        (line,) = [record for record in caplog.records if record.exc_info]
        assert line.getMessage().startswith(answer.headers["x-request-id"])


def test_retry_after_is_when_enough_texts_are_over(lm):
    """Claim: it grows with what was asked for before; converse: what never fits is refused for good."""
    scheduler = Scheduler(lm, None, rows=2, most_waiting=2, cache_megabytes=1)
    scheduler._step = 0.1
    (prompt,) = encode_prompts(lm.tokenizer, [PROMPT], ["p"])

    def texts(*limits: int) -> list[LiveText]:
        return [LiveText(Wanted(prompt, n), lm.tokenizer, lm.stops(()), changed=Mock()) for n in limits]

    def refused(count: int) -> ApiError:
        with pytest.raises(ApiError) as error:
            scheduler.submit(texts(*[10] * count))
        return error.value

    begun = texts(50, 200)
    for text in begun:
        text.row.ids += [1] * 20
    scheduler.submit([*begun, *texts(100, 100)])
    errors = [refused(n) for n in (1, 2, 3, 4)]
    assert {error.status for error in errors} == {429}
    assert [error.retry for error in errors] == [3, 13, 18, 23]  # 30, 130, 180 and 230 steps from now
    scheduler._step = 10
    assert refused(1).retry == 60
    assert (refused(5).status, refused(5).param) == (400, "n")


def test_a_client_that_goes_frees_its_row(lm, monkeypatch):
    """Claim: one that reads a stream, and one that waits for the whole text, which writes on and on."""
    with running(lm, None, rows=1, waiting=0) as server:
        stream = completion(server, "The", max_tokens=200, stream=True)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            completion(server)
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
        stream.close()
        assert server.idle()
        assert completion(server).choices[0].text
        monkeypatch.setattr(CausalLM, "_eos", frozenset())
        body = {"model": "testbed", "prompt": "The", "max_tokens": 1000, "temperature": 1.5}
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
        assert server.idle()
        page = httpx.get(f"{server.url}/metrics").text
    assert 'probers_texts_total{stop="cancelled"} 2.0' in page and "probers_running_texts 0.0" in page


def test_the_key_is_asked_for(lm):
    with running(lm, None, api_key="secret") as server:
        assert completion(server, max_tokens=2).choices
        for path in ("/v1/models", "/metrics"):
            answer = httpx.get(f"{server.url}{path}")
            assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
        for given, status in (("Bearer secret2", 401), ("Bearer \xe9", 401), ("Basic secret", 401),
                              ("bearer secret", 200), ("BEARER  secret", 200)):  # fmt: skip
            answer = httpx.get(f"{server.url}/v1/models", headers={"Authorization": given.encode("latin-1")})
            assert answer.status_code == status, given
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_without_a_prober_there_are_no_scores(chatting):
    assert not hasattr(completion(chatting).choices[0], "hallucination")
    with pytest.raises(openai.BadRequestError, match="corpus=FILE"):
        completion(chatting, extra_body={"retrieval": {"trigger": "never"}})


def test_what_the_model_breaks_on_ends_alone(lm, server, monkeypatch):
    broken = Mock(side_effect=RuntimeError("out of memory"))
    monkeypatch.setattr("probers.serve.continuous.ContinuousBatch._write", broken)
    with pytest.raises(openai.InternalServerError, match="out of memory"):
        completion(server)
    monkeypatch.undo()
    assert server.idle()
    assert completion(server).choices[0].text == lm.generate([PROMPT], max_new_tokens=24)[0].text
