"""Multilayer perceptrons: those of RaDIO, MIND and Probing-RAG."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from .base import Dropout, Linear, Moments, Norm, ProbeHead, Standardise, weight_generators


class _MlpHead(ProbeHead):
    """Linear maps with ReLU between them."""

    def __init__(
        self, streams: Sequence[str], width: int, hidden: Sequence[int], dropout: float, standardise: bool
    ) -> None:
        super().__init__(streams, width)
        self.dropout, self.standardise = dropout, standardise
        generators = weight_generators(streams)
        self.input = Standardise(len(streams), width) if standardise else None
        self.drop = Dropout(streams, dropout)
        sizes = [width, *hidden, 2]
        self.linears = nn.ModuleList(Linear(generators, a, b) for a, b in zip(sizes, sizes[1:], strict=False))

    @property
    def needs_moments(self) -> bool:
        """True if inputs are standardised."""
        return self.standardise

    def prepare(self, moments: Moments) -> None:
        """Take mean and deviation per head and dimension, if the states are standardised."""
        if self.input is not None:
            self.input.fit(moments)


class RadioHead(_MlpHead):
    """RaDIO's detector (Zhu et al., AAAI 2025): Linear -> ReLU -> Linear on a token's last-layer state.

    The paper says "MLP" and binary cross-entropy (here of the difference of two logits); depth, width,
    activation, dropout of hidden units and standardised inputs are choices made here.

    Args:
        hidden: units of the one hidden layer.
        dropout: probability of dropping a hidden unit while training.
        standardise: whether states are standardised by the training states' moments.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, hidden: int = 256, dropout: float = 0.0,
        standardise: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(streams, width, [hidden], dropout, standardise)
        self.hidden = hidden

    def _logits(self, x: Tensor) -> Tensor:
        first, last = self.linears
        x = x if self.input is None else self.input(x)
        return last(self.drop(F.relu(first(x)), self.step))


class MindHead(_MlpHead):
    """MIND's detector (Su et al., Findings of ACL 2024): Dropout -> 256 -> 128 -> 64 -> 2 with ReLU.

    It is made for ``pool=mind``, whose states are two joined vectors: the last token averaged over layers,
    and the mean over tokens of the last layer. The published detector does not standardise its inputs.

    Args:
        dropout: probability of dropping an input dimension while training.
        standardise: whether states are standardised first; the published detector does not do it.
    """

    def __init__(
        self, streams: Sequence[str], width: int, *, dropout: float = 0.2, standardise: bool = False
    ) -> None:
        super().__init__(streams, width, [256, 128, 64], dropout, standardise)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop(x if self.input is None else self.input(x), self.step)
        for linear in self.linears[:-1]:
            x = F.relu(linear(x))
        return self.linears[-1](x)


class ProbingRagHead(ProbeHead):
    """Probing-RAG's prober, with the size and structure of its released code.

    LayerNorm(d) -> Linear -> SiLU -> LayerNorm -> Dropout -> Linear -> SiLU -> LayerNorm -> Dropout ->
    Linear 2. With d = 2048 and 512 hidden units a head has 1.32 million parameters, 2.6 MB as saved.

    Args:
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

    def _logits(self, x: Tensor) -> Tensor:
        x = self.drop1(self.norm1(F.silu(self.linear1(self.norm0(x)))), self.step)
        x = self.drop2(self.norm2(F.silu(self.linear2(x))), self.step)
        return self.linear3(x)
