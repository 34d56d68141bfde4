"""What a chat template writes behind an answer ends it, in every chat, and in nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.refusals import fails
from helpers.serving import running
from helpers.tiny import EOS, byte_level, save_tiny

from probers import RAG
from probers.heads import LinearHead
from probers.model.causal_lm import CausalLM
from probers.model.loading import Loading
from probers.prober.calibration import Platt
from probers.prober.prober import Prober
from probers.prompts import CHAT_PROMPT, PLAIN_PROMPT, chat_text, turn_ends
from probers.store.spec import FeatureSpec
from probers.types import EndToken
from probers.words.thinking import Thinking

MARKS = ["<|im_start|>", "<|im_end|>", "<|bot|>", "<|user|>", "<|return|>", "</s>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
ROLE = "{% if m.role == 'user' %}USER: {{ m.content }}\n{% else %}BOT: {{ m.content }}"

LAST = "{% if loop.last %}X{% else %}Y{% endif %}{% endif %}"


@pytest.fixture
def tokenizer() -> Any:
    """A tokenizer whose own end token is in none of the templates."""
    changed = copy.deepcopy(byte_level(every_byte=True))
    changed.add_special_tokens({"additional_special_tokens": MARKS})
    return changed


def in_loop(turn: str, after: str = "") -> str:
    return f"{{% for m in messages %}}{turn}{{% endfor %}}{after}"


@pytest.mark.parametrize(("template", "expected"), [
    (CHATML, "<|im_end|>"),
    (in_loop(ROLE + " </s>{% endif %}"), "</s>"),  # Llama 2, Vicuna
    (in_loop(ROLE + "<|im_end|>\n{% endif %}", EOS), "<|im_end|>"),  # Phi 3
    (in_loop("<|user|>{{ m.content }}"), "<|user|>"),  # GLM: the next turn's beginning
    # gpt-oss: an earlier answer ends in the mark that also parts an answer from its thinking
    (in_loop(ROLE + LAST.replace("X", "<|return|>").replace("Y", "<|im_end|>")), "<|return|>"),
    (in_loop(ROLE + "\n### End\n{% endif %}"), "\n### End"),  # a mark that is no token
    (in_loop("### {{ m.role }}:\n{{ m.content }}\n\n"), "\n\n### user:"),
    (in_loop(ROLE + "\n\n{% endif %}", ""), "\n\nUSER:"),
    (in_loop("{{ m.content }}."), None),
    ("{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}", None),
    ("{{ messages[0].content }}<|im_end|>", None),  # it leaves answers out
    (None, None),
])  # fmt: skip
def test_the_end_of_a_turn_is_read_from_the_template(tokenizer, template, expected):
    tokenizer.chat_template = template
    wanted = expected
    if expected in (*MARKS, EOS):
        wanted = EndToken(tokenizer.convert_tokens_to_ids(expected))
    assert turn_ends(tokenizer) == (() if expected is None else (wanted,))


@pytest.fixture(params=["<|im_end|>", "\n[DONE]"])
def lm(request, tokenizer, tmp_path: Path) -> Iterator[CausalLM]:
    """A model that answers a chat, ends its turn by ``request.param``, and then writes the user's next."""
    tokenizer.chat_template = CHATML.replace("<|im_end|>", request.param)
    loaded = CausalLM.from_pretrained(
        str(save_tiny("llama", tmp_path / "model", tokenizer=tokenizer)), device="cpu", dtype="float32"
    )
    chain = loaded.tokenizer(f"<|bot|>Yes.{request.param}<|im_start|>Why")["input_ids"]
    chain.append(loaded.tokenizer.eos_token_id)
    assert len(set(chain)) == len(chain)  # each token says what comes next
    follow = torch.full((len(loaded.tokenizer),), chain[-1])
    follow[chain[:-1]] = torch.tensor(chain[1:])
    read: list[torch.Tensor] = []
    loaded.model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"]), with_kwargs=True
    )
    loaded.model.get_output_embeddings().register_forward_hook(
        lambda _, given, logits: (
            torch.nn.functional.one_hot(follow[read[-1][:, -logits.shape[1] :]], logits.shape[-1]).float() * 9
        )
    )
    yield loaded


MESSAGES = [{"role": "user", "content": "Is it?"}]


def test_the_loop_and_python_end_an_answer_with_its_turn_and_a_text_goes_on(lm):
    prompt = chat_text(lm.tokenizer, MESSAGES, "it")
    (text,) = [g.text for g in lm.generate([prompt], max_new_tokens=30)]
    assert text.startswith("Yes.") and text.endswith("Why")  # a text of one's own ends at the end tokens only
    rag = RAG(lm, ["A passage."], "never", prompt=CHAT_PROMPT, answer_tokens=0)
    assert rag("Is it?").text == "Yes."
    plain = PLAIN_PROMPT.bind(lm.tokenizer)
    assert plain.ends == plain.stop and CHAT_PROMPT.ends == ()
    spec = FeatureSpec(lm.spec, (1,), lm.width, pool="tokens", dtype="float32")
    bank = Prober(spec, LinearHead(["1"], lm.width), aggregate="max", threshold=0.0, calibration=Platt(1, 0))
    written = bank.generate(lm, [MESSAGES, prompt, MESSAGES], max_new_tokens=30)
    assert [each.text for each in written] == ["Yes.", text, "Yes."]
    assert bank.generate(lm, MESSAGES, max_new_tokens=30, stop=["."]).text == "Yes"


def test_the_server_ends_chats_so_and_completions_not(lm):
    prompt = chat_text(lm.tokenizer, MESSAGES, "it")
    with running(lm, None) as server:
        chat = server.client.chat.completions.create(model="testbed", messages=MESSAGES, temperature=0)
        (choice,) = chat.choices
        assert (choice.message.content, choice.finish_reason) == ("Yes.", "stop")
        body = {"model": "testbed", "prompt": prompt, "temperature": 0, "max_tokens": 30}
        assert server.client.completions.create(**body).choices[0].text.endswith("Why")


def test_one_of_several_chat_templates_is_chosen_by_name(tokenizer, tmp_path):
    """Claim: without a default one has to be named, by an option; converse: a default needs no name."""
    other = CHATML.replace("<|bot|>", "<|user|>")
    tokenizer.chat_template = {"rag": CHATML, "tool_use": other}
    folder = str(save_tiny("llama", tmp_path, tokenizer=tokenizer))
    unnamed = CausalLM.from_pretrained(folder)
    with fails("model", "rag, tool_use", "model.chat_template"):
        CHAT_PROMPT.bind(unnamed.tokenizer)
    assert turn_ends(unnamed.tokenizer) == () and Thinking.of(unnamed.tokenizer) is None
    named = CausalLM.from_pretrained(folder, chat_template="tool_use").tokenizer
    assert chat_text(named, MESSAGES, "it").endswith("<|user|>")
    with fails("unknown-choice", "model.chat_template=chat", "rag, tool_use"):
        CausalLM.from_pretrained(folder, chat_template="chat")
    tokenizer.chat_template = {"default": "{{ strftime_now('%Y') }}" + CHATML, "rag": other}
    tokenizer.save_pretrained(folder)
    dated = Loading(chat_date="1999-12-31").tokenizer(folder)
    text = chat_text(dated, MESSAGES, "it")
    assert text.startswith("1999") and text.endswith("<|bot|>")
