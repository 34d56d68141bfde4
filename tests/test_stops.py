"""Sentence ends and sampling: where a text ends, and how its tokens are drawn."""

import numpy as np
import pytest
import torch
from helpers.tiny import PROMPTS, tiny_lm
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lm import assert_all_same, rescored

from probers.model.language_model import Sampling, SentenceEnd, Stops
from probers.types import Needs
from probers.words.text import split_sentences

NEEDS = Needs.of((1, 3), attention=True)


def grown(text: str, stops: Stops) -> tuple[int | None, list[int]]:
    """Where a text that grows by one character at a time is ended, and what was safe before."""
    safe = []
    for end in range(1, len(text) + 1):
        place = stops.find(text[:end], end - 1)
        if place is not None:
            return place, safe
        safe.append(stops.safe(text[:end]))
    return None, safe


@pytest.mark.parametrize(("text", "count", "end"), [
    ("She was born in 1912. She moved", 1, "She was born in 1912."),
    ("She was born in 1912. She moved", 2, None), ("One. Two. Three. Four", 2, "One. Two."),
    ("Dr. Tolven lived in U.S. Army barracks. Then", 1, "Dr. Tolven lived in U.S. Army barracks."),
    ("She left the U.S. The mill", 1, "She left the U.S."), ("She met a U.S. Theodore and", 1, None),
    ('He said "go." And', 1, 'He said "go."'), ("A line\nand another", 1, "A line"),
])  # fmt: skip
def test_a_sentence_ends_where_it_is_split(text, count, end):
    place, _ = grown(text, Stops(frozenset(), sentences=(SentenceEnd(count),)))
    assert (None if place is None else text[:place]) == end


WORDS = ["The", "Theodore", "U.S.", "J.", "mill.", "etc.", "no.", "5", "she", "ran", "Go!", "\n"]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), st.integers(1, 2))
def test_what_was_safe_is_never_cut(words, count):
    text = " ".join(words)
    place, safe = grown(text, Stops(frozenset(), ("mill. U",), (SentenceEnd(count),)))
    if place is not None:
        assert max(safe, default=0) <= place
        spans = split_sentences(text)
        assert place in {end for _, end in spans} or text[place:].startswith("mill. U")


def test_generation_ends_with_its_sentence_and_records_only_that():
    lm = tiny_lm("llama")
    free = lm.generate(PROMPTS, max_new_tokens=40)
    ended = lm.generate(PROMPTS, max_new_tokens=40, needs=NEEDS, stop=[SentenceEnd()])
    assert {g.stop for g in ended} == {"stop", "length"}  # or the test shows nothing
    for whole, cut in zip(free, ended, strict=True):
        spans = split_sentences(whole.text)
        if cut.stop == "stop":
            assert len(spans) > 1
            n_tokens = sum(end <= spans[0][1] for _, end in whole.offsets)
            assert cut.token_ids == whole.token_ids[:n_tokens]
        else:
            assert cut.token_ids == whole.token_ids
    texts = [g for g in ended if g.token_ids]
    assert_all_same(texts, rescored(lm, texts))


def tokens(lm, prompts, **options) -> list[tuple[int, ...]]:
    return [g.token_ids for g in lm.generate(prompts, max_new_tokens=8, sampling=Sampling(**options))]


def test_samples_are_the_same_in_any_batch_and_differ_by_seed():
    lm = tiny_lm("llama")
    together = tokens(lm, PROMPTS, seed=3)
    assert together != tokens(lm, PROMPTS, seed=4)
    assert [tokens(lm, [p], seed=3)[0] for p in PROMPTS] == together
    assert tokens(tiny_lm("llama", batch_size=2), PROMPTS[::-1], seed=3) == together[::-1]


LOGITS = torch.tensor([2.0, 0.0, 1.0, -1.0, -float("inf")])


def frequencies(count: int = 4000, **options) -> np.ndarray:
    sampling, random = Sampling(**options), [np.random.default_rng((0, 0, 0))]
    drawn = [int(sampling.draw(LOGITS[None].log_softmax(-1), random)) for _ in range(count)]
    return np.bincount(drawn, minlength=5) / count


def test_tokens_are_drawn_with_their_probabilities():
    probabilities, hot = LOGITS.softmax(-1).numpy(), LOGITS.div(4).softmax(-1).numpy()
    np.testing.assert_allclose(frequencies(), probabilities, atol=0.03)
    np.testing.assert_allclose(frequencies(temperature=4.0), hot, atol=0.03)
    two = probabilities[[0, 2]] / probabilities[[0, 2]].sum()
    for options in ({"top_k": 2}, {"top_p": 0.7}):
        shares = frequencies(**options)
        np.testing.assert_allclose(shares[[0, 2]], two, atol=0.03)
        assert shares[[1, 3, 4]].sum() == 0
    assert frequencies(count=50, top_p=0.5)[0] == 1
