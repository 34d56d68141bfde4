"""Tokenizers of the most downloaded families: end markers, padded vocabularies, and what they normalise."""

import unicodedata
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from helpers.family_tokenizers import APPENDED, FAMILIES, family_tokenizer
from helpers.refusals import fails
from helpers.tiny import byte_level, save_tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from probers import CausalLM
from probers.model.language_model import Sampling
from probers.model.tokens import (
    Prompt,
    appended,
    encode_continuation,
    encode_prompts,
    read_offsets,
    tell_once,
    token_bytes,
    token_offsets,
)
from probers.types import Needs, UserError
from probers.words.text import letters_of

PROMPT = "Who founded the mill?"
PLAIN = " Mira Tolven founded the mill in 1912."
DECOMPOSED = " The cafe\u0301 of Rene\u0301 Mu\u0308ller, 1912."
SPACES = "  Mira  Tolven,\n\n 1912 . "
#: Families whose tokens read as another text, by text: other letters, composed letters, other spaces.
LOWER, COLLAPSING = {"bert", "gpt1", "albert"}, {"bert", "gpt1", "albert", "t5", "xlnet"}
COMPOSING = {"qwen", "qwen embedding", "gpt-neox, olmo, stablelm, mpt"} | COLLAPSING
CHANGED = {PLAIN: LOWER, DECOMPOSED: COMPOSING, SPACES: COLLAPSING}


def signs(text: str) -> str:
    return "".join(sign for sign, _ in letters_of(text))


def normalised(tokenizer: Any, text: str) -> str:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return signs(text if normalizer is None else normalizer.normalize_str(text))


def read(tokenizer: Any, text: str) -> tuple[Prompt, tuple[int, ...], tuple[tuple[int, int], ...]]:
    """A text after the prompt: its tokens and their places in it, which must cover it in order."""
    (prompt,) = encode_prompts(tokenizer, [PROMPT])
    ids = encode_continuation(tokenizer, prompt, text)
    whole, offsets = read_offsets(tokenizer, ids, prompt.ids, text)
    assert whole == text and len(offsets) == len(ids)
    assert {i for start, end in offsets for i in range(start, end)} == set(range(len(text)))
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(offsets))
    return prompt, ids, offsets


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_end_without_what_the_tokenizer_appends(family, caplog):
    tokenizer, names = family_tokenizer(family), APPENDED[family]
    marker = tuple(tokenizer.convert_tokens_to_ids(list(names)))
    assert appended(tokenizer) == marker
    tell_once.cache_clear()
    # A text that itself ends with the marker keeps it.
    blank = " " if tokenizer(" ")["input_ids"] else "x"
    texts = [PROMPT, blank, PROMPT + "".join(names), "x" + "".join(names) * 2]
    for _ in range(2):
        for text, prompt in zip(texts, encode_prompts(tokenizer, texts, start=True), strict=True):
            assert [*prompt.ids, *marker] == tokenizer(text)["input_ids"]
            assert len(prompt.offsets) == len(prompt.ids)
    assert sum("after a text" in each.message for each in caplog.records) == bool(names)  # told once
    first = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    if first is not None:
        assert encode_prompts(tokenizer, [""], start=True)[0].ids == (first,)
    assert not set(marker) & set(read(tokenizer, PLAIN)[1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", [PLAIN, DECOMPOSED, SPACES], ids=["plain", "decomposed", "spaces"])
def test_texts_are_read_with_their_own_characters(family, text):
    tokenizer = family_tokenizer(family)
    if family == "gpt1" and text == DECOMPOSED:
        tokenizer = family_tokenizer("bert")  # ours of GPT has no byte for the apostrophe
    prompt, ids, offsets = read(tokenizer, text)
    decoded = token_offsets(tokenizer, ids, prompt.ids)[0]
    assert signs(decoded) == normalised(tokenizer, text)
    assert (decoded == text) is (family not in CHANGED[text])
    # The library's own places are within ours, which have spaces and dropped characters beside them.
    library = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if tuple(library["input_ids"]) == ids:
        for (start, end), (first, last) in zip(offsets, library["offset_mapping"], strict=True):
            assert first == last or (start <= first and last <= end)
    word = "Tolven" if "Tolven" in text else "ller"
    start = text.index(word)
    inside = [i for i, (a, b) in enumerate(offsets) if a < start + len(word) and b > start]
    assert normalised(tokenizer, word) in signs(tokenizer.decode([ids[i] for i in inside]))
    assert offsets[inside[0]][0] >= start - 4 and offsets[inside[-1]][1] <= start + len(word) + 2


_TRICKY = "aAeEoOsn1 \n\t.,'`\u0301\u0308\u0323éÉôöﬁ½…\u1112\u1161\u11ab🙂"


@pytest.mark.parametrize("family", ["qwen", "llama, internlm", "bert", "t5", "xlnet", "albert"])
@given(text=st.text(_TRICKY, min_size=1, max_size=16))
@settings(max_examples=60, deadline=None)
def test_any_text_at_all(family, text):
    tokenizer = family_tokenizer(family)
    try:
        prompt, ids, offsets = read(tokenizer, text)
    except UserError as error:
        assert "cannot be written" in str(error) and family not in ("qwen", "llama, internlm")
        return
    decoded, places = token_offsets(tokenizer, ids, prompt.ids)
    for (start, end), (a, b) in zip(offsets, places, strict=True):
        marks = [unicodedata.combining(sign) for sign in text[start : start + 1] + text[end : end + 1]]
        if b > a and not any(marks) and "\u1161" not in text and "\u11ab" not in text:
            assert signs(decoded[a:b]) in normalised(tokenizer, text[start:end])


@pytest.mark.parametrize(("family", "text"), [
    ("bert", " Mira 🙂"), ("qwen", "\ud83d"), ("gpt1", " Mira \x7f🙂"),
])  # fmt: skip
def test_what_the_vocabulary_lacks_is_refused(family, text):
    with fails("bad-value"):
        read(family_tokenizer(family), text)


def model_of(tokenizer: Any, folder: Any, *, rows: int = 0) -> CausalLM:
    """A tiny Llama with its tokenizer; with ``rows``, further ones that it likes above all tokens."""
    save_tiny("llama", folder, tokenizer=tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder)
    if rows:
        size = len(tokenizer)
        model.resize_token_embeddings(size + rows, mean_resizing=False)
        with torch.no_grad():
            model.lm_head.weight[size:] = 4 * model.lm_head.weight[:rows]
            model.lm_head.weight[size::2] *= -1
    return CausalLM(model.eval(), tokenizer, batch_size=4)


def test_an_end_marker_changes_nothing_in_any_way_in(tmp_path):
    tokenizer = deepcopy(family_tokenizer("llama3 base add_eos"))
    marked = model_of(tokenizer, tmp_path)
    unmarked = deepcopy(tokenizer)
    bos = [(tokenizer.bos_token, tokenizer.bos_token_id)]
    unmarked.backend_tokenizer.post_processor = TemplateProcessing(f"{bos[0][0]} $A", special_tokens=bos)
    plain = CausalLM(marked.model, unmarked, batch_size=4)
    prompts, texts = [PROMPT, "The river"], [PLAIN, " Arl"]
    needs = Needs.of((1, 2), pool="tokens")
    for make in (
        lambda lm: lm.generate(prompts, max_new_tokens=6, needs=needs),
        lambda lm: lm.generate(["The river Arl", "The river, x"], max_new_tokens=6, prefix="The river"),
        lambda lm: lm.score(prompts, texts, needs=needs),
    ):
        for ours, theirs in zip(make(plain), make(marked), strict=True):
            assert ours.prompt_ids == theirs.prompt_ids and ours.token_ids == theirs.token_ids
            assert np.array_equal(ours.logprobs, theirs.logprobs)
    assert np.array_equal(plain.states(texts), marked.states(texts))
    places, other = ([place for place, _ in lm.attention_of(texts)] for lm in (plain, marked))
    assert places == other
    room = plain.context - len(plain.generate([PROMPT], max_new_tokens=1)[0].prompt_ids)
    assert marked.fits([PROMPT] * 2, [room, room + 1]) == [True, False]


def test_rows_beyond_the_tokenizer_are_no_tokens(tmp_path):
    tokenizer = byte_level()
    lm, size = model_of(tokenizer, tmp_path, rows=24), len(tokenizer)
    raw = lm.model(torch.tensor([encode_prompts(tokenizer, [PROMPT])[0].ids])).logits[0, -1].detach()
    assert int(raw.argmax()) >= size  # or the test shows nothing
    exact = raw[:size].double().log_softmax(dim=-1)  # of the first token, by hand
    for how in ({}, {"sampling": Sampling(temperature=2.0, seed=1)}, {"draft": 4}):
        (text,) = lm.generate([PROMPT], max_new_tokens=12, needs=Needs(top=True), **how)
        assert max(text.token_ids, default=0) < size and text.text
        assert text.logprobs[0] == pytest.approx(float(exact[text.token_ids[0]]), abs=1e-4)
        assert text.entropies[0] == pytest.approx(-float((exact.exp() * exact).sum()), abs=1e-4)
        assert text.top[0, 0] == pytest.approx(float(exact.exp().max()), abs=1e-4)
        (again,) = lm.score([PROMPT], [text.token_ids])
        assert again.logprobs == pytest.approx(text.logprobs, abs=1e-4)
    for odd in (size, -1):
        with fails("model", str(odd)):
            lm.score([PROMPT], [[1, odd]])
    assert token_bytes(tokenizer, size + 1) == b""


def test_a_token_beyond_the_models_rows_is_told(tmp_path):
    tokenizer = deepcopy(byte_level())
    model = model_of(tokenizer, tmp_path).model
    tokenizer.add_tokens(["[extra]"])
    lm = CausalLM(model, tokenizer)
    assert lm.generate(["mill"], max_new_tokens=1)[0].token_ids
    with fails("model", "prompt 0", str(len(tokenizer) - 1)):
        lm.generate(["mill[extra]"], max_new_tokens=1)
