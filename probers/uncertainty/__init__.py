"""Training-free detectors: signals of a generation's own tokens, of drawn samples, and of further questions.

Every signal of samples or questions is a module with its formula and source. All are computed from plain
values, so that datagen, triggers and tests share them; :mod:`.samples` draws the answers they compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..types import lazily

if TYPE_CHECKING:
    from .eigenscore import eigenscore
    from .lexical_similarity import lexical_similarity
    from .meaning import Clusters, Entailment, Same, by_matcher, clusters
    from .p_true import p_true
    from .samples import Draws, Samples, draw
    from .self_consistency import self_consistency
    from .semantic_entropy import semantic_entropy
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
        words,
    )
    from .verbalised import stated, verbalised

__all__ = [
    "BEFORE", "SIGNALS", "Clusters", "Draws", "Entailment", "Part", "RindScores", "Same", "Samples",
    "Variant", "by_matcher", "clusters", "draw", "eigenscore", "entropy_of_top", "lexical_similarity",
    "margins", "p_true", "parts", "rind_scores", "self_consistency", "semantic_entropy", "signals",
    "signals_before", "stated", "surprise", "verbalised", "words",
]  # fmt: skip

__getattr__ = lazily("probers.uncertainty", {
    "tokens": "BEFORE SIGNALS Part RindScores Variant entropy_of_top margins parts rind_scores signals "
    "signals_before surprise words",
    "samples": "Draws Samples draw",
    "meaning": "Clusters Entailment Same by_matcher clusters",
    "self_consistency": "self_consistency",
    "semantic_entropy": "semantic_entropy",
    "lexical_similarity": "lexical_similarity",
    "eigenscore": "eigenscore",
    "p_true": "p_true",
    "verbalised": "stated verbalised",
})  # fmt: skip
