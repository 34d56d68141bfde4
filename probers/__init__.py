"""Hallucination probers on hidden states, and their use as retrieval triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .types import lazily

if TYPE_CHECKING:
    from .bank.bank import ProbeBank, Prober
    from .engine.language_model import Sampling
    from .engine.model import CausalLM
    from .engine.tokens import SentenceEnd
    from .store.store import FeatureStore
    from .types import Needs

__version__ = "0.2.0"
__all__ = [
    "CausalLM",
    "FeatureStore",
    "Needs",
    "ProbeBank",
    "Prober",
    "Sampling",
    "SentenceEnd",
    "__version__",
]

__getattr__ = lazily(__name__, {
    "bank.bank": "Prober ProbeBank", "engine.language_model": "Sampling", "engine.model": "CausalLM",
    "engine.tokens": "SentenceEnd", "store.store": "FeatureStore", "types": "Needs",
})  # fmt: skip
