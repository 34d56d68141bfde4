"""Triggers: when to retrieve, one file each. One's own derives from :class:`Trigger`.

Any other class with ``needs`` and ``__call__`` will do as well, and has the defaults of all else.
"""

from __future__ import annotations

from .adaptive import Adaptive
from .always import Always
from .base import LookAhead, State, Trigger
from .before_entity import BeforeEntity, EntitySignal
from .entropy import Entropy
from .fixed_length import FixedLength
from .fixed_sentence import FixedSentence
from .flare import Flare
from .llm_judge import LlmJudge
from .never import Never
from .oracle import Oracle
from .probing import Probing, ServedProbing
from .radio import Radio
from .random import Random
from .rind import Rind

__all__ = [
    "Adaptive", "Always", "BeforeEntity", "EntitySignal", "Entropy", "FixedLength", "FixedSentence", "Flare",
    "LlmJudge", "LookAhead", "Never", "Oracle", "Probing", "Radio", "Random", "Rind", "ServedProbing",
    "State", "Trigger",
]  # fmt: skip
