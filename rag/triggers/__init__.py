"""Triggers: when to retrieve. One file each; any class with ``needs`` and ``__call__`` will do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import State, Trigger

if TYPE_CHECKING:
    from .always import Always
    from .entropy import Entropy
    from .never import Never
    from .oracle import Oracle
    from .probing import Probing
    from .random import Random
    from .rind import Rind

__all__ = ["Always", "Entropy", "Never", "Oracle", "Probing", "Random", "Rind", "State", "Trigger"]


def __getattr__(name: str) -> Any:
    """``Rind`` from ``.rind`` and so on, imported when first asked for."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f".{name.lower()}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
