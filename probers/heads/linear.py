"""Linear probes: logistic regression, and the difference of the classes' means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .base import CORRECT, WRONG, Linear, Moments, ProbeHead, Standardise, StandardisedHead, weight_generators


class LinearHead(StandardisedHead):
    """Standardised states and one linear map: logistic regression, the simplest learned probe.

    The mean and standard deviation of the training states are kept with the weights.
    """

    def __init__(self, streams: Sequence[str], width: int) -> None:
        super().__init__(streams, width)
        self.input = Standardise(len(streams), width)
        self.linear = Linear(weight_generators(streams), width, 2)

    def _logits(self, x: Tensor) -> Tensor:
        return self.linear(self.input(x))


class MeanDifferenceHead(ProbeHead):
    """The mass-mean direction (Marks and Tegmark 2023, section 5): nothing is learned by gradient.

    With theta = mean of the wrong minus mean of the correct training states and m the point midway
    between the two means, the margin is ``2 theta.(x - m) / |theta|^2``: 1 at the mean of the wrong
    states, -1 at that of the correct ones, whatever their scale. As log-odds these units have no meaning
    until the prober fits a temperature on validation data. The paper's other form, theta rotated by the
    inverse of the covariance, is not offered.

    Args:
        standardise: divide each dimension by its deviation over all training states first,
            so that a dimension counts by how far its classes lie apart in deviations.
    """

    learns: ClassVar[bool] = False
    direction: Tensor
    midpoint: Tensor

    def __init__(self, streams: Sequence[str], width: int, *, standardise: bool = False) -> None:
        super().__init__(streams, width)
        self.standardise = standardise
        self.register_buffer("direction", torch.zeros(len(streams), width))
        self.register_buffer("midpoint", torch.zeros(len(streams), width))

    @torch.no_grad()
    def prepare(self, moments: Moments) -> None:
        """Take direction and midpoint from the classes' means.

        Without a direction (means equal to six digits, for instance for an embedding layer and one token)
        all margins are 0.
        """
        theta = moments.class_mean[:, WRONG] - moments.class_mean[:, CORRECT]
        midpoint = moments.class_mean.mean(dim=1)
        weights = theta
        if self.standardise:
            constant = moments.deviation <= 1e-6
            weights = theta / moments.deviation.masked_fill(constant, 1).square()
        apart = theta.norm(dim=1, keepdim=True) > 1e-6 * midpoint.norm(dim=1, keepdim=True)
        length = (theta * weights).sum(dim=1, keepdim=True)
        self.direction.copy_(torch.where(apart, 2 * weights / length, torch.zeros_like(theta)))
        self.midpoint.copy_(midpoint)

    def _logits(self, x: Tensor) -> Tensor:
        margin = torch.bmm(x - self.midpoint[:, None], self.direction[..., None])
        return torch.cat([margin / 2, -margin / 2], dim=-1)
