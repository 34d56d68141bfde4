"""Several sites and poolings in one pass: each is what it is alone."""

import numpy as np
import pytest
from helpers.refusals import fails
from helpers.tiny import PROMPTS, tiny_lm
from test_capture import CLOSE, MANY, hidden_of

from probers.datagen.labels.rows import span_needs, span_rows
from probers.model.kv_cache import PrefixCache
from probers.types import Feature, Needs, RunError

LAYERS = (0, 1, 2)
FAMILIES = ("llama", "gpt2", "gemma2")


def alone(feature: Feature) -> Needs:
    return Needs.of(feature.layers, feature.site, feature.pool, attention=True, top=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["plain", "drafted", "stopped", "without cache"])
def test_a_feature_beside_others_is_the_same_alone(family, way):
    """Bit for bit, in batches whose rows end at different times and where guesses are taken back."""
    lm = tiny_lm(family, use_cache=way != "without cache")
    prompts = [PROMPTS[2] + PROMPTS[2]] if way == "drafted" else PROMPTS
    limits = [3, 9, 7, 1, 9] if way == "plain" else 9

    def made(needs):
        options = {
            "drafted": {"draft": 4, "cache": PrefixCache()},
            "stopped": {"stop": ["e ", "an", lambda text: len(text) > 20]},
        }.get(way, {})
        return lm.generate(prompts, max_new_tokens=limits, needs=needs, **options)

    together = made(MANY)
    assert len({len(g.token_ids) for g in together}) > 1 or way in ("drafted", "without cache")
    for feature in MANY.features:
        for one, other in zip(together, made(alone(feature)), strict=True):
            assert one.token_ids == other.token_ids
            there = bool(one.token_ids) or feature.pool == "prompt"
            assert (feature in one.states) == (feature in other.states) == there
            if there:
                assert one.states[feature].dtype == np.float32
                np.testing.assert_array_equal(one.states[feature], other.state)
            np.testing.assert_array_equal(one.attention.rows, other.attention.rows)


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
    assert [(f.site, f.pool) for f in needs.features] == [
        ("resid_post", "positions"), ("resid_post", "mind_tokens"), ("mlp_out", "positions"),
        ("attn_out", "predicting"),
    ]  # fmt: skip
    made = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    for generation in [*made, *lm.score(PROMPTS, [g.token_ids for g in made], needs=needs)]:
        tokens = [0, 1, 2] if generation.prompt == PROMPTS[0] else [4, 5]
        ((index, columns, states),) = span_rows(generation, tokens, SPANS)
        assert index == -1 and columns["n_tokens"] == len(tokens)
        hidden = hidden_of(family, generation)
        here = len(generation.prompt_ids) + np.array(tokens)
        stream = np.stack([hidden[k] for k in LAYERS], axis=1)
        expected = stream[here[0] - 1], stream[here].mean(axis=0), stream[here[-1]]
        for state, each in zip(states, expected, strict=False):
            np.testing.assert_allclose(state, each, **CLOSE)
        np.testing.assert_allclose(states[3][0, 32:], hidden[3][here].mean(axis=0), **CLOSE)
    # Each alone, bit for bit.
    for number, feature in enumerate(SPANS.features):
        again = lm.generate(PROMPTS, max_new_tokens=9, needs=span_needs(alone(feature)))
        for one, other in zip(made, again, strict=True):
            for tokens in ([0], [2, 3, 4], [8]):
                ((_, _, every),) = span_rows(one, tokens, SPANS)
                ((_, _, (mine,)),) = span_rows(other, tokens, alone(feature))
                np.testing.assert_array_equal(every[number], mine)


def test_broken_states_and_logits_are_errors_that_say_where():
    lm = tiny_lm()
    ids = lm.generate(PROMPTS[:2], max_new_tokens=4)[1].token_ids
    weight = lm.model.model.layers[1].mlp.down_proj.weight.data[0]
    norm = lm.model.model.norm.weight.data
    layers, mind = Needs.of((1, 2, 3)), Needs((Feature((1,)), Feature((3,), pool="mind")))
    for tensor, act, *named in (
        (weight, lambda: lm.generate(PROMPTS[:2], max_new_tokens=4, needs=layers), "layer 2", "token 0"),
        (weight, lambda: lm.score(PROMPTS[:1], [ids], needs=layers), "layer 2", "continuation of prompt 0"),
        (weight, lambda: lm.score(PROMPTS[:1], [ids]), "logits"),
        (norm, lambda: lm.generate(PROMPTS[:1], max_new_tokens=2, needs=mind), "the final norm"),
    ):
        saved, tensor[0] = float(tensor[0]), float("nan")
        with fails("model", *named, kind=RunError):
            act()
        tensor[0] = saved


def test_needs_are_joined_by_site_and_pool():
    one = Needs((Feature((1,)), Feature((2,), "mlp_out"), Feature((1,), pool="last")))
    both = one.union(Needs((Feature((3,)), Feature((4, 1), "mlp_out")), top=True))
    assert both.features == (Feature((1, 3)), Feature((1, 2, 4), "mlp_out"), Feature((1,), pool="last"))
    assert both.top and both.union(one) == both
    for act in (lambda: one.union(Needs.of((1,), pool="tokens")), lambda: Needs.of(())):
        with pytest.raises(ValueError):
            act()
