"""Attention read beside a kernel that gets no mask of its own, played on a CPU."""

import numpy as np
import pytest
import torch
from tiny import PROMPTS, tiny_lm
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from probers.types import Needs

FLASH = "played_kernel"


def played(
    module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None, **options
):
    """As flash attention: it knows causality, window and padding, and loads itself by the config's name."""
    assert module.config._attn_implementation == FLASH
    assert attention_mask is None or attention_mask.dim() == 2
    length, keys = query.shape[2], key.shape[2]
    rows = torch.arange(keys - length, keys)[:, None]
    columns = torch.arange(keys)[None]
    seen = columns <= rows
    if sliding_window is not None:
        seen = seen & (rows - columns < sliding_window)
    seen = seen[None, None]
    if attention_mask is not None:
        seen = seen & attention_mask[:, None, None, -keys:].bool()
    seen = seen | (columns == rows)  # a row of padding sees itself
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    scores = query @ key.transpose(-1, -2) * scaling
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    found = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1) @ value
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(FLASH, played)
AttentionMaskInterface.register(FLASH, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3"])
def test_attention_beside_flash_is_that_of_eager(family):
    eager, flash = tiny_lm(family, attn="eager"), tiny_lm(family, attn=FLASH)
    needs = Needs(attention=True)
    made = flash.generate(PROMPTS, max_new_tokens=12, needs=needs)
    for one, other in zip(made, eager.generate(PROMPTS, max_new_tokens=12, needs=needs), strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.attention.rows, other.attention.rows, rtol=0, atol=1e-4)
    texts = [one.text for one in made]
    for one, other in zip(
        flash.score(PROMPTS, texts, needs=needs), eager.score(PROMPTS, texts, needs=needs), strict=True
    ):
        np.testing.assert_allclose(one.attention.rows, other.attention.rows, rtol=0, atol=1e-4)
