"""What labelled data looks like: counts, leaks, and a page of cases to look at."""

from __future__ import annotations

from .drawn import draw, draw_undecided
from .labels import Audit, audit
from .sample import write_sample

__all__ = ["Audit", "audit", "draw", "draw_undecided", "write_sample"]
