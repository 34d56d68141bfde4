"""The response field: one model for servers, finished texts, docs and readers; scoring without a folder."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.refusals import fails
from helpers.serving import bank_for, running
from pydantic import Field

from probers import CausalLM
from probers.checksums import Journal
from probers.data.texts import TextSource
from probers.prober import assessment
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.response import Response, TokenScores
from probers.prober.scoring import score_texts
from probers.rag.remote import Choice
from probers.serve.answers import as_events
from probers.serve.on_high import OnHigh
from probers.serve.vllm.choice import ForeignChoice

DOCS = Path(__file__).parents[1] / "docs" / "serving.md"
PROMPT, ANSWER = "Who does Lena Zaser work for?\nAnswer:", " She works for the Bank of England."


@pytest.fixture(scope="module")
def lm():
    return CausalLM.from_pretrained("testbed")


@pytest.fixture
def texts(tmp_path):
    lines = [{"id": "a", "prompt": PROMPT, "answer": ANSWER}, {"prompt": "so " * 3000, "answer": " long"}]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return list(TextSource(str(tmp_path / "texts.jsonl")).all())


def test_the_table_of_the_docs_is_that_of_the_model():
    rows = [f"| `{name}` | {field.description} |" for name, field in Response.model_fields.items()]
    table = re.search(r"\| field \| content \|\n\| --- \| --- \|\n(.*?)\n\n", DOCS.read_text(), re.DOTALL)
    assert table and table[1].split("\n") == rows


def test_a_stream_of_one_piece_numbers_its_tool_calls_as_clients_want_it():
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "2"}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    whole = {"object": "chat.completion", "choices": [choice]}
    first = json.loads(next(as_events(whole, with_usage=False)).removeprefix(b"data: "))
    calls = first["choices"][0]["delta"]["tool_calls"]
    assert [(each["index"], each["id"]) for each in calls] == [(0, "1"), (1, "2")]
    assert "index" not in call


class Longer(Response):
    """The response with one more field, and its computation."""

    n_tokens: int = Field(default=0, description="number of tokens")


def test_a_new_field_is_one_in_the_model_and_its_computation(lm, texts, monkeypatch):
    """Claim: every answer carries it and every reader reads it; converse: nothing else is declared."""

    def longer(**fields):
        return Longer(**fields, n_tokens=len(fields["token_scores"]))

    monkeypatch.setattr(assessment, "Response", longer)
    bank = bank_for(lm)
    made, _ = score_texts(lm, bank, texts)
    assert made.wire()["n_tokens"] == len(made.token_scores) > 3
    with running(lm, bank) as server:
        answer = server.client.completions.create(model="testbed", prompt=PROMPT, max_tokens=8, temperature=0)
        sent = server.client.completions.create(model="testbed", prompt=PROMPT, max_tokens=8, stream=True)
        each = [chunk.choices[0].hallucination for chunk in sent]
    assert answer.choices[0].hallucination["n_tokens"] == len(answer.choices[0].hallucination["token_scores"])
    assert each[-1]["n_tokens"] == sum(len(chunk["token_scores"]) for chunk in each)
    (written,) = lm.generate([PROMPT], max_new_tokens=8)
    foreign = ForeignChoice(OnHigh.of(None, bank, "", greedy=True), lm.tokenizer, written.prompt_ids)
    foreign.add(written.text, written.token_ids, written.logprobs.tolist())
    assert foreign.whole(foreign.count_tokens())["n_tokens"] == 8
    read = Choice.model_validate(answer.choices[0].model_dump()).hallucination
    assert read.wire() == Response.model_validate(answer.choices[0].hallucination).wire()


def test_a_chunk_has_the_lists_alone_and_what_is_read_is_what_was_sent():
    lists = {"token_scores": (0.5, None), "token_p_wrong": (0.6, None), "token_offsets": ((0, 1), (1, 2))}
    assert TokenScores(**lists).wire() == lists
    whole = Response(**lists, threshold=0.5, score=None, acted=None)
    assert whole.wire() == lists | {"threshold": 0.5, "score": None, "acted": None}
    assert Response.model_validate(json.loads(json.dumps(whole.wire()))) == whole


def test_the_last_chunk_has_the_tokens_after_those_sent_and_the_scores_that_changed():
    lists = {"token_scores": (0.5, None, 1.0), "token_p_wrong": (0.6, None, 0.7)}
    whole = Response(**lists, token_offsets=((0, 1), (1, 2), (2, 4)), threshold=0.5, token_entropies=None)
    assert whole.since([]) is whole
    same = whole.since([0.5, None]).wire()
    assert same["token_scores"] == (1.0,) and same["token_offsets"] == ((2, 4),) and "revised" not in same
    assert same["token_entropies"] is None and "token_logprobs" not in same
    revised = whole.since([0.5, 0.1, 2.0]).wire()
    assert revised["token_scores"] == revised["token_p_wrong"] == ()
    changed = [{"token": 1, "score": None, "p_wrong": None}, {"token": 2, "score": 1.0, "p_wrong": 0.7}]
    assert list(revised["revised"]) == changed


def test_texts_are_scored_without_a_folder(lm, texts, tmp_path):
    bank = bank_for(lm)
    made, long = score_texts(lm, bank, texts)
    assert long is None and made.threshold == bank.threshold
    assert lm.on_too_long == "error"  # as before
    low, _ = score_texts(lm, bank, texts, threshold=-1e9, unit="sentence")
    assert low.fires and [ANSWER[s.start : s.end] for s in low.spans] == [ANSWER.strip()]
    assert low.token_scores == made.token_scores
    journal = Journal(tmp_path / "journal")
    assert score_texts(lm, bank, texts, journal=journal) == [made, None]
    monkey = replace(texts[0], answer=" read again, this would differ")
    assert score_texts(lm, bank, [monkey, texts[1]], journal=journal) == [made, None]
    with fails("unsupported", "unit=claim"):
        score_texts(lm, bank, texts, unit="claim")


def test_lists_of_different_lengths_are_refused(lm):
    assess, places = Assessor(bank_for(lm)), [(i, i + 1) for i in range(20)]
    for more in (
        {"scores": [0.5]}, {"scores": [0.5] * 20, "logprobs": [0.0]}, {"scores": [0.5] * 20, "distances": []},
    ):  # fmt: skip
        with fails("mismatch", "20"):
            assess(WrittenText("p", "a" * 20, places, **more))
    with fails("mismatch", "20"):
        assess.spans("p", "a" * 20, places, [0.5])
    assert assess(WrittenText("p", "a" * 20, places, [0.5] * 20)).score == 0.5
