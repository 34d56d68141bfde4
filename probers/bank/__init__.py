"""Trained heads with their decision rule and calibration, as one frozen object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazily

if TYPE_CHECKING:
    from ..uncertainty import SIGNALS
    from .bank import ProbeBank
    from .calibration import EntropyModel
    from .ensemble import half_precision

__all__ = ["SIGNALS", "EntropyModel", "ProbeBank", "half_precision"]

__getattr__ = lazily(__name__, {
    "bank": "ProbeBank", "calibration": "EntropyModel", "ensemble": "half_precision",
    ".uncertainty": "SIGNALS",
})  # fmt: skip
