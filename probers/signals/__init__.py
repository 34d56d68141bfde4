"""Training-free detectors: signals of a generation's own tokens, of drawn samples, and of further questions.

Every signal is a function with its formula and source, :mod:`.detectors` has all of them by name. They
are computed from plain values, so that datagen, triggers and tests share them; :mod:`.samples` draws the
answers to compare.
"""

from .meaning import Clusters, Entailment, Same, by_matcher, clusters
from .samples import Draws, Samples, draw
from .tokens import (
    BEFORE,
    SIGNALS,
    Part,
    RindScores,
    Variant,
    entropy_of_top,
    margins,
    parts,
    rind_scores,
    signals,
    signals_before,
    surprise,
    trend_scores,
    words,
)

__all__ = [
    "BEFORE", "SIGNALS", "Clusters", "Draws", "Entailment", "Part", "RindScores", "Same", "Samples",
    "Variant", "by_matcher", "clusters", "draw", "entropy_of_top", "margins", "parts", "rind_scores",
    "signals", "signals_before", "surprise", "trend_scores", "words",
]  # fmt: skip
