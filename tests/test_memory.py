"""Memory of scoring: what is held at once, and that pieces change no number."""

import pytest
import torch
from helpers.tiny import FAMILIES, PROMPTS, tiny_lm
from test_lm import assert_all_same
from torch.utils._python_dispatch import TorchDispatchMode

import probers.model.forward as forward
from probers.types import Needs

NEEDS = Needs.of((0, 1, 2, 3), attention=True)


class Largest(TorchDispatchMode):
    """Keeps the size of the largest new tensor of a vocabulary's width."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary, self.largest = vocabulary, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dim() == 3 and out.shape[-1] == self.vocabulary:
            self.largest = max(self.largest, out.numel())
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
