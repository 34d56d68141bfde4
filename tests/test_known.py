"""What an earlier call computed is not computed again, and nothing else changes."""

import pytest
from helpers.tiny import FAMILIES, forwarded, tiny_lm
from test_lm import assert_all_same, assert_same
from test_prefix import EXEMPLARS, NEEDS

from probers.model.kv_cache import PrefixCache

PROMPTS = [
    EXEMPLARS + "Question: Who founded the mill in Jomholm?\nAnswer:",
    EXEMPLARS + "Question: Where?\nAnswer:",
    "The river Arl flows through the town.",
]
NAMES = ["a", "b", "c"]


def go_on(lm, prompts, generations, more=" So the answer is"):
    """Prompts of the next call: what was written, and a few words."""
    return [p + g.text + more for p, g in zip(prompts, generations, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prefix", ["", EXEMPLARS])
def test_texts_that_go_on_are_as_if_computed_anew(family, prefix):
    lm, cache = tiny_lm(family, batch_size=2), PrefixCache()
    prompts, names = (PROMPTS, NAMES) if not prefix else (PROMPTS[:2], NAMES[:2])
    for length in (7, 4, 5):  # the third goes on from what the second left
        plainly = lm.generate(prompts, max_new_tokens=length, needs=NEEDS, prefix=prefix)
        options = {"max_new_tokens": length, "needs": NEEDS, "prefix": prefix}
        again = lm.generate(prompts, names=names, cache=cache, **options)
        assert_all_same(plainly, again)
        prompts = go_on(lm, prompts, plainly)


def test_only_what_is_new_is_forwarded(monkeypatch):
    lm, cache = tiny_lm("llama"), PrefixCache()
    first = lm.generate(PROMPTS, max_new_tokens=6, names=NAMES, cache=cache)
    prompts = go_on(lm, PROMPTS, first)
    passes = forwarded(lm, monkeypatch)
    lm.generate(prompts, max_new_tokens=1, names=NAMES, cache=cache)
    words = len(lm.tokenizer(" So the answer is")["input_ids"])
    assert passes[0][1] <= words + 4  # a token or two at the seam may be another one
    passes.clear()
    lm.generate(prompts, max_new_tokens=1, names=["d", "e", "f"], cache=cache)
    assert passes[0][1] > 2 * words + 8  # and the converse: texts of other names are not looked at


def test_stopped_and_changed_texts_get_nothing_of_what_was_forwarded_behind():
    """Tokens behind a stop string were forwarded too; a prompt that goes on elsewhere does not get them."""
    lm, cache = tiny_lm("llama"), PrefixCache()
    (free,) = lm.generate(PROMPTS[:1], max_new_tokens=12)
    stop = free.text[len(free.text) // 2 :][:3]
    first = lm.generate(PROMPTS[:1], max_new_tokens=12, stop=[stop], needs=NEEDS, names=["a"], cache=cache)
    changed = PROMPTS[0].replace("Question", "A question", 2)  # in the middle
    for prompts in (go_on(lm, PROMPTS[:1], first), [changed]):
        (plainly,) = lm.generate(prompts, max_new_tokens=5, needs=NEEDS)
        (again,) = lm.generate(prompts, max_new_tokens=5, needs=NEEDS, names=["a"], cache=cache)
        assert_same(plainly, again)


@pytest.mark.parametrize(
    ("family", "options", "remaining"), [("mistral", {}, 0), ("llama", {}, 3), ("llama", {"megabytes": 0}, 0)]
)
def test_sliding_windows_leave_nothing_and_others_what_there_is_room_for(family, options, remaining):
    cache = PrefixCache(**options)
    tiny_lm(family).generate(PROMPTS, max_new_tokens=2, names=NAMES, cache=cache)
    assert len(cache) == remaining


def test_no_more_than_there_is_room_for():
    lm = tiny_lm("llama")

    def write(name):
        lm.generate(PROMPTS[:1], max_new_tokens=2, names=[name], cache=cache)

    cache = PrefixCache()
    write("a")
    text = cache.get("prompt a")
    cache = PrefixCache(megabytes=1.5e-6 * sum(t.nbytes for pair in text.layers for t in pair))
    for _ in range(3):  # a text takes the place of the last of its name, and its room
        write("a")
        assert len(cache) == 1
    write("b")
    assert cache.get("prompt b") is None
    cache.forget("prompt a")
    write("b")
    assert cache.get("prompt b") is not None
