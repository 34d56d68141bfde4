"""Lookback ratios: how much each head looks at the prompt, against what was written since.

Chuang et al. 2024 (Lookback Lens, eq. 1 and 2). At the position t of a text after a prompt of p tokens
head h of layer l has

    A_context = the mean of its weights on the prompt's tokens,
    A_new     = the mean of its weights on the tokens after them, up to t itself,
    ratio     = A_context / (A_context + A_new).

The prompt's last token counts as new, as the end of the prompt's form does in the released code: so the
position that predicts the first token has a ratio too. A sliding window's hidden tokens count with weight
0. Ratios of all heads of all layers lie side by side in one vector, which the classifier reads whole.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..types import UserError
from .attention import AttentionTap
from .blocks import decoder_layers

if TYPE_CHECKING:
    from typing_extensions import Self


def lookback_width(model: Any) -> int:
    """How many ratios there are at a position: attention heads of all layers."""
    heads = getattr(model.config.get_text_config(), "num_attention_heads", None)
    if not isinstance(heads, int):
        raise UserError(
            f"site=lookback cannot be read from {type(model).__name__}: its config names no number of "
            "attention heads; use resid_post"
        )
    return heads * len(decoder_layers(model))


def lookback_ratios(weights: Tensor, prompts: Tensor, written: Tensor) -> Tensor:
    """Ratios (batch, q, heads), float32, of the last q positions.

    Args:
        weights: (batch, heads, q, k) attention; the last column is the last position.
        prompts: (batch,) tokens of each prompt.
        written: (batch,) tokens after it, the last position's included.
    """
    queries, keys = weights.shape[2:]
    device = weights.device
    prompts, written = prompts.to(device), written.to(device)
    back = torch.arange(keys - 1, -1, -1, device=device)  # of each column, how far from the last
    new = back <= written[:, None]  # (batch, k)
    context = ~new & (back < (prompts + written)[:, None])
    read = torch.einsum("bhqk,bck->cbqh", weights, torch.stack([context, new], dim=1).to(weights.dtype))
    steps = torch.arange(queries - 1, -1, -1, device=device)
    counts = torch.stack([(prompts - 1)[:, None].expand(-1, queries), written[:, None] - steps + 1])
    on_context, on_new = read / counts.clamp_min(1)[..., None]
    return on_context / (on_context + on_new).clamp_min(torch.finfo(torch.float32).tiny)


class LookbackTap(ExitStack):
    """Reads the lookback ratios of all layers' heads."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._taps = [AttentionTap(model, layer) for layer in range(1, len(decoder_layers(model)) + 1)]
        self._queries = 0

    def __enter__(self) -> Self:
        for tap in self._taps:
            self.enter_context(tap)
        return self

    def read_last(self, count: int) -> None:
        """Read the last ``count`` positions of every pass until :meth:`take_last`; none where it is 0."""
        self._queries = count
        for tap in self._taps:
            tap.read(count)

    def take_last(self, prompts: Tensor, written: Tensor) -> Tensor | None:
        """What was read, (batch, count, 1, layers * heads) float32, as of one layer; None where nothing was.

        Args:
            prompts, written: as of :func:`lookback_ratios`.

        Raises:
            RunError: attention that cannot be read.
        """
        if not self._queries:
            return None
        self._queries = 0
        ratios = [lookback_ratios(tap.take().weights(), prompts, written) for tap in self._taps]
        return torch.cat([each.to(ratios[0].device) for each in ratios], dim=-1)[:, :, None]
