"""Every decoder family of transformers, as a tiny random model, is read as there or refused by name."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.refusals import fails
from helpers.tiny import CONTEXT, PROMPTS, byte_level, reference, without_specials
from test_lm import alone, recorded, rescored
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as FAMILIES

from probers.model.causal_lm import CausalLM
from probers.types import Feature, Needs, UserError

BASE = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": CONTEXT, "sliding_window": 8,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 3, "n_head": 4, "hidden_size": 32},
    "GPTNeo": {
        "hidden_size": 32, "num_layers": 3, "num_heads": 4, "window_size": 8,
        "attention_types": [[["global", "local"], 1], [["global"], 1]], "max_position_embeddings": CONTEXT,
    },
    "Cohere2": BASE, "GptOss": {**BASE, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
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


TINY = {"hidden_size": 32, "num_hidden_layers": 2}


@pytest.mark.parametrize(("name", "config", "options"), [
    ("BartForCausalLM", "BartConfig", {
        "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48,
        "max_position_embeddings": CONTEXT,
    }),
    ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {"n_embd": 32, "n_layer": 3, "n_head": 4}),
    ("MiniMaxForCausalLM", "MiniMaxConfig", {**BASE, "num_local_experts": 2, "head_dim": 8}),
    ("BertLMHeadModel", "BertConfig", {**TINY, "num_attention_heads": 4, "intermediate_size": 48}),
    ("MambaForCausalLM", "MambaConfig", {**TINY, "state_size": 4}),
    ("T5ForConditionalGeneration", "T5Config", {"d_model": 32, "num_layers": 2, "num_heads": 4}),
])  # fmt: skip
def test_what_is_no_decoder_for_batches_is_refused_by_name(name, config, options):
    tokenizer = byte_level()
    config = getattr(transformers, config)(vocab_size=len(tokenizer), **options)
    model = sharp(getattr(transformers, name), config)
    with fails("model", name):
        CausalLM(model, tokenizer)


#: Values of options of any family's configuration, where it has them.
SMALL: dict[int, str] = {
    0: "num_kv_shared_layers",
    1: "n_group topk_group first_k_dense_replace n_shared_experts zero_expert_num num_dense_layers",
    2: "num_key_value_heads num_global_key_value_heads num_experts_per_tok moe_topk linear_num_key_heads",
    3: "num_hidden_layers n_layer num_layers decoder_layers",
    4: "num_attention_heads n_head num_heads decoder_attention_heads num_experts num_local_experts "
    "n_routed_experts rotary_dim qk_rope_head_dim qk_nope_head_dim linear_num_value_heads",
    8: "head_dim global_head_dim v_head_dim kv_lora_rank q_lora_rank linear_key_head_dim "
    "linear_value_head_dim query_pre_attn_scalar hidden_size_per_layer_input sliding_window "
    "attention_window index_head_dim index_topk",
    16: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size",
    32: "hidden_size n_embd d_model embedding_size word_embed_proj_dim lru_width attention_hidden_size",
    48: "intermediate_size ffn_dim ffn_hidden_size decoder_ffn_dim dff dense_intermediate_size "
    "ffn_intermediate_size",
    64: "index_n_heads",  # of fewer, some have equal scores, and are kept arbitrarily
    CONTEXT: "max_position_embeddings n_positions n_ctx seq_length keep_window_size",
}
#: Their cached and uncached passes differ in transformers itself, or they run each layer several times.
OTHER = {"moshi", "hrm_text"}
#: transformers returns their weights without the sinks that it attends with.
SINKS = {"granite_swa", "granitemoe_swa"}
LARGEST = 3 * 10**7


def tiny(family: str) -> Any:
    """A random model; a skipped test where these options make none."""
    tokenizer = byte_level()
    try:
        config = AutoConfig.for_model(family).get_text_config(decoder=True)
    except Exception as error:  # as below
        pytest.skip(str(error))
    has = config.to_dict()
    given: dict[str, Any] = {
        name: value for value, names in SMALL.items() for name in names.split() if has.get(name) is not None
    }
    given |= {
        "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    kinds = list(dict.fromkeys(has.get("layer_types") or ()))
    for more in ({}, {"num_key_value_heads": 4}, {"layer_types": (kinds * 3)[:3]} if kinds else {}):
        try:
            small = type(config)(**given | more)
            with torch.device("meta"):
                meta = AutoModelForCausalLM.from_config(small)
            assert sum(parameter.numel() for parameter in meta.parameters()) < LARGEST
            model = sharp(AutoModelForCausalLM.from_config, small, attn_implementation="eager")
            with torch.no_grad():
                model(torch.tensor([[5, 6, 7]]))
        except Exception as error:  # whatever a family makes of options that are not meant for it
            message = f"{type(error).__name__}: {error}"
            continue
        without_specials(model, tokenizer)
        return model
    pytest.skip(message)


def close(actual: Any, expected: Any) -> None:
    """Equal up to rounding, which grows with the largest value: the states of one family reach 170."""
    atol = max(1e-4, 2e-6 * float(np.abs(np.asarray(expected)).max(initial=0)))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=atol)


@pytest.mark.long
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_is_read_as_transformers_reads_it_or_refused_by_name(family: str) -> None:
    model, stream = tiny(family), Feature((0, 1, 2), pool="tokens")
    needs = Needs((stream,), attention=True)
    try:
        lm = CausalLM(model, byte_level())
        made = lm.generate(PROMPTS, max_new_tokens=10, needs=needs)
    except UserError as error:
        assert error.code == "model" and type(model).__name__ in str(error)
        return
    if family in OTHER:
        return
    bare = lm.generate(PROMPTS, max_new_tokens=10)
    assert [g.token_ids for g in bare] == [g.token_ids for g in made]  # reading leaves no trace
    again = [alone(lm, PROMPTS, max_new_tokens=10, needs=needs), rescored(lm, made)]
    for generation, *others in zip(made, *again, strict=True):
        for other in others:
            assert other.token_ids == generation.token_ids
            for actual, expected in zip(recorded(other), recorded(generation), strict=True):
                close(actual, expected)
        out = reference(model, generation, output_hidden_states=True, output_attentions=True)
        p, n = len(generation.prompt_ids), len(generation.token_ids)
        logprobs = out.logits[0, p - 1 : p + n - 1].float().log_softmax(-1)
        assert logprobs.argmax(-1).tolist() == list(generation.token_ids)
        close(generation.logprobs, logprobs.max(-1).values)
        for layer, actual in zip(stream.layers, generation.states[stream].swapaxes(0, 1), strict=True):
            close(actual, out.hidden_states[layer][0, p : p + n])
        if family not in SINKS and out.attentions:
            weights = out.attentions[-1].flatten(0, -3)[..., -(p + n) :].numpy()
            close(generation.attention.rows, weights.mean(axis=0)[p - 1 :])
