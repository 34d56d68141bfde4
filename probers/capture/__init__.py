"""Hidden states and attention of a model, read while it runs, and their pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..types import lazily

if TYPE_CHECKING:
    from ..types import POOLS, SITES
    from .hidden_states import StateTap, check_needs

__all__ = ["POOLS", "SITES", "StateTap", "check_needs"]

__getattr__ = lazily(__name__, {"hidden_states": "POOLS SITES StateTap check_needs"})
