"""Trained heads with their decision rule and calibration, as one frozen object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from .bank import ProbeBank
    from .calibration import SIGNALS, EntropyModel
    from .ensemble import half_precision

__all__ = ["SIGNALS", "EntropyModel", "ProbeBank", "half_precision"]

__getattr__ = lazily(__name__, {
    "bank": "ProbeBank", "calibration": "EntropyModel SIGNALS", "ensemble": "half_precision",
})  # fmt: skip
