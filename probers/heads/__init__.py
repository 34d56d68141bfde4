"""Prober heads, from the states of one layer or several to "wrong" against "correct"."""

from __future__ import annotations

from .attention_pool import AttentionPoolHead
from .base import CORRECT, WRONG, Memory, Moments, ProbeHead
from .custom import ForeignHead, factory
from .layers import ConcatHead, LayerAttentionHead, MixHead
from .linear import LinearHead, MeanDifferenceHead
from .mlp import MindHead, ProbingRagHead, RadioHead
from .sequence import SequenceHead
from .stacked import StackedHead

__all__ = [
    "CORRECT", "HEADS", "WRONG", "AttentionPoolHead", "ConcatHead", "ForeignHead", "LayerAttentionHead",
    "LinearHead", "MeanDifferenceHead", "Memory", "MindHead", "MixHead", "Moments", "ProbeHead",
    "ProbingRagHead", "RadioHead", "SequenceHead", "StackedHead", "factory", "head_name", "is_joint",
]  # fmt: skip

#: Names of heads in ``config.json`` of saved probers and in ``head=``.
HEADS: dict[str, type[ProbeHead]] = {
    "probing_rag": ProbingRagHead,
    "linear": LinearHead,
    "radio": RadioHead,
    "mind": MindHead,
    "mean_difference": MeanDifferenceHead,
    "attention_pool": AttentionPoolHead,
    "concat": ConcatHead,
    "mix": MixHead,
    "layer_attention": LayerAttentionHead,
    "sequence": SequenceHead,
    "stacked": StackedHead,
}
StackedHead.kinds = HEADS


def head_name(head: ProbeHead | type[ProbeHead]) -> str:
    """Return the name under which a head is saved; a dotted path for a class of the user's own."""
    kind: type = head if isinstance(head, type) else type(head)
    if isinstance(head, ForeignHead):
        kind = head.module_class
    names = {cls: name for name, cls in HEADS.items()}
    return names.get(kind, f"{kind.__module__}.{kind.__qualname__}")


def is_joint(kind: object) -> bool:
    """Tell whether each head of a class reads several layers at once."""
    return isinstance(kind, type) and issubclass(kind, ProbeHead) and kind.joint
