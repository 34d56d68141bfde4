"""A shared prefix changes what is computed, and nothing of what comes out."""

import pytest
from helpers.tiny import FAMILIES, forwarded, tiny_lm
from test_lm import assert_all_same

from probers.types import Feature, Needs

EXEMPLARS = "Question: Who was her mother?\nAnswer: She was born in 1931, moved when she was ten.\n"
ENDS = (
    "Question: Who founded the mill in Jomholm? And where\nAnswer:", "The", "Question: Where?\nAnswer:",
    "She was born in 1931, moved when she was ten, and then worked as a baker. Who was her mother? And",
)  # fmt: skip
PROMPTS = [EXEMPLARS + end for end in ENDS]
NEEDS = Needs((Feature((0, 1, 2, 3)), Feature((0, 2, 3), pool="predicting")), attention=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_and_without_a_prefix_the_same_comes_out(family):
    lm = tiny_lm(family)
    plainly = lm.generate(PROMPTS, max_new_tokens=10, needs=NEEDS)
    again = lm.generate(PROMPTS, max_new_tokens=10, needs=NEEDS, prefix=EXEMPLARS)
    scored = lm.score(PROMPTS, [g.token_ids for g in plainly], needs=NEEDS, prefix=EXEMPLARS)
    assert_all_same(plainly, again)
    assert_all_same(plainly, scored)


def test_the_prefix_is_computed_once_for_all_batches_and_calls(monkeypatch):
    lm = tiny_lm("llama", batch_size=2)
    passes = forwarded(lm, monkeypatch)
    lm.generate(PROMPTS, max_new_tokens=1, prefix=EXEMPLARS)
    tokens = len(lm.tokenizer(EXEMPLARS)["input_ids"])
    lengths = sorted((len(lm.tokenizer(p)["input_ids"]) for p in PROMPTS), reverse=True)
    assert passes[0] == (1, tokens)
    assert len(passes) == 3
    for (rows, columns), longest in zip(passes[1:], lengths[::2], strict=True):
        assert rows == 2
        assert columns < longest - tokens + 5  # a token or two at the seam may be another one
    lm.generate(PROMPTS[:2], max_new_tokens=1, prefix=EXEMPLARS)
    assert len(passes) == 4  # another call, no pass over the prefix
    lm.generate(PROMPTS[:2], max_new_tokens=1)
    assert passes[-1][1] > tokens  # and the converse: without it all of the prompt is forwarded


@pytest.mark.parametrize("family", ["llama", "mistral", "mpt"])
def test_odd_prefixes(family):
    """A prompt that is the prefix itself, prompts much shorter than the longest, a cut token at the seam."""
    lm = tiny_lm(family)
    for prefix, prompts in (
        ("The river", ["The river", "The river"]),
        ("The", ["The", "The river Arl flows through the town. Its mouth is near Kelby, and it is long."]),
        ("The riv", ["The river Arl", "The rivalry"]),
    ):
        plainly = lm.generate(prompts, max_new_tokens=6, needs=NEEDS)
        assert_all_same(plainly, lm.generate(prompts, max_new_tokens=6, needs=NEEDS, prefix=prefix))
        scored = lm.score(prompts, [g.token_ids for g in plainly], needs=NEEDS, prefix=prefix)
        assert_all_same(plainly, scored)
