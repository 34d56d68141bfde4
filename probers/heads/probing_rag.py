"""Probing-RAG's prober (Baek et al., NAACL 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from .base import ProbeHead
from .blocks import Dropout, Linear, Norm, weight_generators


class ProbingRagHead(ProbeHead):
    """Probing-RAG's prober, as its size and released code have it.

    LayerNorm(d) -> Linear -> SiLU -> LayerNorm -> Dropout -> Linear -> SiLU ->
    LayerNorm -> Dropout -> Linear 2. With d = 2048 and 512 hidden units a head has 1.32
    million parameters, 2.6 MB in the half precision it is saved in.

    Args:
        streams: see :class:`ProbeHead`.
        width: d.
        hidden: units of both hidden layers.
        dropout: probability of dropping a hidden unit while training.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, hidden: int = 512, dropout: float = 0.1
    ) -> None:
        super().__init__(streams, width)
        self.hidden, self.dropout = hidden, dropout
        generators = weight_generators(streams)
        self.norm0 = Norm(len(streams), width)
        self.linear1 = Linear(generators, width, hidden)
        self.norm1 = Norm(len(streams), hidden)
        self.drop1 = Dropout(streams, dropout, place=1)
        self.linear2 = Linear(generators, hidden, hidden)
        self.norm2 = Norm(len(streams), hidden)
        self.drop2 = Dropout(streams, dropout, place=2)
        self.linear3 = Linear(generators, hidden, 2)

    @property
    def options(self) -> dict[str, Any]:
        return {"hidden": self.hidden, "dropout": self.dropout}

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop1(self.norm1(F.silu(self.linear1(self.norm0(x)))), self.step)
        x = self.drop2(self.norm2(F.silu(self.linear2(x))), self.step)
        return self.linear3(x)
