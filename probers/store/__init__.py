"""The feature store: labelled hidden states on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..types import lazily

if TYPE_CHECKING:
    from .files import COLUMNS
    from .spec import FeatureSpec, ModelSpec
    from .store import FeatureStore

__all__ = ["COLUMNS", "FeatureSpec", "FeatureStore", "ModelSpec"]

__getattr__ = lazily(__name__, {"files": "COLUMNS", "spec": "FeatureSpec ModelSpec", "store": "FeatureStore"})
