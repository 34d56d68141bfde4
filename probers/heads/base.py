"""What every prober head is: from the states of one layer to "wrong" against "correct".

All layers' heads are one module whose parameters carry a leading head axis, so that
they train and run as batched matrix products. They share nothing: each head's initial
weights and dropout masks come from a random stream of its own, so that a head trained
among others equals one trained alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

#: Index of the class in the logits' last axis; Probing-RAG's label 1 is "answer correct".
WRONG, CORRECT = 0, 1


@dataclass(frozen=True, slots=True)
class Moments:
    """Statistics of each head's training states, float64.

    Attributes:
        mean, deviation: (H, d) of all of them; the population's standard deviation.
        class_mean: (H, 2, d), of the wrong and of the correct ones.
    """

    mean: Tensor
    deviation: Tensor
    class_mean: Tensor


class ProbeHead(nn.Module):
    """H independent heads on states of width d; subclasses define :meth:`_logits`.

    Every entry of the state dict has the head axis first. Parameters are saved in half
    precision, buffers (what :meth:`prepare` fills) as they are.

    Args:
        streams: one name per head for its random stream, e.g. seed and layer; H of them.
        width: d.

    Attributes:
        tokens: reads all tokens' states and pools them itself; such a class defines
            :meth:`_token_logits` instead.
        learns: is trained by gradient; otherwise :meth:`prepare` alone fits it.
        step: training passes so far. With the stream's name it decides every random draw
            of the next one, so that setting it is all that a resumed training needs.
    """

    tokens: ClassVar[bool] = False
    learns: ClassVar[bool] = True

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__()
        self.streams = tuple(streams)
        self.width = width
        self.step = 0

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments that rebuild this kind of head, beside streams and width."""
        raise NotImplementedError

    @property
    def needs_moments(self) -> bool:
        """Whether :meth:`prepare` makes use of the moments."""
        return type(self).prepare is not ProbeHead.prepare

    @property
    def device(self) -> torch.device:
        """Where the heads are."""
        return next(chain(self.parameters(), self.buffers())).device

    def prepare(self, moments: Moments) -> None:
        """Fit what is not learned by gradient; nothing by default."""

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (n, H, 2), [wrong, correct], every head on its own slice.

        Args:
            states: (n, H, d), or (n, T, H, d) where the class reads tokens.
            mask: (n, T) bool, true where there is a token; given if and only if the class
                reads tokens.

        Raises:
            ValueError: another number of heads or width, or a mask that does not fit.
        """
        expected = (len(self.streams), self.width)
        if states.ndim != 3 + self.tokens or states.shape[-2:] != expected:
            rows = "n, T" if self.tokens else "n"
            raise ValueError(
                f"states have shape {tuple(states.shape)}, expected ({rows}, {expected[0]}, {expected[1]})"
            )
        if mask is None and not self.tokens:
            # Heads first: the layout of batched matrix products.
            logits = self._logits(states.transpose(0, 1))
        elif mask is None or not self.tokens or mask.shape != states.shape[:2]:
            found = None if mask is None else tuple(mask.shape)
            raise ValueError(
                f"mask {found} does not fit {type(self).__name__}'s states {tuple(states.shape)}"
            )
        else:
            logits = self._token_logits(states, mask)
        if self.training:
            self.step += 1
        return logits.transpose(0, 1)

    def _logits(self, x: Tensor) -> Tensor:
        """(H, n, d) -> (H, n, 2)."""
        raise NotImplementedError

    def _token_logits(self, x: Tensor, mask: Tensor) -> Tensor:
        """(n, T, H, d) and (n, T) -> (H, n, 2)."""
        raise NotImplementedError

    def select(self, heads: Sequence[int]) -> ProbeHead:
        """A copy on the CPU with some of the heads, by position."""
        index = torch.as_tensor(list(heads), dtype=torch.long)
        chosen = self._untrained([self.streams[i] for i in heads])
        with torch.no_grad():
            chosen.load_state_dict({k: v.detach().cpu()[index] for k, v in self.state_dict().items()})
        chosen.step = self.step
        return chosen.train(self.training)

    def _untrained(self, streams: Sequence[str]) -> ProbeHead:
        """New heads of the same kind."""
        return type(self)(streams, self.width, **self.options)
