"""Hallucination probers on hidden states, and their use as retrieval triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .types import lazily

if TYPE_CHECKING:
    from .datagen.labelling import label
    from .datagen.labels.cot import Questions
    from .datagen.labels.judged import Prompts
    from .datagen.labels.texts import Texts
    from .datagen.labels.wiki import Articles
    from .model.causal_lm import CausalLM
    from .prober.prober import Prober
    from .rag.comparison.compare import compare
    from .rag.loop import RAG
    from .verbs import fit

__version__ = "0.3.0"
__all__ = [
    "RAG", "Articles", "CausalLM", "Prober", "Prompts", "Questions", "Texts", "__version__", "compare", "fit",
    "label",
]  # fmt: skip

__getattr__ = lazily(__name__, {
    "prober.prober": "Prober ProbeBank", "datagen.labelling": "label", "datagen.labels.cot": "Questions",
    "datagen.labels.judged": "Prompts", "datagen.labels.texts": "Texts", "datagen.labels.wiki": "Articles",
    "model.language_model": "Sampling SentenceEnd", "model.causal_lm": "CausalLM",
    "rag.comparison.compare": "compare", "rag.loop": "RAG", "store.store": "FeatureStore", "types": "Needs",
    "verbs": "fit",
})  # fmt: skip
