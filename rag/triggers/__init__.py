"""Triggers: when to retrieve. One file each; any class with ``needs`` and ``__call__`` will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import LookAhead, State, Trigger, snake_case

if TYPE_CHECKING:
    from .adaptive import Adaptive
    from .always import Always
    from .entropy import Entropy
    from .fixed_length import FixedLength
    from .fixed_sentence import FixedSentence
    from .flare import Flare
    from .llm_judge import LlmJudge
    from .never import Never
    from .oracle import Oracle
    from .probing import Probing
    from .radio import Radio
    from .random import Random
    from .rind import Rind

__all__ = [
    "Adaptive", "Always", "Entropy", "FixedLength", "FixedSentence", "Flare", "LlmJudge", "LookAhead",
    "Never", "Oracle", "Probing", "Radio", "Random", "Rind", "State", "Trigger",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """``FixedLength`` from ``.fixed_length`` and so on, imported when first asked for."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f".{snake_case(name)}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
