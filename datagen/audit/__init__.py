"""Audit of labelled data: counts, leaks, and a page of cases to look at."""

from __future__ import annotations

from .labels import Audit, audit, sample_html
from .sampling import draw, draw_undecided

__all__ = ["Audit", "audit", "draw", "draw_undecided", "sample_html"]
