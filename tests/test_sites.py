"""Places inside a block, the MIND pooling, and families that cannot be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import fails
from test_capture import expected_rows
from tiny import FAMILIES, PROMPTS, byte_level, reference, tiny_lm
from transformers import AutoModelForCausalLM, BertConfig, GraniteConfig, MambaConfig, OPTConfig

from probers.capture.blocks import block_parts
from probers.capture.pooling import pool_tokens
from probers.engine.model import CausalLM
from probers.types import Needs

CLOSE = {"rtol": 0, "atol": 1e-4}
LAYERS = (1, 2, 3)
#: Attention and MLP read the same stream in these.
PARALLEL = {"phi", "gpt_neox", "falcon"}


def states(lm: CausalLM, site: str, **options) -> list[np.ndarray]:
    layers = (0, *LAYERS) if site == "resid_post" else LAYERS
    needs = Needs.of(layers, site=site, pool=options.pop("pool", "tokens"))
    return [g.state for g in lm.generate(PROMPTS, max_new_tokens=8, needs=needs)]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_attention_and_mlp_add_is_what_the_stream_gains(family):
    lm = tiny_lm(family)
    streams, added = states(lm, "resid_post"), {site: states(lm, site) for site in ("attn_out", "mlp_out")}
    for stream, attention, mlp in zip(streams, added["attn_out"], added["mlp_out"], strict=True):
        np.testing.assert_allclose(stream[:, :-1] + attention + mlp, stream[:, 1:], **CLOSE)
        assert np.abs(attention).max() > 1e-2 and np.abs(mlp).max() > 1e-2
    if family in PARALLEL:
        with fails("model", "site=resid_mid"):
            states(lm, "resid_mid")
        return
    for stream, attention, middle in zip(streams, added["attn_out"], states(lm, "resid_mid"), strict=True):
        np.testing.assert_allclose(stream[:, :-1] + attention, middle, **CLOSE)


def test_attention_is_told_from_the_mlp():
    lm = tiny_lm("llama")
    part = block_parts(lm.model)[1]
    block = lm.model.model.layers[1]
    attention = {id(m) for m in block.self_attn.modules()}
    assert id(part.attention) in attention and id(part.mlp) not in attention
    assert part.middle is block.post_attention_layernorm


@pytest.mark.parametrize("family", ["llama", "opt", "falcon"])
@pytest.mark.parametrize("site", ["attn_out", "mlp_out"])
def test_sites_are_scored_as_they_are_generated_and_pooled(family, site):
    lm = tiny_lm(family)
    for pool in ("mean", "last", "tokens"):
        needs = Needs.of((1, 3), site=site, pool=pool)
        made = lm.generate(PROMPTS, max_new_tokens=7, needs=needs)
        again = lm.score(PROMPTS, [g.token_ids for g in made], needs=needs)
        for one, other in zip(made, again, strict=True):
            np.testing.assert_allclose(one.state, other.state, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt", "mpt"])
def test_mind_pooling_is_by_its_definition(family):
    lm = tiny_lm(family)
    needs = Needs.of((3,), pool="mind")
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    tokens = lm.generate(PROMPTS, max_new_tokens=9, needs=Needs.of(LAYERS, pool="tokens"))
    again = lm.score(PROMPTS, [g.token_ids for g in made], needs=needs)
    for one, each, other in zip(made, tokens, again, strict=True):
        out = reference(lm.model, one)
        normed = out.hidden_states[-1][0, len(one.prompt_ids) :].numpy()
        expected = np.concatenate([each.state[-1].mean(axis=0), normed.mean(axis=0)])
        assert one.state.shape == (1, 64)
        np.testing.assert_allclose(one.state[0], expected, **CLOSE)
        np.testing.assert_allclose(other.state, one.state, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_minds_vector_of_a_part_comes_from_its_tokens(family):
    lm = tiny_lm(family)
    parts, whole = Needs.of((3,), pool="mind_tokens"), Needs.of((3,), pool="mind")
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=parts)
    again = lm.score(PROMPTS, [g.token_ids for g in made], needs=parts)
    heads = [g.token_ids[:2] for g in made]
    for one, other, head in zip(made, again, lm.score(PROMPTS, heads, needs=whole), strict=True):
        assert one.state.shape == (len(one.token_ids), 1, 64)
        np.testing.assert_allclose(other.state, one.state, **CLOSE)
        np.testing.assert_allclose(pool_tokens(one.state[:2], "mind"), head.state, **CLOSE)
        assert not np.allclose(pool_tokens(one.state, "mind"), head.state, atol=1e-2)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt", "mpt"])
@pytest.mark.parametrize("way", ["plain", "prefix", "nested", "without cache"])
def test_predicting_states_are_those_of_the_position_before(family, way):
    """Against hidden_states, for every token and the prompt's last; and the logits are theirs."""
    lm = tiny_lm(family, use_cache=way != "without cache", batch_size=8)
    prompts, prefix = PROMPTS, ""
    if way == "prefix":
        prefix = "The river Odra flows. "
        prompts = [prefix + p for p in PROMPTS]
    elif way == "nested":
        text = PROMPTS[0] + " and so on and on" * 12
        prompts = [text, text[: len(text) // 2], text[: len(text) // 3], PROMPTS[1]]
    needs = Needs.of((0, 2, 3), pool="predicting", attention=True)
    made = lm.generate(prompts, max_new_tokens=9, needs=needs, prefix=prefix)
    again = lm.score(prompts, [g.token_ids for g in made], needs=needs, prefix=prefix)
    for one, other in zip(made, again, strict=True):
        out = reference(lm.model, one)
        here = slice(len(one.prompt_ids) - 1, -1)
        assert one.state.shape == (len(one.token_ids), 3, 32)
        for column, layer in enumerate((0, 2)):
            expected = out.hidden_states[layer][0, here].numpy()
            np.testing.assert_allclose(one.state[:, column], expected, **CLOSE)
        np.testing.assert_allclose(other.state, one.state, **CLOSE)
        np.testing.assert_allclose(other.attention.rows, one.attention.rows, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gemma3", "falcon", "mpt"])
@pytest.mark.parametrize("layer", [1, 2])
def test_any_layers_attention_can_be_read(family, layer):
    lm = tiny_lm(family)
    needs = Needs(attention=True, attention_layer=layer)
    made = lm.generate(PROMPTS, max_new_tokens=10, needs=needs)
    for generation in [*made, *lm.score(PROMPTS, [g.token_ids for g in made], needs=needs)]:
        rows, maxima = expected_rows(family, generation, layer=layer)
        np.testing.assert_allclose(generation.attention.rows, rows, **CLOSE)
        np.testing.assert_allclose(generation.attention.column_max, maxima, **CLOSE)
    last = lm.generate(PROMPTS, max_new_tokens=10, needs=Needs(attention=True))
    assert not np.allclose(last[0].attention.rows, made[0].attention.rows, atol=1e-2)


def refused(config, **options):
    torch.manual_seed(0)
    return CausalLM(AutoModelForCausalLM.from_config(config).eval(), byte_level(), **options)


SMALL = {"vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_families_that_cannot_be_read_are_refused_by_name():
    bert = BertConfig(**SMALL, intermediate_size=48, is_decoder=False)
    mamba = MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, state_size=4)
    for config, *named in (bert, "BertLMHeadModel", "later"), (mamba, "MambaForCausalLM", "recurrent"):
        with fails("model", *named):
            refused(config)


def test_a_block_that_does_more_than_adding_has_no_sites_inside():
    scaled = GraniteConfig(**SMALL, intermediate_size=48, num_key_value_heads=4, residual_multiplier=0.5)
    normed = OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, do_layer_norm_before=False, init_std=0.3)
    for config, family in ((scaled, "Granite"), (normed, "OPT")):
        lm = refused(config)
        with fails("model", f"{family}ForCausalLM", "attn_out", "site=resid_post"):
            lm.generate(["The"], max_new_tokens=2, needs=Needs.of((1,), site="attn_out"))
        made = lm.generate(["The"], max_new_tokens=2, needs=Needs.of((1, 2)))
        assert made[0].state is not None or not made[0].token_ids
