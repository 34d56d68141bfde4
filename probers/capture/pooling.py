"""From the states of tokens to the vectors of texts: the only pooling, and the only rounding before heads.

What one token contributes is said by :func:`token_vectors`. Texts are pooled while they are
written (:class:`StreamingPool`), where they are read whole (:class:`WholePool`), and from the
vectors of their tokens (:func:`pool_tokens`), which gives the vector of any part of a text.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..types import Pool

#: Pools that keep a vector for every token; of all others a text has one.
PER_TOKEN: tuple[Pool, ...] = ("tokens", "predicting", "mind_tokens")


def token_pool(pool: Pool) -> Pool:
    """The pool that keeps what ``pool`` is made of, for :func:`pool_tokens` to have it of a part."""
    return "mind_tokens" if pool == "mind" else pool if pool in PER_TOKEN else "tokens"


def token_vectors(states: Tensor, pool: Pool) -> Tensor:
    """What tokens contribute, (.., heads, width) float32, from the layers read of them, (.., layers, d).

    Heads are the layers, of width d. MIND has one of width 2 d: the average over all layers but
    the last of those read, and that one, which is the final norm's output.
    """
    states = states.float()
    if pool not in ("mind", "mind_tokens"):
        return states
    return torch.cat([states[..., :-1, :].mean(dim=-2), states[..., -1, :]], dim=-1)[..., None, :]


def _averaged(pool: Pool, width: int) -> slice:
    """The part of a vector that is averaged over tokens; of the rest the last token's stays."""
    starts = {"mean": 0, "mind": width // 2}
    return slice(starts.get(pool, width), width)


def pool_tokens(vectors: np.ndarray, pool: Pool) -> np.ndarray:
    """The vector (heads, width) of a run of tokens.

    Args:
        vectors: (n, heads, width), at least one, recorded with :func:`token_pool`.
        pool: "mean", "last", "mind", or "predicting", which is what comes before the first.
    """
    if pool == "predicting":
        return vectors[0]
    pooled, part = vectors[-1].copy(), _averaged(pool, vectors.shape[-1])
    pooled[..., part] = vectors[..., part].mean(axis=0)
    return pooled


class StreamingPool:
    """The vectors of a batch's texts, pooled one token at a time; pools of single tokens keep the last.

    Args:
        rows: texts.
    """

    def __init__(self, pool: Pool, rows: int) -> None:
        self._pool, self._rows = pool, rows
        self._sums: Tensor | None = None  # (rows, heads, width): sums, or what the last token has

    def add(self, vectors: Tensor, rows: Tensor | slice, live: Tensor | None = None) -> None:
        """Take one more token of some texts.

        Args:
            vectors: (b, heads, width), from :func:`token_vectors`.
            rows: (b,) whose they are.
            live: (b,) bool, False for a token that is no part of its text; None where all are.
        """
        if self._sums is None:
            self._sums = vectors.new_zeros(self._rows, *vectors.shape[1:])
        before, part = self._sums[rows], _averaged(self._pool, vectors.shape[-1])
        after = vectors.clone()
        after[..., part] += before[..., part]
        self._sums[rows] = after if live is None else torch.where(live[:, None, None], after, before)

    def value(self, rows: int | slice, count: Tensor | int) -> Tensor:
        """Vectors (.., heads, width) of some texts, which have had ``count`` >= 1 tokens."""
        assert self._sums is not None
        pooled = self._sums[rows].clone()
        pooled[..., _averaged(self._pool, pooled.shape[-1])] /= count
        return pooled


class WholePool:
    """The vectors of texts that one pass reads whole, layer by layer.

    Attributes:
        finite: (batch, T) bool per layer, in the order in which the pass came to them.

    Args:
        scored: (batch, T) bool, which of the last T positions are tokens of the texts.
    """

    def __init__(self, pool: Pool, scored: Tensor) -> None:
        self._pool, self._scored = pool, scored
        self.finite: list[Tensor] = []

    def layer(self, states: Tensor) -> Tensor:
        """What is kept of a layer's states (batch, length, d): its tokens, their mean, or the last."""
        longest = self._scored.shape[1]
        # The state that predicts a token is one to the left.
        place = slice(-longest - 1, -1) if self._pool == "predicting" else slice(-longest, None)
        states = states[:, place].float()
        here = self._scored.to(states.device)
        self.finite.append((states.isfinite().all(dim=-1) | ~here).to(self._scored.device))
        if self._pool in PER_TOKEN:
            return states.cpu()
        if self._pool == "last":
            return states[:, -1]
        mean = states.masked_fill(~here[..., None], 0.0).sum(dim=1) / here.sum(dim=1, keepdim=True)
        return torch.stack([states[:, -1], mean], dim=1) if self._pool == "mind" else mean

    def value(self, layers: Tensor, row: int) -> np.ndarray:
        """The vector of one text, (heads, width), or (n, heads, width) of its tokens.

        Args:
            layers: (batch, layers, ..), what :meth:`layer` kept of each.
        """
        own = layers[row]
        if self._pool in PER_TOKEN:
            own = own[:, -int(self._scored[row].sum()) :].transpose(0, 1)
        elif self._pool == "mind":
            own = torch.cat([own[:-1, 0], own[-1:, 1]])
        return np.array(token_vectors(own, self._pool).cpu())


def as_stored(vectors: np.ndarray | Tensor, dtype: str) -> Tensor:
    """float32 vectors rounded to number format ``dtype``, as the store rounds what heads are trained on."""
    kind: torch.dtype = getattr(torch, dtype)
    return torch.as_tensor(vectors).to(kind).float()
