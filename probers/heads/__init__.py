"""Prober heads, from the states of one layer or several to "wrong" against "correct"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..parts import PARTS, exporting, exports, load_part
from .base import CORRECT, WRONG, Memory, Moments, ProbeHead
from .custom import ForeignHead, factory
from .stacked import StackedHead

__all__ = [
    "CORRECT", "HEADS", "WRONG", "ForeignHead", "Memory", "Moments", "ProbeHead", "StackedHead", "factory",
    "head_name", "is_joint", *exports("heads"),
]  # fmt: skip

__getattr__ = exporting(__name__)


class _Heads(Mapping[str, type[ProbeHead]]):
    """Classes of heads by name, imported when asked for; ensembles are saved as "stacked"."""

    def __getitem__(self, name: str) -> type[ProbeHead]:
        if name not in [*self]:
            raise KeyError(name)
        kind: type[ProbeHead] = StackedHead if name == "stacked" else load_part("head", name)
        return kind

    def __iter__(self) -> Iterator[str]:
        yield from (name for name, path in PARTS["head"].items() if path.startswith("heads."))
        yield "stacked"

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: Names of heads in ``config.json`` of saved probers and in ``head=``.
HEADS = _Heads()
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
