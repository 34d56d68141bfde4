"""What prompts begin with is computed once, and nothing of what comes out changes."""

import numpy as np
import pytest
from helpers.tiny import FAMILIES, forwarded, tiny_lm
from hypothesis import given
from hypothesis import strategies as st
from test_lm import alone, assert_all_same

from probers.model.batch_size import longest
from probers.model.language_model import ScoreRequest, Scoring
from probers.signals import signals_before
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
    for (rows, columns), most in zip(passes[1:], lengths[::2], strict=True):
        assert rows == 2
        assert columns < most - tokens + 5  # a token or two at the seam may be another one
    lm.generate(PROMPTS[:2], max_new_tokens=1, prefix=EXEMPLARS)
    assert len(passes) == 4  # another call, no pass over the prefix
    lm.generate(PROMPTS[:2], max_new_tokens=1)
    assert passes[-1][1] > tokens  # and the converse: without it all of the prompt is forwarded


ONE = "She was born in 1931 in Jomholm, where her father had a mill, and moved when she was ten to the coast."
OTHER = (
    "The river Ovel rises in the north and flows through three lakes and two towns before it meets the sea."
)


def head(text, most):
    """As many whole words as ``most`` characters hold: the tokens of one are not those of its half."""
    return text[: text.rindex(" ", 0, most)]


NESTED = [
    head(ONE, 20), ONE, head(OTHER, 60), head(ONE, 55), OTHER, "Elsewhere it rained", head(OTHER, 60),
    OTHER[:21],
]  # fmt: skip
#: Signals of the distribution before a token, whatever the token is.
KNOWN = ("entropy_before", "max_prob_before", "margin_before")


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr("probers.model.batch_size._LEAST", 1)


@pytest.mark.parametrize(("family", "batches"), [
    *((family, {}) for family in FAMILIES), *(("llama", {"batch_size": size}) for size in (2, 3, 8)),
])  # fmt: skip
def test_nested_prompts_give_what_each_gives_alone(family, batches, eager):
    lm = tiny_lm(family, **batches)
    together = lm.generate(NESTED, max_new_tokens=10, needs=NEEDS)
    assert_all_same(together, alone(lm, NESTED, max_new_tokens=10, needs=NEEDS))


@pytest.mark.parametrize("batch_size", [1, 2, "auto"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_cuts_of_one_text_are_read_once_whatever_the_batch(family, batch_size, monkeypatch, eager):
    lm = tiny_lm(family, batch_size=batch_size)
    texts = [head(text, end) for text in (ONE, OTHER) for end in (20, 50, 100)]
    lengths = [len(lm.tokenizer(text)["input_ids"]) for text in texts]
    passes = forwarded(lm, monkeypatch)
    lm.generate(texts, max_new_tokens=1)
    read = [(rows, columns) for rows, columns in passes if columns > 1]
    assert sum(rows for rows, _ in read) == 2
    assert {columns for _, columns in read} <= {lengths[2] - 1, lengths[5] - 1}
    assert sum(rows for rows, columns in passes if columns == 1) == len(texts)


def test_prompts_of_one_token_are_not_cut(eager):
    lm = tiny_lm("llama")
    together = lm.generate(["S", "She", ONE], max_new_tokens=4, needs=NEEDS)
    assert_all_same(together, alone(lm, ["S", "She", ONE], max_new_tokens=4, needs=NEEDS))


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12))
def test_the_longest_is_one_that_begins_with_it_and_begins_no_other(sequences):
    groups = longest(sequences)
    for sequence, leaf in zip(sequences, groups, strict=True):
        most = sequences[leaf]
        assert most[: len(sequence)] == sequence and groups[leaf] == leaf
        assert not any(len(s) > len(most) and s[: len(most)] == most for s in sequences)


def tokens_of(lm, texts):
    return [lm.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def test_what_is_known_before_texts_after_one_prompt_part_is_the_same_number_in_all():
    """In bfloat16 padding and neighbours move it, and a long text is wrong more often than a short one."""
    lm = tiny_lm("llama", dtype="bfloat16", batch_size=4)
    texts = tokens_of(lm, [head(ONE, 20), head(ONE, 90), head(OTHER, 30), head(ONE, 40)])
    prompts, answers = zip(*[(prompt, text) for prompt in (ONE, OTHER[:21]) for text in texts], strict=True)
    pools = ("positions", "prompt", "mean")
    needs = Needs(tuple(Feature((0, 2, 3), pool=pool) for pool in pools), attention=True, top=True)
    read = lm.score(prompts, answers, needs=needs)
    for first in (0, len(texts)):
        some = read[first : first + len(texts)]
        assert len({tuple(signals_before(one)[name] for name in KNOWN) for one in some}) == 1
        for pool in pools[:2]:
            states = [one.states[Feature((0, 2, 3), pool=pool)].reshape(-1, 3, 32)[0] for one in some]
            assert all(np.array_equal(states[0], other) for other in states)
        assert len({one.attention.rows[0, : len(one.prompt_ids)].tobytes() for one in some}) == 1
        # A signal of the token itself is another in a text that begins otherwise.
        assert some[0].logprobs[0] == some[1].logprobs[0] != some[2].logprobs[0]
    assert read[0].entropies[0] != read[len(texts)].entropies[0]  # another prompt


def test_texts_that_begin_alike_are_read_as_each_alone_and_again_after_a_kill():
    lm = tiny_lm("llama", batch_size=3)
    answers = tokens_of(lm, [head(ONE, 20), head(ONE, 40), head(ONE, 90), head(ONE, 20)]) * 2
    prompts = [ONE] * 4 + [OTHER] * 4
    needs = Needs(
        (Feature((0, 3), pool="positions"), Feature((1,), pool="predicting")), attention=True, top=True
    )
    together = lm.score(prompts, answers, needs=needs)
    singly = [lm.score([p], [a], needs=needs)[0] for p, a in zip(prompts, answers, strict=True)]
    assert_all_same(together, singly)
    requests = [ScoreRequest(p, a) for p, a in zip(prompts, answers, strict=True)]
    resumed = {}
    for batch in lm.score_each(requests, Scoring(needs), known={0, 1, 4, 5, 6, 7}):
        resumed |= batch
    assert sorted(resumed) == [2, 3]
    for place, again in resumed.items():
        assert again.entropies.tobytes() == together[place].entropies.tobytes()
