"""Options of ``head=lora``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from probers.options import Count, Limits, NotNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Lora:
    """A linear head on one layer, and LoRA adapters in the blocks below it (Obeso et al. 2025).

    The model reads the store's texts again and is trained with the head. The prober comes with the adapters,
    and reads the model with them alone. The head starts as that of head=linear; batch_size counts texts.

    Attributes:
        rank: rank of every adapter.
        alpha: scale of the adapters, divided by the rank.
        dropout: share of an adapter's inputs that is dropped in training.
        lr: initial learning rate of the adapters; lr is the head's.
        lambda_kl: weight of the divergence from the model without adapters, in the loss.
        kl_limit: most divergence, in nats a token of validation answers, of adapters that are kept; null is
            no limit.
        tokens: most tokens of one forward pass; a step of more is read in several.
    """

    rank: Count = 8
    alpha: Count = 16
    dropout: Annotated[float, Limits(ge=0, lt=1)] = 0.05
    lr: Positive = 2e-4
    lambda_kl: NotNegative = 0.5
    kl_limit: NotNegative | None = 0.05
    tokens: Count = 1024
