"""Several sites and poolings in one pass: each is what it is alone, and what plain transformers says."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import fails
from tiny import PROMPTS, reference, tiny_lm, tiny_path
from transformers import AutoModelForCausalLM

from probers.capture.pooling import token_pool
from probers.datagen.labels.wiki import span_needs, span_rows
from probers.engine.kv_cache import PrefixCache
from probers.types import Feature, Needs, RunError

CLOSE = {"rtol": 0, "atol": 1e-4}
LAYERS = (0, 1, 2)
FAMILIES = ("llama", "gpt2", "gemma2")
MANY = Needs(
    (
        Feature(LAYERS, pool="predicting"), Feature(LAYERS, pool="mean"), Feature(LAYERS, pool="last"),
        Feature((2, 1), pool="tokens"),
        Feature(LAYERS, pool="positions"), Feature((1, 3), "mlp_out", "mean"),
        Feature((1, 3), "attn_out", "predicting"), Feature((3,), pool="mind"),
    ),
    attention=True, top=True,
)  # fmt: skip


def alone(feature: Feature) -> Needs:
    return Needs.of(feature.layers, feature.site, feature.pool, attention=True, top=True)


def plain(family: str, generation) -> list[torch.Tensor]:
    """hidden_states of an untouched model over one text without padding: (T, d) per layer."""
    model = AutoModelForCausalLM.from_pretrained(tiny_path(family)).eval()
    return [states[0].numpy() for states in reference(model, generation).hidden_states]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["plain", "drafted", "stopped", "without cache"])
def test_a_feature_beside_others_is_the_same_alone(family, way):
    """Bit for bit, in batches whose rows end at different times and where guesses are taken back."""
    options = {
        "drafted": {"draft": 4, "cache": PrefixCache()},
        "stopped": {"stop": ["e ", "an", lambda text: len(text) > 20]},
    }.get(way, {})
    lm = tiny_lm(family, use_cache=way != "without cache")
    prompts = [PROMPTS[2] + PROMPTS[2]] if way == "drafted" else PROMPTS
    limits = [3, 9, 7, 1, 9][: len(prompts)] if way == "plain" else 9

    def made(needs):
        again = options | ({"cache": PrefixCache()} if "cache" in options else {})
        return lm.generate(prompts, max_new_tokens=limits, needs=needs, **again)

    together = made(MANY)
    assert len({len(g.token_ids) for g in together}) > 1 or way in ("drafted", "without cache")
    for feature in MANY.features:
        for one, other in zip(together, made(alone(feature)), strict=True):
            assert one.token_ids == other.token_ids
            assert (feature in one.states) == (feature in other.states) == bool(one.token_ids)
            if one.token_ids:
                assert one.states[feature].dtype == np.float32
                np.testing.assert_array_equal(one.states[feature], other.state)
            np.testing.assert_array_equal(one.attention.rows, other.attention.rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_is_what_transformers_says(family):
    lm = tiny_lm(family)
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=MANY)
    read = lm.score(PROMPTS, [g.token_ids for g in made], needs=MANY)
    for generation in [*made, *read]:
        hidden = np.stack([plain(family, generation)[k] for k in LAYERS], axis=1)  # (T, layers, d)
        p = len(generation.prompt_ids)
        predicting, mean, last, tokens, positions = [generation.states[each] for each in MANY.features[:5]]
        np.testing.assert_allclose(predicting, hidden[p - 1 : -1], **CLOSE)
        np.testing.assert_allclose(mean, hidden[p:].mean(axis=0), **CLOSE)
        np.testing.assert_allclose(last, hidden[-1], **CLOSE)
        np.testing.assert_allclose(tokens, hidden[p:, [2, 1]], **CLOSE)
        np.testing.assert_allclose(positions, hidden[p - 1 :], **CLOSE)
        np.testing.assert_array_equal(positions[:-1], predicting)
    for one, other in zip(made, read, strict=True):
        assert [*one.states] == [*other.states] == [*MANY.features]
        for feature in MANY.features:
            np.testing.assert_allclose(one.states[feature], other.states[feature], **CLOSE)


SPANS = Needs(
    (
        Feature(LAYERS, pool="predicting"), Feature(LAYERS, pool="mean"), Feature(LAYERS, pool="last"),
        Feature((3,), pool="mind"),
        Feature((1, 3), "mlp_out", "mean"), Feature((1, 3), "mlp_out", "predicting"),
        Feature((2,), "attn_out", "predicting"),
    ),
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_feature_of_a_span_is_what_transformers_says(family):
    lm = tiny_lm(family)
    needs = span_needs(SPANS)
    # What is read at the same places is read once.
    pools = [(f.site, f.pool) for f in needs.features]
    assert pools == [
        ("resid_post", "positions"), ("resid_post", "mind_tokens"), ("mlp_out", "positions"),
        ("attn_out", "predicting"),
    ]  # fmt: skip
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    for generation in [*made, *lm.score(PROMPTS, [g.token_ids for g in made], needs=needs)]:
        tokens = [0, 1, 2] if generation.prompt == PROMPTS[0] else [4, 5]
        ((index, columns, states),) = span_rows(generation, tokens, SPANS)
        assert index == -1 and columns["n_tokens"] == len(tokens)
        hidden = plain(family, generation)
        here = len(generation.prompt_ids) + np.array(tokens)
        stream = np.stack([hidden[k] for k in LAYERS], axis=1)
        np.testing.assert_allclose(states[0], stream[here[0] - 1], **CLOSE)
        np.testing.assert_allclose(states[1], stream[here].mean(axis=0), **CLOSE)
        np.testing.assert_allclose(states[2], stream[here[-1]], **CLOSE)
        np.testing.assert_allclose(states[3][0, 32:], hidden[3][here].mean(axis=0), **CLOSE)
    # Each alone, bit for bit.
    for number, feature in enumerate(SPANS.features):
        only = alone(feature)
        again = lm.generate(PROMPTS, max_new_tokens=9, needs=span_needs(only))
        for one, other in zip(made, again, strict=True):
            for tokens in ([0], [2, 3, 4], [8]):
                ((_, _, every),) = span_rows(one, tokens, SPANS)
                ((_, _, (mine,)),) = span_rows(other, tokens, only)
                np.testing.assert_array_equal(every[number], mine)


def test_tokens_of_several_sites_are_a_row_each():
    lm = tiny_lm()
    stream, mlp = Feature((1, 3), pool="tokens"), Feature((3,), "mlp_out", "tokens")
    needs = Needs((stream, mlp))
    (made,) = lm.generate(PROMPTS[:1], max_new_tokens=6, needs=span_needs(needs))
    rows = list(span_rows(made, [2, 3], needs))
    assert [index for index, _, _ in rows] == [0, 1]
    for token, (_, columns, states) in zip((2, 3), rows, strict=True):
        assert columns["n_tokens"] == 2
        np.testing.assert_array_equal(states[0], made.states[stream][token])
        np.testing.assert_array_equal(states[1], made.states[mlp][token])
    assert token_pool("mean", "last", "tokens") == "tokens"
    assert token_pool("mean", "predicting") == "positions"
    with pytest.raises(ValueError, match="not made of the same states"):
        token_pool("mind", "mean")


def test_what_cannot_be_read_is_refused_in_any_feature():
    lm = tiny_lm()
    for more, code, named in (
        (Feature((7,)), "layers", "layer 7"),
        (Feature((0,), "mlp_out"), "layers", "site=mlp_out has no layer 0"),
        (Feature((1,), pool="mind"), "layers", "layers=(3,)"),
        (Feature((1,), "heads"), "unknown-choice", "site=heads"),
        (Feature((1,), pool="median"), "unknown-choice", "pool=median"),
    ):
        with fails(code, named):
            lm.generate(PROMPTS[:1], max_new_tokens=2, needs=Needs((Feature((2,)), more)))


def test_a_broken_state_is_named_whichever_feature_reads_it():
    lm = tiny_lm()
    norm = lm.model.model.norm
    handle = norm.register_forward_hook(lambda module, given, out: out * float("nan"))
    needs = Needs((Feature((1,)), Feature((3,), pool="mind")))
    for act in (
        lambda: lm.generate(PROMPTS[:1], max_new_tokens=2, needs=needs),
        lambda: lm.score(PROMPTS[:1], [[5, 6]], needs=needs),
    ):
        with fails("model", "the final norm", kind=RunError):
            act()
    handle.remove()
    block = lm.model.model.layers[1]
    passes = []

    def breaks(module, given, out):
        passes.append(1)
        return out * float("nan") if len(passes) == 1 else out

    handle = block.register_forward_hook(breaks)
    needs = Needs((Feature((1,)), Feature((2,), pool="positions")))
    with fails("model", "layer 2", "generated token 0", kind=RunError):
        lm.generate(PROMPTS[:1], max_new_tokens=3, needs=needs)
    handle.remove()


def test_needs_are_joined_by_site_and_pool():
    one = Needs((Feature((1,)), Feature((2,), "mlp_out"), Feature((1,), pool="last")))
    both = one.union(Needs((Feature((3,)), Feature((4, 1), "mlp_out")), top=True))
    assert both.features == (Feature((1, 3)), Feature((1, 2, 4), "mlp_out"), Feature((1,), pool="last"))
    assert both.top and both.union(one) == both
    with pytest.raises(ValueError, match="in one pass"):
        one.union(Needs.of((1,), pool="tokens"))
    assert Needs(top=True).union(one).features == one.features
    with pytest.raises(ValueError, match="twice"):
        Needs((Feature((1,)), Feature((1,))))
    with pytest.raises(ValueError, match="at least one layer"):
        Needs.of(())
    several = tiny_lm().generate(PROMPTS[:1], max_new_tokens=2, needs=Needs((Feature((1,)), Feature((2,)))))
    with pytest.raises(ValueError, match="several features"):
        _ = several[0].state


def test_a_layer_that_is_not_run_is_an_error():
    from probers.capture.hidden_states import StateTap

    lm = tiny_lm()
    with StateTap(lm.model, Feature((1, 3))) as tap, torch.no_grad():
        tap.read(lambda states: states[:, -1])
        lm.model.model.layers[0](torch.zeros(1, 2, 32), position_embeddings=lm.model.model.rotary_emb(
            torch.zeros(1, 2, 32), torch.arange(2)[None]))  # fmt: skip
        with fails("model", "layer 3 of LlamaForCausalLM", kind=RunError):
            tap.take()
