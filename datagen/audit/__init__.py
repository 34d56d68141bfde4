"""Audit of labelled data: counts, leaks, and a page of cases to look at."""

from __future__ import annotations

from .drawn import draw, draw_undecided
from .labels import Audit, audit
from .sample import sample_html

__all__ = ["Audit", "audit", "draw", "draw_undecided", "sample_html"]
