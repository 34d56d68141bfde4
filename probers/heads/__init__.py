"""Prober heads, from the states of one layer or several to "wrong" against "correct"."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from ..types import HEADS as PLACES
from .base import CORRECT, WRONG, Memory, Moments, ProbeHead
from .custom import ForeignHead, factory
from .stacked import StackedHead

__all__ = [
    "CORRECT", "HEADS", "WRONG", "ForeignHead", "Memory", "Moments", "ProbeHead", "StackedHead", "factory",
    "head_name", "is_joint",
]  # fmt: skip

#: Classes of heads by their names in ``config.json`` of saved probers and in ``head=``.
HEADS: dict[str, type[ProbeHead]] = {
    name: resolve_name(f"{__name__}.{place}") for name, place in PLACES.items()
}
StackedHead.kinds = HEADS


def __getattr__(name: str) -> Any:
    """Look up the class of a head by its own name."""
    for kind in HEADS.values():
        if kind.__name__ == name:
            return kind
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
