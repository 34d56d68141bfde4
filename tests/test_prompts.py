"""Prompts: what stands where, and chat prompts through the tokenizer's own template."""

import dataclasses
from datetime import date
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from helpers.refusals import fails
from helpers.tiny import tiny_lm

from probers.cli.compose import request as settings
from probers.cli.inputs import load_model
from probers.cli.runs import RunFolder
from probers.evaluation.answers import extract_answer
from probers.prompts import PromptTemplate, chat_text

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def template(name):
    return settings("datagen", [f"prompt={name}"]).prompt.make()


@pytest.fixture
def tokenizer():
    loaded = tiny_lm("llama").tokenizer
    loaded.chat_template = TEMPLATE
    yield loaded
    loaded.chat_template = None


def test_a_bos_the_tokenizer_adds_itself_is_not_written_twice():
    chat, write = PromptTemplate("c", chat=True), lambda messages, **_: f"<s>[INST] {messages[0]['content']}"
    for ids, begins in (([1, 7], "[INST] Question"), ([7], "<s>[INST] Question")):
        tokenizer = Mock(bos_token="<s>", bos_token_id=1, chat_template="x", return_value={"input_ids": ids})
        tokenizer.apply_chat_template, tokenizer.added_tokens_decoder = write, {}
        assert chat.bind(tokenizer).question("Who?").startswith(begins)


def test_probing_rags_form_is_read_as_it_is_written():
    """Four exemplars of the form the answer is to have; the answer stands behind its cue."""
    prompt = template("probing_rag")
    assert prompt.exemplars.count("\nRationale: ") == prompt.exemplars.count("\nAnswer: ") == 4
    assert prompt.question("Who?").endswith("\n\nQuery: Who?\nRationale:")
    for exemplar in prompt.exemplars.strip().split("\n\n"):
        written = exemplar.partition("Rationale:")[2]
        assert not any(stop in written for stop in prompt.stop)
        assert extract_answer(written, prompt.answer_cue) == exemplar.rpartition("Answer: ")[2].strip()
    for exemplar in template("dragin").exemplars.strip().split("\n\n"):
        assert extract_answer(exemplar, template("dragin").answer_cue)


DRAGIN = {"dragin_2wiki": 6, "dragin_strategyqa": 6, "dragin_hotpotqa": 8, "dragin_iirc": 8}


def test_a_chat_prompt_goes_through_the_models_template_and_needs_one(tokenizer):
    chat = template("chat").bind(tokenizer)
    assert chat.fingerprint == template("chat").fingerprint  # of no model
    text = chat.question("Who?", ["A passage."], partial="It was")
    assert text.startswith("<|user|>Context:\n[1] A passage.\nQuestion: Who?")
    assert text.endswith("<|end|><|assistant|>It was")
    start, end = chat.question_span(text, "Who?", "It was")
    assert text[start:end] == "Who?"
    article = chat.continuation("Spain", "Spain is in")
    assert article == "<|user|>Tell me something about Spain.<|end|><|assistant|>Spain is in"
    shots = dataclasses.replace(template("chat"), exemplars="One example.\n").bind(tokenizer)
    assert shots.question("Who?").startswith(shots.prefix) and shots.prefix == "<|user|>One example.\n"
    tokenizer.chat_template = None
    with fails("model", "prompt=chat"):
        template("chat").bind(tokenizer)


def test_the_forms_of_articles_and_of_questions_with_passages():
    names = ("testbed", "mind", "radio", "chat")
    assert len({template(name).fingerprint for name in names}) == 4
    assert template("testbed").continuation("T", "It lies in") == "It lies in"
    radio = template("radio").continuation("{T}", "It lies in")
    assert radio.endswith("titled {T}. Please continue the passage from where the sentence ends. It lies in")

    def asked(name):
        return template(name).question("Who?", ["P1.", "P2."], partial=" It")

    assert asked("dragin").endswith(
        "\n\nContext:\n[1] P1.\n[2] P2.\nAnswer in the same format as before.\nQuestion: Who?\nAnswer: It"
    )
    assert asked("radio") == (
        "External Knowledge: [1] P1. [2] P2. \nUsing the external knowledge provided above, please answer "
        "the following question:\nQuestion: Who?\nAnswer: It"
    )
    assert "Context" not in template("dragin").question("Who?")


@pytest.mark.parametrize(("name", "count"), DRAGIN.items())
def test_dragins_sets_have_as_many_exemplars_as_the_authors(name, count):
    prompt, plain = template(name), template("dragin")
    *shots, end = prompt.exemplars.split("\n\n")
    assert end == "" and len(set(shots)) == count and not set(shots) & set(plain.exemplars.split("\n\n"))
    answers = []
    for shot in shots:
        steps, cue, said = shot.partition("\nAnswer: ")[2].rpartition(f" {prompt.answer_cue} ")
        assert cue and steps.endswith(".") and ". " in steps  # more than one step
        answers.append(extract_answer(shot, prompt.answer_cue))
        assert answers[-1] == said.removesuffix(".")
    if name == "dragin_strategyqa":
        assert answers.count("yes") == answers.count("no") == count / 2
    # The request for steps stands before the question that is asked, and not before the exemplars.
    text = prompt.question("Who?", ["P."]).removeprefix(prompt.exemplars)
    assert ("step" in text) == (name in ("dragin_hotpotqa", "dragin_strategyqa"))


def test_exemplars_may_come_from_a_file_as_it_stands(tmp_path):
    file = tmp_path / "shots.txt"
    file.write_bytes("Question: Ünd {x}?\r\nAnswer: ${y} 1.\n\n".encode())
    made = settings("rag", ["prompt=dragin_iirc", f"prompt.exemplars_file={file}"]).prompt.make()
    assert made.exemplars == "Question: Ünd {x}?\r\nAnswer: ${y} 1.\n\n" == made.prefix
    assert made.question("Who?") == f"{made.exemplars}Question: Who?\nAnswer:"
    # What is in it tells prompts apart, and not where it lies.
    same = dataclasses.replace(template("dragin_iirc"), exemplars=made.exemplars)
    assert made.fingerprint == same.fingerprint != template("dragin_iirc").fingerprint
    file.write_bytes(b"\xff\xfe")
    for given in (file, tmp_path / "no.txt"):
        with fails(None, given):
            settings("rag", [f"prompt.exemplars_file={given}"]).prompt.make()


def test_a_form_that_cannot_be_filled_in_is_refused_before_anything_runs():
    for form in ("{0}", "{text}", "{question", "{question.upper}"):
        with fails("bad-value", "question_form="):
            settings("rag", [f"prompt.question_form='{form}'"]).prompt.make()
    assert dataclasses.replace(template("testbed"), question_form="{{x}} {question}").question("Q") == "{x} Q"


@pytest.mark.parametrize("name", ["testbed", "mind", "radio", "dragin", "probing_rag", *DRAGIN])
def test_every_form_begins_with_its_prefix_and_shows_where_the_question_is(name):
    prompt = template(name)
    text = prompt.question("Who was it?", ["A passage."], partial=" It was")
    assert text.startswith(prompt.prefix) and prompt.bind(None) is prompt
    start, end = prompt.question_span(text, "Who was it?", " It was")
    assert text[start:end] == "Who was it?"


def test_a_run_says_one_day_however_long_it_takes(tmp_path, monkeypatch):
    lm = tiny_lm("llama")
    lm.tokenizer.chat_template = "{{ strftime_now('%B %d, %Y') }} {{ messages[0].content }}"
    lm.tokenizer.save_pretrained(tmp_path / "model")
    lm.model.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    given = ["model.name=./model", "model.device=cpu", "model.dtype=float32", "prompt=chat", "out=run"]
    folder = RunFolder(tmp_path / "run", "rag", settings("rag", given).record)
    assert folder.begin()
    texts = []
    for day in ("2024-03-01", "2025-07-09"):
        clock = SimpleNamespace(today=partial(date.fromisoformat, day))
        monkeypatch.setattr("probers.cli.inputs.date", clock)
        tokenizer = load_model(settings("rag", given), folder).tokenizer
        texts.append(chat_text(tokenizer, [{"role": "user", "content": "Hi"}], "it"))
    assert texts[0] == texts[1] and "2024" in texts[0] and "01" in texts[0]
    fixed = load_model(settings("rag", [*given, "model.chat_date=1999-12-31"]), None).tokenizer
    assert "1999" in chat_text(fixed, [{"role": "user", "content": "Hi"}], "it")
