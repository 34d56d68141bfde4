"""What is shared, kept or done in pieces saves passes and memory, and changes nothing of what comes out."""

from __future__ import annotations

import pytest
import torch
from test_lm import assert_all_same
from tiny import FAMILIES, forwarded, tiny_lm
from tiny import PROMPTS as TEXTS
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from probers.engine import forward
from probers.engine.decode import closed
from probers.engine.kv_cache import BlockCache, GrowingLayer, new_cache
from probers.types import Feature, Needs

EXEMPLARS = "Question: Who was her mother?\nAnswer: She was born in 1931, moved when she was ten.\n"
ENDS = (
    "Question: Who founded the mill in Jomholm? And where\nAnswer:",
    "The",
    "Question: Where?\nAnswer:",
    "She was born in 1931, moved when she was ten, and then worked as a baker. Who was her mother? And",
)
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


def test_another_prefix_replaces_the_one_before():
    lm = tiny_lm("llama")
    for prefix in ("The river", "Who? Who?", "The river"):
        prompts = [prefix + " is", prefix + " was a baker"]
        plainly = tiny_lm("llama").generate(prompts, max_new_tokens=5)
        assert_all_same(plainly, lm.generate(prompts, max_new_tokens=5, prefix=prefix))


def test_a_growing_layer_holds_what_the_dynamic_one_holds():
    torch.manual_seed(0)
    mine, theirs, rows = GrowingLayer(capacity=5), DynamicCache(), 3
    for length in (3, 1, 1, 4, 1):  # beyond its room, too
        keys, values = torch.randn(2, rows, 2, length, 4)
        for a, b in zip(mine.update(keys, values), theirs.update(keys, values, 0), strict=True):
            assert torch.equal(a, b)
        assert mine.get_seq_length() == theirs.get_seq_length()
        if length == 4:
            rows, chosen = 2, torch.tensor([2, 0])
            mine.batch_select_indices(chosen)
            theirs.batch_select_indices(chosen)


def test_room_is_made_once_and_filled_in_place():
    cache = new_cache(tiny_lm("llama").model.config, capacity=40)
    found = [cache.update(*torch.randn(2, 1, 2, 10, 8), 0)[0] for _ in range(4)]
    assert len({keys.data_ptr() for keys in found}) == 1
    assert found[-1].numel() == 1 * 2 * 40 * 8


def test_rows_that_stay_are_not_moved():
    assert closed([0, 1, 2]) == [0, 1, 2]
    assert closed([1, 2, 4, 5]) == [5, 1, 2, 4]
    assert closed([3]) == [3]
    layer = GrowingLayer(6)
    numbers = torch.arange(5 * 4, dtype=torch.float32).view(5, 1, 4, 1)
    layer.update(numbers, -numbers)
    before = layer.keys.data_ptr()
    layer.batch_select_indices(torch.tensor([4, 1, 3]))
    assert torch.equal(layer.keys, numbers[[4, 1, 3]]) and torch.equal(layer.values, -numbers[[4, 1, 3]])
    assert layer.keys.data_ptr() == before
    layer.update(numbers[:3, :, :2], numbers[:3, :, :2])
    assert torch.equal(layer.keys[:, :, :4], numbers[[4, 1, 3]]) and layer.keys.shape[2] == 6
    layer.batch_select_indices(torch.tensor([1, 0]))  # any other order as well
    assert torch.equal(layer.keys[:, :, :4], numbers[[1, 4]])


# Memory: what is held at once, and that pieces change no number.

ALL = Needs.of((0, 1, 2, 3), attention=True)


class Largest(TorchDispatchMode):
    """Counts new tensors and keeps the size of the largest of a vocabulary's width."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.largest, self.stacked = vocabulary, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() == 3 and out.shape[-1] == self.vocabulary:
            self.largest = max(self.largest, out.numel())
        self.stacked += func in (torch.ops.aten.stack.default, torch.ops.aten.clone.default)
        return out


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_in_pieces_give_the_scores_of_whole_ones(family, monkeypatch):
    lm = tiny_lm(family, batch_size=8)
    made = lm.generate(TEXTS, max_new_tokens=12, needs=ALL)
    texts = [g.prompt for g in made], [g.token_ids[: 12 - row] for row, g in enumerate(made)]
    vocabulary = int(lm.model.config.vocab_size)
    held = []
    whole = None
    for positions in (1000, 5, 1):
        monkeypatch.setattr(forward, "_PIECE", positions * len(TEXTS) * vocabulary)
        with Largest(vocabulary) as seen:
            scored = lm.score(*texts, needs=ALL)
        held.append(seen.largest // (len(TEXTS) * vocabulary))
        whole = whole or scored
        assert_all_same(whole, scored)
    assert held == [13, 5, 1]
    assert_all_same(made[:1], lm.score(*(each[:1] for each in texts), needs=ALL))


def test_a_block_of_the_cache_is_one_copy():
    layers = [(torch.randn(2, 70, 4), torch.randn(2, 70, 4)) for _ in range(5)]
    layers.append((torch.randn(1, 70, 8), torch.randn(1, 70, 6)))
    cache, ids = BlockCache(), list(range(70))
    with Largest(0) as seen:
        cache.keep(ids, layers)
    assert seen.stacked == 2 * 3  # two blocks, three shapes
    found = cache.find(ids)
    assert found is not None and found.ids == tuple(range(64))
    for own, kept in zip(layers, found.layers, strict=True):
        for one, other in zip(own, kept, strict=True):
            assert torch.equal(one[:, :64], other)
