"""Attention by passage against transformers' own attention, and what passages change in a text."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.refusals import fails
from helpers.tiny import FAMILIES, PROMPTS, forwarded, reference, tiny_lm
from test_capture import NO_SDPA
from test_every_family import make

from probers.data.texts.shown import overlap, place_passages, subjects
from probers.model.language_model import ScoreRequest, Scoring
from probers.types import Feature, Needs, Passages

LAYER = (3,)  # of the tiny models, the last
CLOSE = {"rtol": 0, "atol": 1e-4}
SITE = Needs.of(LAYER, "passages", "tokens")
TEXT = " and a little more."


def shown(prompt, count=3, **more):
    """A prompt as so many passages with something between them."""
    width = len(prompt) // count
    return Passages(tuple((n * width, (n + 1) * width - 2) for n in range(count)), **more)


def read(lm, requests, needs=SITE):
    found = {}
    for batch in lm.score_each(requests, Scoring(needs)):
        found |= batch
    return [found[place] for place in range(len(requests))]


def by_definition(lm, one, passages):
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
        expected, context = by_definition(slow, one, request.passages)
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
