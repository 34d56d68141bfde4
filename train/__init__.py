"""Calibrated probers from labelled hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from .run import fit

__all__ = ["fit"]
__getattr__ = lazily(__name__, {"run": "fit"})
