"""Lazy imports of the public names of a package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: torch, pandas and the like are imported only by who needs them.

    Args:
        package: its ``__name__``.
        places: module below the package -> the public names it defines, with spaces between.
    """
    modules = {name: module for module, names in places.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(f".{modules[name]}", package), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
