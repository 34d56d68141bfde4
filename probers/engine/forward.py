"""One forward call of any decoder-only model of transformers, left-padded batches included."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..types import RunError


class Decoder:
    """A causal language model as a function from tokens to the logits of the last positions.

    Families differ in what their forward accepts; the ones without ``position_ids``
    derive positions from the mask, the ones without ``logits_to_keep`` compute all logits.

    Args:
        use_cache: False does without keys and values, for models whose cache is broken.
    """

    def __init__(self, model: Any, *, use_cache: bool = True) -> None:
        accepted = inspect.signature(model.forward).parameters
        self.model = model
        self.device: torch.device = model.device
        self.use_cache = use_cache
        self._positions = "position_ids" in accepted
        self._keeps = "logits_to_keep" in accepted

    def __call__(
        self, ids: Tensor, mask: Tensor | None, positions: Tensor, *, keep: int = 1, cache: Any = None
    ) -> Tensor:
        """Logits (batch, keep, vocabulary) of the last ``keep`` positions, in the model's number format.

        Args:
            ids: (batch, length).
            mask: (batch, cached + length), 1 where a token is, or None without padding.
            positions: (batch, length), of each token in its own sequence.
            keep: positions whose logits are wanted, counted from the end.
            cache: key/value cache that the call extends; None for a pass without one.
        """
        options: dict[str, Any] = {"use_cache": cache is not None, "past_key_values": cache}
        if self._positions:
            options["position_ids"] = positions
        if self._keeps:
            options["logits_to_keep"] = keep
        logits: Tensor = self.model(input_ids=ids, attention_mask=mask, **options).logits
        return logits[:, -keep:]

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None, Tensor]:
        """Left-padded ids, mask (None when nothing had to be padded) and positions, each (batch, length).

        Padding is masked, so that it may be any token; 0 exists in every vocabulary, while
        a tokenizer's padding token may be missing or unknown to the model.
        """
        width = max(len(ids) for ids in sequences)
        pads = [width - len(ids) for ids in sequences]
        rows = [[0] * pad + list(ids) for pad, ids in zip(pads, sequences, strict=True)]
        ids = torch.tensor(rows, device=self.device)
        positions = torch.arange(width, device=self.device) - torch.tensor(pads, device=self.device)[:, None]
        mask = (positions >= 0).long() if any(pads) else None
        return ids, mask, positions.clamp_min(0)


def token_scores(logits: Tensor, tokens: Tensor, *, top: bool = False) -> Tensor:
    """(2, ...) log-probability of ``tokens`` and entropy of their distribution, nats, float32.

    Args:
        logits: (..., vocabulary) raw logits; -inf excludes a token.
        tokens: (...).
        top: also the distribution's two highest probabilities, (4, ...) together.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    chosen = logprobs.gather(-1, tokens[..., None])[..., 0]
    highest = logprobs.topk(2, dim=-1).values.exp().unbind(dim=-1) if top else ()
    # One product instead of a logarithm per token of the vocabulary; 0 * -inf would be NaN.
    entropies = -torch.linalg.vecdot(logprobs.exp(), logprobs.clamp_min_(torch.finfo(torch.float32).min))
    return torch.stack([chosen, entropies, *highest])


def broken_logits(where: str) -> RunError:
    """That no token can be chosen or scored at a place."""
    return RunError(f"the logits are NaN or infinite at {where}; try dtype=float32 or bfloat16")
