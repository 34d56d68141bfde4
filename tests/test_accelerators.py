"""Flash attention, which runs on accelerators only, played on a CPU."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers.modeling_flash_attention_utils as flash
from helpers.tiny import PROMPTS, tiny_lm
from test_capture import CLOSE, expected_rows

from probers.types import Needs


def kernel(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    """Flash attention by its definition; (batch, length, heads, width)."""
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) * softmax_scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    rows, columns = scores.shape[-2:]
    places = torch.arange(rows)[:, None] + columns - rows
    back = places - torch.arange(columns)
    hidden = (back < 0) if causal else torch.zeros_like(back, dtype=torch.bool)
    if window_size[0] >= 0:
        hidden = hidden | (back > window_size[0])
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v).transpose(1, 2)


def by_texts(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
):  # fmt: skip
    pieces = [pairwise(ends.tolist()) for ends in (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k)]
    made = []
    for places in zip(*pieces, strict=True):
        text = (x[None, a:b] for x, (a, b) in zip((q, k, v), places, strict=True))
        made.append(kernel(*text, softmax_scale, causal, window_size, softcap))  # type: ignore[call-arg]
    return torch.cat(made, dim=1)[0]


@pytest.fixture
def played(monkeypatch):
    """transformers has loaded flash_attention_2, a kernel of ours; other names are looked for in the Hub."""
    given = {
        "_loaded_implementation": "flash_attention_2", "_flash_fn": kernel, "_flash_varlen_fn": by_texts,
        "_flash_with_kvcache_fn": None, "_pad_fn": flash._pad_input, "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(by_texts),
        "_process_with_kvcache_kwargs_fn": dict,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setattr(flash, name, value)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma2", "gemma3"])
def test_attention_of_a_flash_kernel_is_that_of_eager_attention(family, played):
    """Mistral's and Gemma's windows of 8 hide most of every prompt."""
    lm = tiny_lm(family)
    lm.model.config._attn_implementation_internal = "flash_attention_2"
    for layer in (1, 2, 3):
        needs = Needs(attention=True, attention_layer=layer)
        generations = lm.generate(PROMPTS, max_new_tokens=12, needs=needs)
        scored = lm.score(PROMPTS, [g.token_ids for g in generations], needs=needs)
        for generation in [*generations, *scored]:
            rows, maxima = expected_rows(family, generation, layer=layer)
            np.testing.assert_allclose(generation.attention.rows, rows, **CLOSE)
            np.testing.assert_allclose(generation.attention.column_max, maxima, **CLOSE)


def test_lookback_ratios_of_a_flash_kernel_are_those_of_sdpa(played):
    needs = Needs.of((3,), site="lookback", pool="tokens")
    plain = tiny_lm("mistral").generate(PROMPTS, max_new_tokens=12, needs=needs)
    lm = tiny_lm("mistral")
    lm.model.config._attn_implementation_internal = "flash_attention_2"
    for one, other in zip(lm.generate(PROMPTS, max_new_tokens=12, needs=needs), plain, strict=True):
        assert one.token_ids == other.token_ids
        np.testing.assert_allclose(one.state, other.state, **CLOSE)
