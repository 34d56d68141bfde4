"""Models that think: reasoning and answer are told apart, and both carry the scores of the raw tokens."""

from typing import Any

import numpy as np
import openai
import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails
from helpers.serving import Running, running
from helpers.thinking import CHATS, thinking_model
from hypothesis import given
from hypothesis import strategies as st

from probers import CausalLM, Prober
from probers.cli.main import run
from probers.data.texts import TextSource
from probers.evaluation.answers import final_answer
from probers.heads import LinearHead
from probers.prober.assessment import Assessor, WrittenText
from probers.prober.token_scores import check_growing, text_needs, text_scores
from probers.prompts import TESTBED_PROMPT, chat_text
from probers.rag.protocol import UNANSWERED
from probers.rag.triggers import Probing
from probers.serve.protocol import ChatRequest
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore
from probers.types import Needs
from probers.words.thinking import Thinking, part_of

MARKS = Thinking()


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return CausalLM.from_pretrained(str(thinking_model(tmp_path_factory.mktemp("model"))), dtype="float32")


@pytest.fixture(scope="module")
def bank(lm):
    spec = FeatureSpec(lm.spec, (1, 3), lm.width, "resid_post", "tokens", dtype="float32")
    return Prober(spec, LinearHead(["3/1", "3/3"], lm.width), threshold=0.05, aggregate="max")


@pytest.fixture(scope="module")
def server(lm, bank):
    with running(lm, bank, thinking=Thinking.of(lm.tokenizer)) as server:
        yield server


def ask(server: Running, content: Any, *, stream: bool = False, **own: Any) -> Any:
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    if stream:
        own |= {"stream": True, "stream_options": {"include_usage": True}}
    return server.client.chat.completions.create(
        model="testbed", messages=messages, max_tokens=80, temperature=0, **own
    )


def raw_text(lm: CausalLM, content: str) -> Any:
    prompt = chat_text(lm.tokenizer, [{"role": "user", "content": content}], "it")
    return lm.generate([prompt], max_new_tokens=80)[0]


def tokens_within(offsets: Any, start: int, end: int) -> list[int]:
    return [i for i, (a, b) in enumerate(offsets) if a < end and b > start]


@pytest.mark.parametrize(("text", "begun", "thought", "said"), [
    ("<think>\nLet me see.\n</think>\n\nYes.", False, "Let me see.", "Yes."),
    ("Let me see.</think>Yes.", True, "Let me see.", "Yes."), ("Yes.", False, None, "Yes."),
    ("<think>still", False, "still", None), (" \n<think></think> No", False, "", "No"),
    ("<thinker>", False, None, "<thinker>"),
])  # fmt: skip
def test_thinking_and_answer_are_told_apart(text, begun, thought, said):
    parts = [None if span is None else text[slice(*span)] for span in MARKS.split(text, begun=begun)]
    assert parts == [thought, said]


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think", ">", "a", " ", "\n", "b</"]), max_size=8)
)
def test_what_is_certain_of_a_growing_text_stays(pieces):
    text = "".join(pieces)
    whole = [text[slice(*span)] if span else "" for span in MARKS.split(text, begun=False)]
    for end in range(len(text) + 1):
        spans = MARKS.split(text[:end], begun=False, over=False)
        for span, final in zip(spans, whole, strict=True):
            assert final.startswith(text[slice(*span)] if span else "")


def test_marks_are_found_or_asked_for(lm):
    assert Thinking.of(lm.tokenizer) == MARKS and Thinking.of(lm.tokenizer, "none") is None
    assert Thinking.of(CausalLM.from_pretrained("testbed").tokenizer) is None
    assert Thinking.of(lm.tokenizer, "[A],[B]") == Thinking("[A]", "[B]")
    for wrong in ("<think>", "a,a", ",b"):
        with fails(None, wrong):
            Thinking.of(lm.tokenizer, wrong)
    with fails("unsupported", lm.tokenizer.eos_token):
        Thinking.of(lm.tokenizer, f"{lm.tokenizer.eos_token},b")


def test_both_parts_carry_the_scores_of_the_raw_tokens(server, lm, bank):
    for messages, *_ in CHATS:
        assert server.idle()
        raw = raw_text(lm, messages)
        (read,) = lm.score([raw.prompt], [raw.token_ids], needs=text_needs(bank))
        scores, _ = text_scores(bank, read.state)
        made = ask(server, messages)
        message, response = made.choices[0].message, made.choices[0].hallucination
        assert "<think>" not in message.content + message.reasoning_content
        for text, field in ((message.reasoning_content, response["reasoning"]), (message.content, response)):
            start = raw.text.index(text)
            tokens = tokens_within(raw.offsets, start, start + len(text))
            np.testing.assert_allclose(field["token_scores"], [scores[i] for i in tokens], atol=1e-4)
            assert "".join(text[slice(*span)] for span in field["token_offsets"]) == text
        details = made.usage.completion_tokens_details
        assert details.reasoning_tokens == len(response["reasoning"]["token_scores"])
        *chunks, last, usage = list(ask(server, messages, stream=True))
        for name in ("content", "reasoning_content"):
            pieces = [getattr(each.choices[0].delta, name, None) or "" for each in (*chunks, last)]
            assert "".join(pieces) == getattr(message, name)
        sent = [score for c in chunks[1:] for score in c.choices[0].hallucination["token_scores"]]
        assert sent and sent == response["token_scores"][: len(sent)]
        assert usage.usage.completion_tokens == made.usage.completion_tokens


def test_a_high_score_of_the_answer_ends_it_and_one_of_the_thinking_does_not(server):
    messages = CHATS[0][0]
    free = ask(server, messages).choices[0]
    spans = free.hallucination["spans"]
    assert spans and free.hallucination["reasoning"]["spans"]
    body = {"on_high": "stop", "threshold": spans[0]["score"] - 1e-3}
    made = ask(server, messages, extra_body={"hallucination": body}).choices[0]
    assert made.finish_reason == "content_filter"
    assert made.message.content == free.message.content[: spans[0]["start"]]
    assert made.message.reasoning_content == free.message.reasoning_content
    streamed = list(ask(server, messages, stream=True, extra_body={"hallucination": body}))
    assert "".join(c.choices[0].delta.content or "" for c in streamed if c.choices) == made.message.content


TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "Emma"}'}}
CALLED = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "A novel."},
]


BODY = {"messages": [{"role": "developer", "content": "Be kind."}, *CALLED], "tools": [TOOL]}


def turns_of(template: str, body: dict[str, Any]) -> Any:
    return ChatRequest.model_validate({"model": "m", **body}).turns(template)


def test_tools_and_their_results_go_through_the_template(server, lm):
    turns, more = turns_of(lm.tokenizer.chat_template, BODY)
    text = chat_text(lm.tokenizer, turns, "it", **more)
    assert text.startswith("Tools: look_up") and "calls look_up" in text and "tool: A novel." in text
    assert "system: Be kind." in text
    assert turns[2]["tool_calls"][0]["function"]["arguments"] == {"word": "Emma"}
    made = ask(server, CALLED, tools=[TOOL], parallel_tool_calls=True, tool_choice="auto")
    assert made.choices[0].hallucination is not None
    assert turns_of(lm.tokenizer.chat_template, {**BODY, "tool_choice": "none"})[1] == {}


@pytest.mark.parametrize(("messages", "more", "param"), [
    ([{"role": "tool", "content": "x", "tool_call_id": "9"}], {}, "messages[0].tool_call_id"),
    ([{"role": "user", "content": "x", "tool_calls": [CALL]}], {}, "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{"}}]}],
     {}, "messages[0].tool_calls[0].function.arguments"),
    (CALLED[:1], {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    (CALLED[:1], {"tools": [{"type": "function"}]}, "tools[0].function"),
    (CALLED[:1], {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, "enable_thinking"),
])  # fmt: skip
def test_malformed_chats_are_refused_by_name(server, messages, more, param):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(server, messages, **more)
    assert refused.value.param == param


TEXTS = [
    {
        "id": f"{i}-{w}", "question": f"Who wrote book {i}?", "group": str(i), "wrong": bool(w),
        "answer": f"<think>\nBook {i} is old. Perhaps {who} wrote it.\n</think>\n\nIt was {who} of Rome.",
    }
    for i in range(20) for w, who in enumerate(["Ann", "Bob"])
]  # fmt: skip


@pytest.mark.parametrize("source", ["texts", "cot"])
def test_features_are_those_of_the_part_that_is_read(lm, tmp_path, source):
    """Against the states of every token, pooled plainly."""
    if source == "texts":
        file = write_lines(tmp_path / "texts.jsonl", TEXTS)
        more, given = [f"texts.path={file}"], {each.id: each for each in TextSource(file).all()}
    else:
        questions = [{"id": str(i), "question": q, "answers": [a]} for i, (q, _, a) in enumerate(CHATS)]
        file = write_lines(tmp_path / "asked.jsonl", questions)
        corpus = write_lines(tmp_path / "corpus.jsonl", [{"id": "1", "title": "Emma", "text": "A novel."}])
        more = [f"questions={file}", f"corpus={corpus}", "label=acc", "prompt=chat", "k=1"]
        more += ["prompt.question_form={question}", "prompt.answer_cue=''"]
    for reads in ("both", "answer", "thinking"):
        out = tmp_path / reads
        typed = ["--source", source, f"model={lm.spec.id}", f"reads={reads}", f"out={out}", *more]
        typed += ["layers=[1,3]", "model.dtype=float32", "dtype=float32"]
        store = FeatureStore.open(run("datagen", typed))
        assert store.spec.position == {"both": "generated"}.get(reads, reads)
        rows, (features,), *_ = store.read_shard(0)
        for row, feature in list(zip(rows, features, strict=True))[:6]:
            if source == "texts":
                one = given[row["id"].partition("/")[2]]
                prompt = one.prompt_for(lm.tokenizer, "texts.jsonl", TESTBED_PROMPT)
            elif row["condition"] == "closed_book":
                prompt = chat_text(lm.tokenizer, [{"role": "user", "content": row["question"]}], "it")
            else:
                continue
            (read,) = lm.score([prompt], [row["text"]], needs=Needs.of((1, 3), pool="tokens"))
            tokens = tokens_within(read.offsets, *part_of(row["text"], reads))
            np.testing.assert_allclose(feature, read.state[tokens].mean(axis=0), atol=2e-4)
            assert row["n_tokens"] == len(tokens)


def test_a_prober_of_a_part_scores_that_part_alone(lm):
    spec = FeatureSpec(lm.spec, (1, 3), lm.width, "resid_post", "mean", position="thinking", dtype="float32")
    bank = Prober(spec, LinearHead(["3/1", "3/3"], lm.width), threshold=0.05)
    trigger = Probing(bank)
    texts = [raw_text(lm, CHATS[0][0]), *lm.generate(["user: Who"], max_new_tokens=4)]
    read = lm.score([t.prompt for t in texts], [t.token_ids for t in texts], needs=trigger.needs)
    first, second = trigger.decide(read, [None, None])
    span = part_of(texts[0].text, "thinking")
    tokens = tokens_within(read[0].offsets, *span)
    assert first.score == pytest.approx(
        float(bank.score_states(read[0].state[tokens].mean(axis=0)[None])[0]), abs=1e-4
    )
    assert second.score == UNANSWERED and second.fire == (UNANSWERED > 0.05)
    with fails("unsupported", "reads=both"):
        check_growing(bank)
    scores, _ = text_scores(bank, read[0].state, [tokens])
    scored = Assessor(bank)(WrittenText.of(read[0], scores))
    assert [(s.start, s.end) for s in scored.spans] == [span] and scored.score == pytest.approx(first.score)


def test_the_answer_is_what_stands_behind_the_thinking():
    text = "<think>So the answer is Bonn.</think>It is big. So the answer is Berlin."
    assert final_answer(text, "So the answer is") == "Berlin"
    assert final_answer("<think>So the answer is Bonn.", "So the answer is") == ""
    assert final_answer("So the answer is Bonn.", "So the answer is") == "Bonn"
