"""Memory of scoring and of the server's cache: what is held at once, and that pieces change no number."""

import pytest
import torch
from helpers.tiny import FAMILIES, PROMPTS, tiny_lm
from test_lm import assert_all_same
from torch.utils._python_dispatch import TorchDispatchMode

import probers.model.forward as forward
from probers.model.kv_cache import BlockCache
from probers.types import Needs

NEEDS = Needs.of((0, 1, 2, 3), attention=True)


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
    made = lm.generate(PROMPTS, max_new_tokens=12, needs=NEEDS)
    texts = [g.prompt for g in made], [g.token_ids[: 12 - row] for row, g in enumerate(made)]
    vocabulary = int(lm.model.config.vocab_size)
    held = []
    whole = None
    for positions in (1000, 5, 1):
        monkeypatch.setattr(forward, "_PIECE", positions * len(PROMPTS) * vocabulary)
        with Largest(vocabulary) as seen:
            scored = lm.score(*texts, needs=NEEDS)
        held.append(seen.largest // (len(PROMPTS) * vocabulary))
        whole = whole or scored
        assert_all_same(whole, scored)
    assert held == [13, 5, 1]
    assert_all_same(made[:1], lm.score(*(each[:1] for each in texts), needs=NEEDS))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_the_final_norm_is_read_whole_where_logits_come_in_pieces(family, monkeypatch):
    lm = tiny_lm(family, batch_size=8)
    needs = Needs.of((3,), pool="mind_tokens")
    made = lm.generate(PROMPTS, max_new_tokens=12, needs=needs)
    monkeypatch.setattr(forward, "_PIECE", 3 * len(PROMPTS) * int(lm.model.config.vocab_size))
    assert_all_same(made, lm.score(PROMPTS, [g.token_ids for g in made], needs=needs))


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
