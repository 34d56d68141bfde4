"""What labelled data looks like: counts, leaks, and a page of cases to look at."""

from .labels import Audit, audit
from .sample import write_sample
from .stratified import draw, draw_undecided

__all__ = ["Audit", "audit", "draw", "draw_undecided", "write_sample"]
