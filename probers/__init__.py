"""Train hallucination probers on hidden states and use them as retrieval triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bank import ProbeBank
    from .lm import CausalLM
    from .sampling import Sampling
    from .stops import SentenceEnd
    from .store import FeatureStore
    from .types import Needs

__version__ = "0.1.0"
__all__ = ["CausalLM", "FeatureStore", "Needs", "ProbeBank", "Sampling", "SentenceEnd", "__version__"]

_LAZY = {
    "CausalLM": "lm", "FeatureStore": "store", "Needs": "types", "ProbeBank": "bank",
    "Sampling": "sampling", "SentenceEnd": "stops",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import torch and transformers only when something that needs them is asked for."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
