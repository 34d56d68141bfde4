"""What is read from the inside is what transformers itself reports, and reading leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import fails
from tiny import FAMILIES, PROMPTS, reference, tiny_lm, tiny_path
from torch import nn
from transformers import AutoModelForCausalLM

import probers.capture.recorder
from probers.capture.attention import AttentionTap
from probers.capture.blocks import decoder_layers
from probers.capture.hidden_states import StateTap
from probers.engine.model import CausalLM
from probers.types import Feature, Needs, RunError

CLOSE = {"rtol": 0, "atol": 1e-4}
LAYERS = (0, 1, 2, 3)
NO_SDPA = {("gemma2", "sdpa"), ("mpt", "sdpa"), ("falcon_alibi", "sdpa")}
NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f")


def plain(family: str, generation, attn: str = "eager"):
    """A forward pass of an untouched model, over one text without padding."""
    model = AutoModelForCausalLM.from_pretrained(tiny_path(family), attn_implementation=attn).eval()
    norm = next(getattr(model.get_decoder(), name) for name in NORMS if hasattr(model.get_decoder(), name))
    out = reference(model, generation, output_hidden_states=True, output_attentions=attn == "eager")
    return out, norm


@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_those_of_transformers(family):
    lm = tiny_lm(family)
    needs = Needs.of(LAYERS, pool="tokens")
    for generation in lm.generate(PROMPTS[:3], max_new_tokens=12, needs=needs):
        # With ALiBi, transformers' eager Falcon computes something else than its fused one.
        attn = "sdpa" if family == "falcon_alibi" else "eager"
        out, norm = plain(family, generation, attn)
        start = len(generation.prompt_ids)
        for layer in LAYERS[:-1]:
            expected = out.hidden_states[layer][0, start:].numpy()
            np.testing.assert_allclose(generation.state[:, layer], expected, **CLOSE)
        # transformers reports the last layer after the final norm, we before it.
        last = torch.from_numpy(generation.state[:, 3])
        expected = out.hidden_states[3][0, start:].numpy()
        assert not np.allclose(last, expected, atol=1e-2)
        np.testing.assert_allclose(norm(last).detach(), expected, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_pooling_is_over_the_generated_tokens(family):
    lm = tiny_lm(family)
    by_pool = {
        pool: lm.generate(PROMPTS, max_new_tokens=9, needs=Needs.of((2, 0), pool=pool))
        for pool in ("tokens", "mean", "last")
    }
    for tokens, mean, last in zip(*by_pool.values(), strict=True):
        assert tokens.state.shape == (9, 2, 32)  # layers in the order asked for
        np.testing.assert_allclose(mean.state, tokens.state.mean(axis=0), **CLOSE)
        np.testing.assert_allclose(last.state, tokens.state[-1], **CLOSE)


def expected_rows(family: str, generation, *, layer: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows and column maxima by their definitions, from eager attention."""
    out, _ = plain(family, generation)
    heads = out.attentions[layer - 1][0].numpy()  # (heads, T, T); by default of the last
    p, n = len(generation.prompt_ids), len(generation.token_ids)
    among = heads[:, p:, p:]
    maxima = np.array([among[:, i:, i].max(axis=1).mean() for i in range(n)])
    return heads.mean(axis=0)[p - 1 :], maxima


#: Gemma 2 and MPT have no fused attention; on Falcon see above.
WAYS = [(f, a) for f in FAMILIES for a in ("sdpa", "eager") if (f, a) not in NO_SDPA]


@pytest.mark.parametrize(("family", "attn"), WAYS)
def test_attention_is_that_of_eager_attention(family, attn):
    lm = tiny_lm(family, attn=attn)
    generations = lm.generate(PROMPTS, max_new_tokens=15, needs=Needs(attention=True))
    scored = lm.score(PROMPTS, [g.token_ids for g in generations], needs=Needs(attention=True))
    for generation in [*generations, *scored]:
        p, n = len(generation.prompt_ids), len(generation.token_ids)
        rows, maxima = expected_rows(family, generation)
        assert generation.attention.rows.shape == (n + 1, p + n)
        np.testing.assert_allclose(generation.attention.rows, rows, **CLOSE)
        np.testing.assert_allclose(generation.attention.column_max, maxima, **CLOSE)
        np.testing.assert_allclose(generation.attention.rows.sum(axis=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_alone_forwards_the_generated_tokens_only(family):
    lm = tiny_lm(family, attn="eager")
    generations = lm.generate(PROMPTS, max_new_tokens=7)
    generations += lm.generate(PROMPTS[:2], max_new_tokens=12)  # padding among them
    for generation, alone in zip(generations, lm.attention_alone(generations), strict=True):
        out, _ = plain(family, replace(generation, prompt_ids=()))
        heads = out.attentions[-1][0].numpy()
        np.testing.assert_allclose(alone.rows[1:], heads.mean(axis=0), **CLOSE)
        assert not alone.rows[0].any()
        np.testing.assert_allclose(alone.column_max, heads.max(axis=1).mean(axis=0), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_attention_does_not_change_what_is_computed(family):
    """Also where the tapped block has to leave its fused kernel."""
    lm = tiny_lm(family)
    plainly = lm.generate(PROMPTS, max_new_tokens=10, needs=Needs.of(LAYERS))
    tapped = lm.generate(PROMPTS, max_new_tokens=10, needs=Needs.of(LAYERS, attention=True))
    for one, other in zip(plainly, tapped, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.state, other.state, **CLOSE)


def traces(lm: CausalLM) -> tuple[int, list[int], set[str]]:
    """Hooks, the identity of every config, and the attention functions in use."""
    modules = list(lm.model.modules())
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    configs = [m.config for m in modules if hasattr(m, "config")]
    return hooks, [id(c) for c in configs], {c._attn_implementation for c in configs}


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_left_behind_even_after_an_error(family):
    lm = tiny_lm(family)
    before = traces(lm)
    needs = Needs.of(LAYERS, attention=True)
    plainly = [g.token_ids for g in lm.generate(PROMPTS, max_new_tokens=6)]
    assert [g.token_ids for g in lm.generate(PROMPTS, max_new_tokens=6, needs=needs)] == plainly
    assert traces(lm) == before

    def stop(text: str) -> bool:
        assert traces(lm) != before
        raise KeyError("a user's own mistake")

    with pytest.raises(KeyError, match="own mistake"):
        lm.generate(PROMPTS, max_new_tokens=6, needs=needs, stop=[stop])
    assert traces(lm) == before
    block = decoder_layers(lm.model)[1]
    handle = block.register_forward_hook(lambda *_: 1 / 0)
    for act in (
        lambda: lm.generate(PROMPTS, max_new_tokens=2, needs=needs),
        lambda: lm.score(PROMPTS[:1], [[5, 6]], needs=needs),
    ):
        with pytest.raises(ZeroDivisionError):
            act()
    handle.remove()
    assert traces(lm) == before


def test_only_the_last_block_is_tapped():
    lm = tiny_lm("llama")
    with AttentionTap(lm.model):
        used = [block.self_attn.config._attn_implementation for block in decoder_layers(lm.model)]
    assert used == ["sdpa", "sdpa", "probers_tap"]


def test_nothing_is_read_that_nobody_asked_for(monkeypatch):
    def forbidden(*given, **options):
        raise AssertionError("attention was read")

    monkeypatch.setattr(probers.capture.recorder, "AttentionTap", forbidden)
    lm = tiny_lm("llama")
    generation = lm.generate(PROMPTS[:1], max_new_tokens=3)[0]
    assert generation.state is None
    assert generation.attention is None
    generation = lm.generate(PROMPTS[:1], max_new_tokens=3, needs=Needs.of((1,)))[0]
    assert generation.state.shape == (1, 32)


def test_a_tap_that_is_not_armed_keeps_nothing():
    lm = tiny_lm("llama")
    ids = torch.tensor([[4, 5, 6]])
    with StateTap(lm.model, Feature((0, 2))) as tap, torch.no_grad():
        lm.model(ids)
        assert tap.take() is None
        tap.read(lambda states: states[:, -1])
        lm.model(ids)
        assert tap.take().shape == (1, 2, 32)
        assert tap.take() is None


def test_blocks_are_found_by_structure():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(16))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(2, 2)])
            self.layers = nn.ModuleList(Block() for _ in range(4))

    model = Model()
    assert decoder_layers(model) is model.layers
    with fails("model", "Linear"):
        decoder_layers(nn.Linear(2, 2))


def test_a_family_whose_attention_cannot_be_tapped_is_refused(monkeypatch):
    lm = tiny_lm("llama")
    attention = decoder_layers(lm.model)[-1].self_attn
    monkeypatch.setattr(attention, "forward", lambda hidden_states, **_: (hidden_states, None))
    with fails("model", "LlamaForCausalLM", kind=RunError):
        lm.generate(PROMPTS[:1], max_new_tokens=2, needs=Needs(attention=True))
