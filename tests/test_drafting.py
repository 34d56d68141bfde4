"""Guessing ahead changes how many passes a text takes, and nothing of what comes out."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from helpers.tiny import FAMILIES, forwarded, tiny_lm
from test_lm import assert_all_same

from probers.model.decode import guess
from probers.model.kv_cache import PrefixCache
from probers.model.language_model import Sampling
from probers.types import Feature, Needs

PROMPTS = [
    "The river Arl flows through the town. The river Arl flows through the town. The river",
    "Question: Where?\nAnswer:",
]
POOLS = ("mean", "last", "prompt", "tokens", "predicting")


def told(lm, length=40, wrong=4) -> PrefixCache:
    """What there is to guess from: the text that will be written, with every ``wrong``-th token another one.

    Random models do not repeat themselves, so that without this no guess would be right.
    """
    cache = PrefixCache()
    lm.generate(PROMPTS, max_new_tokens=length, needs=Needs.of((1,)), names=["a", "b"], cache=cache)
    for name, prompt in zip(("prompt a", "prompt b"), PROMPTS, strict=True):
        if text := cache.get(name):
            start = len(lm.tokenizer(prompt)["input_ids"]) + wrong - 1
            ids = [i ^ (at >= start and (at - start) % wrong == 0) for at, i in enumerate(text.ids)]
            cache._texts[name] = replace(text, ids=tuple(ids))
    return cache


def both(lm, count=1, cache=None, **options):
    """Generations token by token, and drafted; they must be the same."""
    plainly = lm.generate(PROMPTS[:count], **options)
    drafted = lm.generate(
        PROMPTS[:count], **options, draft=8, names=["a", "b"][:count], cache=deepcopy(cache) or told(lm)
    )
    assert_all_same(plainly, drafted)
    return drafted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafted_text_is_as_if_written_token_by_token(family):
    """Whatever is read, and wherever it ends."""
    lm = tiny_lm(family)
    needs = Needs(tuple(Feature((0, 1, 2, 3), pool=pool) for pool in POOLS), attention=True)
    for limit in (1, 2, 3, 5, 30):  # alone from the first token on
        both(lm, max_new_tokens=limit, needs=needs)
    both(lm, 2, max_new_tokens=[30, 6], needs=needs)  # the last that runs


def test_texts_that_stop_or_end_within_a_guess():
    lm = tiny_lm("llama")
    options = {"max_new_tokens": 20, "needs": Needs.of((2,), pool="tokens", attention=True)}
    (free,) = lm.generate(PROMPTS[:1], max_new_tokens=20)
    cache = told(lm)
    for stop in {free.text[i : i + 3] for i in range(0, len(free.text) - 3, 4)}:
        (made,) = both(lm, cache=cache, stop=[stop], **options)
        assert made.stop == "stop"
    for token in set(free.token_ids):
        lm.model.generation_config.eos_token_id = token
        (made,) = both(lm, cache=cache, **options)
        assert made.stop == "eos"


def test_right_guesses_save_passes(monkeypatch):
    lm = tiny_lm("llama")
    cache = told(lm, wrong=5)
    passes = forwarded(lm, monkeypatch)
    lm.generate(PROMPTS[:1], max_new_tokens=40)
    assert len(passes) == 40
    passes.clear()
    lm.generate(PROMPTS[:1], max_new_tokens=40, draft=8, names=["a"], cache=cache)
    assert len(passes) <= 25  # four of five guesses are right; after a wrong one nothing is repeated
    passes.clear()
    lm.generate(PROMPTS[:1], max_new_tokens=40, draft=8, sampling=Sampling(seed=1))
    assert all(columns == 1 for _, columns in passes[1:])  # and the converse: drawn tokens are not guessed


def test_guesses_go_on_from_the_last_longest_repetition():
    text = np.array([7, 1, 2, 3, 9, 9, 2, 3, 4, 4, 1, 2, 3])
    assert guess(text, 2) == [9, 9]  # 1 2 3 stood there before; 2 3 alone was later followed by 4
    assert guess(text[1:], 8) == [9, 9, 2, 3, 4, 4, 1, 2]
    assert guess(np.array([5, *range(6, 20), 5]), 9) == [6, 7, 8, 9]  # one repeated token says little
    assert guess(np.array([1, 2, 3]), 9) == []
