"""Families beyond those of tests/tiny.py, which nothing in the code was written for."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.refusals import fails
from helpers.tiny import CONTEXT, PROMPTS, byte_level, reference, without_specials
from test_lm import CLOSE, alone, assert_all_same, rescored
from transformers import AutoModelForCausalLM

from probers.model.causal_lm import CausalLM
from probers.types import Feature, Needs

BASE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": CONTEXT,
}  # fmt: skip
OLD = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT}
LATENT = {
    **BASE, "num_key_value_heads": 4, "n_routed_experts": 4, "kv_lora_rank": 8, "q_lora_rank": 8,
    "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 16,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 3, "n_head": 4, "hidden_size": 32},
    "GPTNeo": {
        "hidden_size": 32, "num_layers": 3, "num_heads": 4, "window_size": 8,
        "attention_types": [[["global", "local"], 1], [["global"], 1]], "max_position_embeddings": CONTEXT,
    },
    "Phi3": BASE, "Olmo2": BASE,
    "Cohere2": {**BASE, "sliding_window": 8},
    "Mixtral": {**BASE, "num_local_experts": 4},
    # Few index heads would have equal scores, and which of them are kept is arbitrary in transformers too.
    "DeepseekV32": {**LATENT, "index_n_heads": 64, "index_head_dim": 8, "index_topk": 8},
    "GptOss": {**BASE, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
}  # fmt: skip


def make(name: str, attn: str) -> CausalLM:
    tokenizer = byte_level()
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=len(tokenizer), bos_token_id=None, **special, **OTHERS[name]
    )
    model = sharp(AutoModelForCausalLM.from_config, config, attn_implementation=attn)
    without_specials(model, tokenizer)
    return CausalLM(model, tokenizer)


def sharp(make: Any, *given: Any, **options: Any) -> Any:
    """A random model of sharp distributions, so that differences would show."""
    torch.manual_seed(0)
    model = make(*given, **options).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.3)
    return model


@pytest.mark.parametrize("name", OTHERS)
def test_any_decoder_can_be_read(name):
    lm = make(name, "eager")
    sites = [Feature((1, 2, 3), site, "tokens") for site in ("attn_out", "mlp_out")]
    stream = Feature((0, 1, 2, 3), pool="tokens")
    needs = Needs((Feature((0, 1, 2, 3)), stream, *sites), attention=True)
    made = lm.generate(PROMPTS, max_new_tokens=10, needs=needs)
    assert_all_same(made, rescored(lm, made))
    assert_all_same(made, alone(lm, PROMPTS, max_new_tokens=10, needs=needs))
    shared = lm.generate(["The river" + p for p in PROMPTS], max_new_tokens=6, needs=needs)
    again = lm.generate(["The river" + p for p in PROMPTS], max_new_tokens=6, needs=needs, prefix="The river")
    assert_all_same(shared, again)
    for generation in made:
        out = reference(lm.model, generation, output_hidden_states=True, output_attentions=True)
        p, n = len(generation.prompt_ids), len(generation.token_ids)
        for layer in (0, 1, 2):
            expected = out.hidden_states[layer][0, p:].mean(dim=0).numpy()
            np.testing.assert_allclose(generation.states[needs.features[0]][layer], expected, **CLOSE)
        heads = out.attentions[-1].view(4, p + n, -1)[..., -(p + n) :].numpy()
        np.testing.assert_allclose(generation.attention.rows, heads.mean(axis=0)[p - 1 :], **CLOSE)
        gained = np.diff(generation.states[stream], axis=1)  # is what attention and MLP add
        np.testing.assert_allclose(sum(generation.states[each] for each in sites), gained, **CLOSE)


LEARNED = {
    "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip
BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@pytest.mark.parametrize(("name", "config", "options"), [
    ("BartForCausalLM", "BartConfig", LEARNED),
    ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", OLD),
    ("MiniMaxForCausalLM", "MiniMaxConfig", {**BASE, "num_local_experts": 2, "head_dim": 8}),
    ("BertLMHeadModel", "BertConfig", BERT),
    ("XLNetLMHeadModel", "XLNetConfig", {"d_model": 32, "n_layer": 2, "n_head": 4}),
    ("MambaForCausalLM", "MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    ("T5ForConditionalGeneration", "T5Config", {"d_model": 32, "num_layers": 2, "num_heads": 4}),
])  # fmt: skip
def test_what_is_no_decoder_for_batches_is_refused_by_name(name, config, options):
    tokenizer = byte_level()
    config = getattr(transformers, config)(vocab_size=len(tokenizer), **options)
    model = sharp(getattr(transformers, name), config)
    with fails("model", name):
        CausalLM(model, tokenizer)
