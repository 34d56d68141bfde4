"""Triggers, which decide when to retrieve. A trigger of your own derives from :class:`Trigger`.

Any other class with ``needs`` and ``__call__`` also works, with the defaults for everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from probers.types import lazily

if TYPE_CHECKING:
    from ..protocol import LookAhead, State, Trigger
    from .entities import BeforeEntity, EntitySignal, Rarity
    from .probing import Probing, ProbingBefore, Radio, ServedProbing
    from .rules import Adaptive, Always, FixedLength, FixedSentence, LlmJudge, Never, Oracle, Random
    from .sampled import Eigenscore, LexicalSimilarity, PTrue, SelfConsistency, SemanticEntropy, Verbalised
    from .uncertainty import Entropy, Flare, Rind

__all__ = [
    "Adaptive", "Always", "BeforeEntity", "Eigenscore", "EntitySignal", "Entropy", "FixedLength",
    "FixedSentence", "Flare", "LexicalSimilarity", "LlmJudge", "LookAhead", "Never", "Oracle", "PTrue",
    "Probing", "ProbingBefore", "Radio", "Random", "Rarity", "Rind", "SelfConsistency", "SemanticEntropy",
    "ServedProbing", "State", "Trigger", "Verbalised",
]  # fmt: skip

__getattr__ = lazily("probers.rag", {
    "protocol": "LookAhead State Trigger",
    "triggers.entities": "BeforeEntity EntitySignal Rarity",
    "triggers.probing": "Probing ProbingBefore Radio ServedProbing",
    "triggers.rules": "Adaptive Always FixedLength FixedSentence LlmJudge Never Oracle Random",
    "triggers.sampled": "Eigenscore LexicalSimilarity PTrue SelfConsistency SemanticEntropy Verbalised",
    "triggers.uncertainty": "Entropy Flare Rind",
})  # fmt: skip
