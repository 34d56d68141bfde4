"""Lookback ratios and near attention against transformers' own attention, however a text is read."""

from typing import Any

import numpy as np
import pytest
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, reference, tiny_lm
from test_capture import NO_SDPA
from test_every_family import make
from test_watch import batch, hooks, plain

from probers.datagen.labelling import layers_to_read
from probers.heads import ProbingRagHead
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.store.spec import FeatureSpec
from probers.types import Feature, Generation, Needs

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
LAYER = (3,)  # of the tiny models, the last


def by_definition(lm: CausalLM, generation: Generation, site: str = "lookback") -> np.ndarray:
    """(n + 1, width) of the prompt's last token and of each token, from the weights, one by one."""
    weights = reference(lm.model, generation, output_attentions=True).attentions
    prompt, total = len(generation.prompt_ids), weights[0].shape[-1]
    found = np.zeros((total - prompt + 1, 0))
    for head in (head for layer in weights for head in layer[0].view(-1, total, total).double().numpy()):
        numbers = []
        for place in range(prompt - 1, total):
            if site == "attention":
                numbers.append([head[place, place - back] if back <= place else 0.0 for back in (1, 2, 3)])
                continue
            context, new = head[place, : prompt - 1].mean(), head[place, prompt - 1 : place + 1].mean()
            numbers.append(context / (context + new))
        found = np.column_stack([found, numbers])
    return found


@pytest.mark.parametrize("way", ["written", "read"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", ["lookback", "attention"])
def test_numbers_of_heads_are_by_their_definition(family, way, site):
    needs = Needs.of(LAYER, site, "positions", attention=True)
    lm = tiny_lm(family, attn="eager" if (family, "sdpa") in NO_SDPA else None)
    found = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    if way == "read":
        found = lm.score(PROMPTS, [g.token_ids for g in found], needs=needs)
    slow = tiny_lm(family, attn="eager")
    for one in found:
        expected = by_definition(slow, one, site)
        assert one.state.shape == (len(one.token_ids) + 1, 1, expected.shape[1])
        np.testing.assert_allclose(one.state[:, 0], expected, **CLOSE)
        assert np.ptp(expected) > 0.1  # heads and places differ
        assert one.attention is not None
    alone = lm.generate(PROMPTS, max_new_tokens=9, needs=Needs(attention=True))
    for one, other in zip(found, alone, strict=True):  # another tap on the last layer changes nothing
        np.testing.assert_allclose(one.attention.rows, other.attention.rows, **CLOSE)


@pytest.mark.parametrize("site", ["lookback", "attention"])
@pytest.mark.parametrize("name", ["GptOss", "Cohere2", "GPTNeo", "Bloom"])
def test_windows_sinks_and_weights_that_modules_return(name, site):
    lm = make(name, "eager")
    needs = Needs.of(LAYER, site, "positions")
    for one in lm.generate([PROMPTS[0] * 3, PROMPTS[1]], max_new_tokens=10, needs=needs):
        np.testing.assert_allclose(one.state[:, 0], by_definition(lm, one, site), **CLOSE)


@pytest.mark.parametrize("pool", ["mean", "last", "prompt", "tokens", "predicting"])
def test_pools_and_other_features_beside_it(pool):
    lm = tiny_lm()
    stream, heads = Feature((1, 2), pool=pool), Feature(LAYER, "lookback", pool)
    both, every = Needs((stream, heads)), Needs.of(LAYER, "lookback", "positions")
    made = lm.generate(PROMPTS, max_new_tokens=8, needs=both)
    whole = lm.generate(PROMPTS, max_new_tokens=8, needs=every)
    again = lm.score(PROMPTS, [g.token_ids for g in made], needs=both)
    for one, other, positions in zip(made, again, whole, strict=True):
        expected = {
            "mean": positions.state[1:].mean(axis=0), "last": positions.state[-1],
            "prompt": positions.state[0], "tokens": positions.state[1:], "predicting": positions.state[:-1],
        }[pool]  # fmt: skip
        np.testing.assert_allclose(one.states[heads], expected, **CLOSE)
        np.testing.assert_allclose(other.states[heads], expected, **CLOSE)
        assert one.states[stream].shape[-1] == lm.width != one.states[heads].shape[-1]


EVERYTHING = ("lookback", "attention", "probabilities")


@pytest.mark.parametrize("pool", ["mean", "last", "tokens"])
def test_what_is_beside_states_fills_places_behind_them(pool):
    """Each part equals the same site recorded by itself, with zeros behind it, written and read."""
    lm = tiny_lm()
    joined = Needs((Feature((1, 2), pool=pool, beside=EVERYTHING),))
    alone = Needs((Feature((1, 2), pool=pool), *(Feature(LAYER, site, pool) for site in EVERYTHING)))
    made = lm.generate(PROMPTS, max_new_tokens=8, needs=joined)
    others = lm.generate(PROMPTS, max_new_tokens=8, needs=alone)
    again = lm.score(PROMPTS, [g.token_ids for g in made], needs=joined)
    for one, other, read in zip(made, others, again, strict=True):
        np.testing.assert_allclose(read.state, one.state, **CLOSE)
        states, *beside = (other.states[feature] for feature in alone.features)
        np.testing.assert_allclose(one.state[..., :2, :], states, **CLOSE)
        flat = one.state[..., 2:, :].reshape(*states.shape[:-2], -1)
        for vector in beside:
            size = vector.shape[-1]
            places = -(-size // lm.width) * lm.width
            np.testing.assert_allclose(flat[..., :size], vector[..., 0, :], **CLOSE)
            assert (flat[..., size:places] == 0).all()
            flat = flat[..., places:]
        assert flat.shape[-1] == 0


def test_probabilities_are_those_of_the_distribution_that_a_token_was_drawn_from():
    lm = tiny_lm()
    made = lm.generate(PROMPTS, max_new_tokens=8, needs=Needs.of(LAYER, "probabilities", "tokens"))
    for one in made:
        logits = reference(lm.model, one).logits[0, len(one.prompt_ids) - 1 : -1].double().log_softmax(-1)
        drawn = logits[range(len(one.token_ids)), list(one.token_ids)]
        entropy = -(logits.exp() * logits).sum(-1)
        expected = np.column_stack([drawn, entropy, *logits.exp().topk(2).values.T])
        np.testing.assert_allclose(one.state[:, 0], expected, **CLOSE)


@pytest.mark.parametrize("family", ["llama", "gpt2", "falcon"])
@pytest.mark.parametrize("pool", ["mean", "predicting"])
def test_a_prober_of_ratios_follows_a_plain_generate(family, pool):
    model, tokenizer = plain(family)
    before, lm = hooks(model), tiny_lm(family)
    made = lm.generate(PROMPTS, max_new_tokens=8, needs=Needs.of(LAYER, "lookback", "positions"))
    width = made[0].state.shape[-1]
    spec = FeatureSpec(lm.spec, LAYER, width, "lookback", pool, dtype="float32")
    bank = Prober(spec, ProbingRagHead(["7/3"], width, hidden=16), threshold=0.1)
    with bank.watch(model) as scores:
        scores.finish(model.generate(**batch(tokenizer), max_new_tokens=7, do_sample=False))
    for row, one in zip(scores.tokens, made, strict=True):
        after = np.cumsum(one.state[1:8], axis=0) / np.arange(1, 8)[:, None, None]
        states = after if pool == "mean" else one.state[: len(row)]
        np.testing.assert_allclose(row, bank.score_states(states), **CLOSE)
    assert hooks(model) == before


def test_what_cannot_be_asked_is_refused():
    for code, named, feature in (
        ("layers", "lookback", Feature((1,), "lookback")),
        ("unsupported", "lookback", Feature(LAYER, "lookback", beside=("attention",))),
        ("unsupported", "pool=predicting", Feature(LAYER, "probabilities", "predicting")),
    ):
        with fails(code, named):
            tiny_lm().generate(PROMPTS[:1], max_new_tokens=2, needs=Needs((feature,)))
    assert layers_to_read("all", 30, site="lookback") == (30,)
    with fails(None, "site=lookback", "layers="):
        layers_to_read([1], 30, site="lookback")
