"""Attention of heads, lookback ratios and attention by passage against transformers' own attention."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, forwarded, reference, tiny_lm
from test_capture import NO_SDPA
from test_every_family import make
from test_lm import CLOSE
from test_watch import batch, plain

from probers.data.texts.shown import overlap, place_passages, subjects
from probers.heads import ProbingRagHead
from probers.model.causal_lm import CausalLM
from probers.model.language_model import ScoreRequest, Scoring, collected
from probers.prober.prober import Prober
from probers.store.spec import FeatureSpec
from probers.types import Feature, Generation, Needs, Passages

LAYER = (3,)  # of the tiny models, the last


def by_definition(lm: CausalLM, generation: Generation, site: str = "lookback") -> np.ndarray:
    """(n + 1, width) of the prompt's last token and of each token, from the weights, one by one."""
    weights = reference(lm.model, generation, output_attentions=True).attentions
    prompt, total = len(generation.prompt_ids), weights[0].shape[-1]
    numbers_so_far = np.zeros((total - prompt + 1, 0))
    for head in (head for layer in weights for head in layer[0].view(-1, total, total).double().numpy()):
        numbers = []
        for place in range(prompt - 1, total):
            if site == "attention":
                numbers.append([head[place, place - back] if back <= place else 0.0 for back in (1, 2, 3)])
                continue
            context, new = head[place, : prompt - 1].mean(), head[place, prompt - 1 : place + 1].mean()
            numbers.append(context / (context + new))
        numbers_so_far = np.column_stack([numbers_so_far, numbers])
    return numbers_so_far


@pytest.mark.parametrize("way", ["written", "read"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("site", ["lookback", "attention"])
def test_numbers_of_heads_are_by_their_definition(family, way, site):
    needs = Needs.of(LAYER, site, "positions", attention=True)
    lm = tiny_lm(family, attn="eager" if (family, "sdpa") in NO_SDPA else None)
    generations = lm.generate(PROMPTS, max_new_tokens=9, needs=needs)
    if way == "read":
        generations = lm.score(PROMPTS, [g.token_ids for g in generations], needs=needs)
    slow = tiny_lm(family, attn="eager")
    for one in generations:
        expected = by_definition(slow, one, site)
        assert one.state.shape == (len(one.token_ids) + 1, 1, expected.shape[1])
        np.testing.assert_allclose(one.state[:, 0], expected, **CLOSE)
        assert np.ptp(expected) > 0.1  # heads and places differ
        assert one.attention is not None
    alone = lm.generate(PROMPTS, max_new_tokens=9, needs=Needs(attention=True))
    for one, other in zip(generations, alone, strict=True):  # another tap on the last layer changes nothing
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


@pytest.mark.parametrize("pool", ["mean", "predicting"])
def test_a_prober_of_ratios_follows_a_plain_generate(pool):
    (model, tokenizer), lm = plain(), tiny_lm()
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


SITE = Needs.of(LAYER, "passages", "tokens")
TEXT = " and a little more."


def shown(prompt, count=3, **more):
    """A prompt as so many passages with something between them."""
    width = len(prompt) // count
    return Passages(tuple((n * width, (n + 1) * width - 2) for n in range(count)), **more)


def read(lm, requests, needs=SITE):
    return collected(lm.score_each(requests, Scoring(needs)), len(requests), None)


def passages_by_definition(lm, one, passages):
    """(n, heads of all layers, P) and the same of all of the prompt but its last token, weight by weight."""
    weights = reference(lm.model, one, output_attentions=True).attentions
    prompt, total = len(one.prompt_ids), weights[0].shape[-1]
    heads = np.concatenate([layer[0].view(-1, total, total).double().numpy() for layer in weights])
    by_passage = np.zeros((len(one.token_ids), len(heads), len(passages.at)))
    for number, (start, end) in enumerate(passages.at):
        columns = [i for i, (a, b) in enumerate(one.prompt_offsets[:-1]) if a < end and b > start]
        by_passage[..., number] = heads[:, prompt:, columns].sum(axis=-1).T
    return by_passage, heads[:, prompt:, : prompt - 1].sum(axis=-1).T


@pytest.mark.parametrize("family", [*FAMILIES, "GptOss", "Cohere2"])
def test_weights_on_passages_are_by_their_definition_and_a_part_of_those_on_the_prompt(family):
    """In one batch with left padding; GptOss has sinks, Cohere2 a sliding window."""
    known = family in FAMILIES
    lm = (
        tiny_lm(family, attn="eager" if (family, "sdpa") in NO_SDPA else None)
        if known
        else make(family, "eager")
    )
    slow = tiny_lm(family, attn="eager") if known else lm
    requests = [ScoreRequest(prompt, TEXT, passages=shown(prompt)) for prompt in (PROMPTS[0] * 2, PROMPTS[1])]
    for request, one in zip(requests, read(lm, requests), strict=True):
        expected, context = passages_by_definition(slow, one, request.passages)
        np.testing.assert_allclose(one.passages.weights, expected, **CLOSE)
        assert (one.passages.weights.sum(axis=-1) <= context + 1e-4).all()
        total = expected.sum(axis=-1)
        shares = expected / np.maximum(total, 1e-30)[..., None]
        spread = -(shares * np.log(np.maximum(shares, 1e-30))).sum(axis=-1) / np.log(3)
        numbers = np.concatenate([shares.sum(axis=-1), shares.max(axis=-1), spread, total], axis=-1)
        if total.min() > 1e-3:  # a window may hide all passages
            np.testing.assert_allclose(one.state[:, 0], numbers, rtol=0, atol=1e-3)


def test_a_passage_that_is_permuted_permutes_its_column_and_the_subject_chooses_columns():
    lm, there = tiny_lm(), shown(PROMPTS[0])
    about = replace(there, subjects=((0, 8, (1,)),))
    turned = replace(there, at=there.at[::-1])
    plain, other, one = read(lm, [ScoreRequest(PROMPTS[0], TEXT, passages=p) for p in (there, turned, about)])
    np.testing.assert_allclose(other.passages.weights, plain.passages.weights[..., ::-1], **CLOSE)
    heads = plain.passages.weights.shape[1]
    shares = plain.passages.weights / plain.passages.weights.sum(axis=-1, keepdims=True)
    inside = [i for i, (start, _) in enumerate(one.offsets) if start < 8]
    outside = [i for i in range(len(one.token_ids)) if i not in inside]
    assert inside and outside
    np.testing.assert_allclose(one.state[inside, 0, :heads], shares[inside][..., 1], **CLOSE)
    np.testing.assert_allclose(one.state[outside, 0, :heads], 1.0, **CLOSE)


def test_states_with_and_without_passages_and_their_difference_are_those_of_two_readings():
    lm = tiny_lm()
    sites = [Feature((1, 2), site, "tokens") for site in ("resid_post", "resid_bare", "resid_diff")]
    without = PROMPTS[0][-20:]
    request = ScoreRequest(PROMPTS[0], TEXT, passages=shown(PROMPTS[0], without=without))
    (one,) = read(lm, [request], Needs(tuple(sites)))
    states = Needs.of((1, 2), pool="tokens")
    shown_, bare = lm.score([PROMPTS[0], without], [one.token_ids] * 2, needs=states)
    for site, expected in zip(sites, (shown_.state, bare.state, shown_.state - bare.state), strict=True):
        np.testing.assert_allclose(one.states[site], expected, **CLOSE)
    np.testing.assert_allclose(one.passages.gains, shown_.logprobs - bare.logprobs, **CLOSE)
    assert np.abs(one.states[sites[2]]).max() > 0.01  # the prompts differ
    (alone,) = read(lm, [ScoreRequest(PROMPTS[0], TEXT)], Needs(tuple(sites)))  # no passages change nothing
    np.testing.assert_array_equal(alone.states[sites[2]], 0.0)
    np.testing.assert_allclose(alone.states[sites[1]], shown_.state, **CLOSE)


def test_answers_from_the_same_passages_share_their_prompt_and_equal_those_read_alone(monkeypatch):
    lm = tiny_lm()
    passes = forwarded(lm, monkeypatch)
    long = PROMPTS[0] * 16
    requests = [ScoreRequest(long, text, passages=shown(long)) for text in (TEXT, " It ends.")]
    together = read(lm, requests)
    assert sum(rows * columns for rows, columns in passes) < 2 * len(together[0].prompt_ids)
    passes.clear()
    for request, one in zip(requests, together, strict=True):
        (alone,) = read(lm, [request])
        np.testing.assert_allclose(one.state, alone.state, **CLOSE)
        np.testing.assert_allclose(one.passages.weights, alone.passages.weights, **CLOSE)
    assert len(passes) == 2  # attention is read in the pass that scores


def test_what_is_read_of_passages_is_not_recorded_while_a_text_is_written():
    with fails("unsupported"):
        tiny_lm().generate(PROMPTS[:1], max_new_tokens=2, needs=SITE)


EMMA = "Emma is a novel by Jane Austen, published in 1815."
TRIAL = "The Trial is a novel by Franz Kafka, published in 1925."
CHUNK = "published in 1815, was written by Jane Austen in Chawton."


@pytest.mark.parametrize(("question", "answer", "passages", "expected"), [
    ("When was The Trial published?", "The Trial was published in 1815.", [EMMA, TRIAL], [(1,)]),
    ("When was The Trial published?", "1815.", [EMMA, TRIAL], [(1,)]),
    ("When was The Castle published?", "It was published in 1925.", [EMMA, TRIAL], [()]),
    ("Who wrote Emma?", "Jane Austen. The Trial came later.", [EMMA, TRIAL], [(0,), (1,)]),
    ("Who was Jane Austen?", "A writer of novels.", [CHUNK, TRIAL], [(0,)]),
    ("how do i boil eggs", "in water.", [EMMA, TRIAL], []),
    ("Was schrieb Franz Kafka?", "Den Prozess.", ["Franz Kafka schrieb Romane."], [(0,)]),
    ("anything", "Some text.", [], []),
])  # fmt: skip
def test_passages_about_the_subject_of_a_sentence(question, answer, passages, expected):
    assert [numbers for *_, numbers in subjects(question, answer, passages)] == expected


def test_overlap_counts_what_no_passage_has():
    assert overlap("Emma was published in 1815.", [EMMA]) == {
        "new_words": 0.0, "new_pairs": pytest.approx(2 / 4), "new_values": 0.0
    }  # fmt: skip
    new = overlap("Emma was published in 1816 by Franz Kafka.", [EMMA])
    assert new["new_values"] == 2 and new["new_words"] > 0.4


def test_passages_are_placed_in_order_and_equal_ones_one_after_the_other():
    assert place_passages("a b a", ["a", "b", "a"]) == ((0, 1), (2, 3), (4, 5))
    with pytest.raises(ValueError, match="passage 2"):
        place_passages("a b", ["b", "a"])
