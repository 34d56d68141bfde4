"""The comparison as one self-contained HTML page."""

from __future__ import annotations

from .page import write_report

__all__ = ["write_report"]
