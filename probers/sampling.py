"""Drawing tokens at random, the same ones for a prompt in whatever batch it runs."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .types import UserError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample instead of taking the likeliest token.

    Recorded log-probabilities and entropies stay those of the raw logits.

    Attributes:
        temperature: logits are divided by it.
        top_k: draw among this many likeliest tokens; 0 for all.
        top_p: draw among the likeliest tokens that together have this probability.
        seed: a prompt's tokens depend on it, on the prompt, and on how many times the
            same prompt stands before it in the call; not on its neighbours.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UserError(
                f"temperature={self.temperature} must be above 0; leave sampling out for greedy decoding"
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UserError(
                f"top_k={self.top_k} must be 0 or more and top_p={self.top_p} above 0 and at most 1"
            )

    def streams(self, prompts: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
        """What the random numbers of each prompt (token ids) are derived from."""
        seen: Counter[bytes] = Counter()
        found = []
        for ids in prompts:
            digest = hashlib.sha256(np.asarray(ids, dtype=np.int64).tobytes()).digest()[:8]
            found.append((self.seed, int.from_bytes(digest, "little"), seen[digest]))
            seen[digest] += 1
        return found


class Sampler:
    """Draws the next tokens of a batch.

    Args:
        streams: one per row, from :meth:`Sampling.streams`.
    """

    def __init__(self, sampling: Sampling, streams: Sequence[tuple[int, int, int]]) -> None:
        self._sampling = sampling
        self._rows = [np.random.default_rng(list(stream)) for stream in streams]

    def __call__(self, logits: Tensor, rows: Sequence[int]) -> Tensor:
        """Tokens (batch,) for logits (batch, vocabulary) of these rows."""
        wanted = self._sampling
        ordered, order = (logits.float() / wanted.temperature).sort(dim=-1, descending=True)
        probabilities = ordered.softmax(dim=-1)
        if wanted.top_k:
            probabilities[:, wanted.top_k :] = 0
        total = probabilities.double().cumsum(dim=-1)
        if wanted.top_p < 1:
            # The token that reaches top_p is the last one drawn from.
            probabilities[total - probabilities >= wanted.top_p * total[:, -1:]] = 0
            total = probabilities.double().cumsum(dim=-1)
        numbers = torch.tensor([self._rows[row].random() for row in rows], dtype=torch.float64)
        place = torch.searchsorted(total, numbers.to(total.device)[:, None] * total[:, -1:], right=True)
        return order.gather(-1, place.clamp_max(logits.shape[-1] - 1))[:, 0]
